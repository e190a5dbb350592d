"""Tensor contents as JSON (observed Triton, sections 4 and 6), by the reader of small ones and that of large ones."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.apis import tensor_arrays, tensor_json
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Tensor, count_of, join_bytes
from tests.support.tensor_models import INTEGERS

CODES = dict(zip([*INTEGERS, "FP32", "FP64"], "bhiqBHIQfd", strict=True))

Decode = Callable[[str, str, int], bytes]


def decode_small(datatype: str, text: str, count: int) -> bytes:
    return tensor_json.decode("x", datatype, msgspec.Raw(text.encode()), count=count)


def decode_large(datatype: str, text: str, count: int) -> bytes:
    """As a request is read: what the fast reader leaves, the other one takes."""
    try:
        _, (data,) = tensor_arrays.parse(b'{"inputs":[{"data":' + text.encode() + b"}]}")
        return bytes(tensor_arrays.decode("x", datatype, data, count=count))
    except tensor_json.SlowPathError:
        return decode_small(datatype, text, count)


BOTH = pytest.mark.parametrize("decode", [decode_small, decode_large])
ENCODERS = pytest.mark.parametrize("encode", [tensor_json.encode, tensor_arrays.encode])


def packed(datatype: str, *values: Any) -> bytes:
    if datatype == "BOOL":
        return bytes(values)
    if datatype == "BYTES":
        return join_bytes([value.encode() for value in values])
    return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)


def refused(decode: Decode, datatype: str, text: str, count: int = 1) -> str:
    with pytest.raises(GeartrainError) as caught:
        decode(datatype, text, count)
    assert caught.value.code in {Code.INVALID_TENSOR, Code.UNPARSABLE}
    return caught.value.message


@BOTH
@pytest.mark.parametrize(
    ("datatype", "text", "values"),
    [
        ("BOOL", "[true,false]", [True, False]),
        *[(datatype, "[0, 1, 127]", [0, 1, 127]) for datatype in INTEGERS],
        *[(datatype, "[-1]", [-1]) for datatype in INTEGERS[:4]],
        ("INT64", "[-9223372036854775808,9223372036854775807]", [-(2**63), 2**63 - 1]),
        ("UINT64", "[18446744073709551615]", [2**64 - 1]),
        ("FP32", "[1, 2.5, -3e2]", [1.0, 2.5, -300.0]),
        ("FP64", "[0.1, 1e300, 123456789012345678901234567890]", [0.1, 1e300, 1.2345678901234568e29]),
        ("FP64", "[1e-400, -0.0]", [0.0, -0.0]),
        ("BYTES", '["a", "", "\\u0000", "ü\\n\\"[]"]', ["a", "", "\0", 'ü\n"[]']),
        ("FP32", "[]", []),
        ("BYTES", "[]", []),
    ],
)
def test_values(decode: Decode, datatype: str, text: str, values: list[Any]) -> None:
    assert decode(datatype, text, len(values)) == packed(datatype, *values)


@BOTH
@pytest.mark.parametrize(
    "text",
    ["[1,2,3,4]", "[[1,2],[3,4]]", "[1,[2,3],4]", "[[[1],2],[[3,[4]]]]", "[[],[1,2,3,4],[]]", " [ [1 ,2],[3,4] ] "],
)
def test_only_the_order_of_nested_numbers_counts(decode: Decode, text: str) -> None:
    assert decode("INT32", text, 4) == packed("INT32", 1, 2, 3, 4)


@BOTH
def test_nested_texts_and_booleans(decode: Decode) -> None:
    assert decode("BYTES", '[["a[", "]b"], "c"]', 3) == packed("BYTES", "a[", "]b", "c")
    assert decode("BOOL", "[[true], [false, true]]", 3) == packed("BOOL", 1, 0, 1)


@BOTH
@pytest.mark.parametrize(
    ("datatype", "text"),
    [
        ("BOOL", "[1]"),
        ("BOOL", '["true"]'),
        ("BOOL", "[null]"),
        *[
            (datatype, wrong)
            for datatype in INTEGERS
            for wrong in ("[1.0]", "[1e3]", '["1"]', "[true]", "[null]", "[{}]")
        ],
        ("FP32", '["NaN"]'),
        ("FP32", "[true]"),
        ("FP32", "[null]"),
        ("FP64", "[[1],{}]"),
        ("BYTES", "[1]"),
        ("BYTES", '["a",["b",null]]'),
        ("INT8", "1"),
        ("BYTES", '"a"'),
        ("FP32", "{}"),
        ("FP32", "null"),
    ],
)
def test_t5_element_of_the_wrong_type(decode: Decode, datatype: str, text: str) -> None:
    assert "Unable to parse 'data' of input 'x'" in refused(decode, datatype, text)


@BOTH
@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT8", 300),
        ("INT8", -129),
        ("UINT8", 256),
        ("INT16", 32768),
        ("UINT16", 65536),
        ("INT32", 2147483648),
        ("UINT32", 2**32),
        ("INT64", 2**63),
        ("UINT64", 2**64),
        *[(datatype, -1) for datatype in INTEGERS[4:]],
        ("FP32", 1e39),
        ("FP32", -1e39),
    ],
)
def test_t4_number_out_of_range_is_refused(decode: Decode, datatype: str, value: float) -> None:
    message = refused(decode, datatype, f"[1, {value!r}]", 2)
    assert f"{value!r} at [1] of input 'x' is out of range of {datatype}" in message


@BOTH
@pytest.mark.parametrize("text", ["[1e400]", "[-1e400]", "[" + "1" * 5000 + "]"])
@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64"])
def test_t6_number_that_no_float_holds(decode: Decode, datatype: str, text: str) -> None:
    refused(decode, datatype, text)


@BOTH
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_16_bit_floats_are_binary_only(decode: Decode, datatype: str) -> None:
    assert f"receiving {datatype} data via JSON is not supported" in refused(decode, datatype, "[1.0]")


@BOTH
@pytest.mark.parametrize(("text", "count"), [("[1,2,3]", 4), ("[1,2,3]", 2), ("[]", 1), ("[[1],[2]]", 1)])
def test_t5_count_that_is_not_the_shapes(decode: Decode, text: str, count: int) -> None:
    message = refused(decode, "FP32", text, count)
    assert "Shape does not match true shape of 'data' field" in message


@BOTH
def test_t10_surplus_elements_of_an_empty_shape(decode: Decode) -> None:
    assert decode("FP32", "[]", 0) == b""
    refused(decode, "FP32", "[1]", 0)


@BOTH
def test_nesting_of_some_depth(decode: Decode) -> None:
    assert decode("FP32", "[" * 60 + "1" + "]" * 60, 1) == packed("FP32", 1)


@BOTH
def test_lone_surrogate_is_no_text(decode: Decode) -> None:
    refused(decode, "BYTES", '["\\ud800"]')


@BOTH
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_floats_survive(decode: Decode, values: list[float]) -> None:
    contents = packed("FP32", *values)
    for encode in (tensor_json.encode, tensor_arrays.encode):
        text = encode(Tensor("y", "FP32", (len(values),), contents))
        assert decode("FP32", text.decode(), len(values)) == contents


# output


@ENCODERS
@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        ("FP32", [1.0, 0.1, -2.5], "[1.0,0.10000000149011612,-2.5]"),
        ("FP64", [1.0, 0.1], "[1.0,0.1]"),
        ("BOOL", [1, 0, 2], "[true,false,true]"),
        *[(datatype, [0, 100], "[0,100]") for datatype in INTEGERS],
        ("INT64", [-(2**63)], "[-9223372036854775808]"),
        ("UINT64", [2**64 - 1], "[18446744073709551615]"),
        ("BYTES", ["a", "", "ü\n\0"], '["a","","ü\\n\\u0000"]'),
        ("FP32", [], "[]"),
    ],
)
def test_text_of_an_output(encode: Callable[[Tensor], bytes], datatype: str, values: list[Any], text: str) -> None:
    contents = packed(datatype, *values)
    assert encode(Tensor("y", datatype, (len(values),), memoryview(contents))).decode() == text


@ENCODERS
def test_output_is_flat(encode: Callable[[Tensor], bytes]) -> None:
    assert encode(Tensor("y", "INT8", (2, 2), b"\1\2\3\4")) == b"[1,2,3,4]"


@ENCODERS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_t6_output_that_json_cannot_carry(encode: Callable[[Tensor], bytes], datatype: str, value: float) -> None:
    with pytest.raises(GeartrainError, match=r"output 'y' holds NaN or Infinity.*as binary.*binary_data") as caught:
        encode(Tensor("y", datatype, (2,), packed(datatype, 1.0, value)))
    assert caught.value.code is Code.INVALID_TENSOR


@ENCODERS
def test_t6_bytes_that_are_no_text(encode: Callable[[Tensor], bytes]) -> None:
    with pytest.raises(GeartrainError, match=r"output 'y' holds bytes that are not valid UTF-8.*as binary"):
        encode(Tensor("y", "BYTES", (1,), join_bytes([b"\xff"])))


@ENCODERS
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_16_bit_floats_leave_as_binary_only(encode: Callable[[Tensor], bytes], datatype: str) -> None:
    with pytest.raises(GeartrainError, match=f"sending {datatype} data via JSON is not supported"):
        encode(Tensor("y", datatype, (1,), b"\0\0"))


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_large_and_small_agree(values: list[float]) -> None:
    tensor = Tensor("y", "FP64", (len(values),), packed("FP64", *values))
    small, large = tensor_json.encode(tensor), tensor_arrays.encode(tensor)
    assert json.loads(small) == json.loads(large) == values
    assert count_of(tensor.shape) == len(values)


def test_small_tensors_load_no_array_package() -> None:
    script = (
        "import sys; from geartrain.apis import open_inference, generate; "
        "print(*{'numpy', 'simdjson', 'orjson'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
