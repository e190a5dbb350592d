"""Tensors in the JSON of Cog's API: what is accepted, and every sentence about what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from geartrain.domain.errors import FieldError
from geartrain.domain.signature.json_schema import type_schema
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.signature.validation import InputValidator
from geartrain.domain.tensors.nested_json import ELEMENTS
from geartrain.domain.tensors.tensor import DATATYPES
from tests.support.ids import short


def tensor(datatype: str, *shape: int, variadic: bool = False) -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=shape, variadic=variadic)


LAST_3 = tensor("FP32", -1, 3, variadic=True)
BETWEEN = TypeSpec("tensor", datatype="FP32", shape=(2, -1, -1, 3), variadic=True, variadic_at=1)
SQUARES = TypeSpec("tensor", datatype="FP32", shape=(-1, -1, -1), variadic=True, names=("", "n", "n"))


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (LAST_3, [1, 2, 3]),
        (LAST_3, [[1, 2, 3], [4, 5, 6]]),
        (LAST_3, [[[1, 2, 3]]]),
        (LAST_3, []),  # no row of 3
        (BETWEEN, [[[1, 2, 3]], [[4, 5, 6]]]),
        (BETWEEN, [[[[1, 2, 3]]], [[[4, 5, 6]]]]),
        (SQUARES, [[1]]),
        (SQUARES, [[[1, 2], [3, 4]]] * 3),
        (SQUARES, []),
    ],
)
def test_o7_fixed_part_of_a_variadic_shape_fits(spec: TypeSpec, value: Any) -> None:
    assert errors(spec, value) == []


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (LAST_3, [1, 2], [("x", "2 elements in an array that must have 3")]),
        (LAST_3, [[1, 2, 3], [4, 5]], [("x/1", "2 elements in an array that must have 3")]),
        (
            LAST_3,
            [[], []],
            [("x/0", "0 elements in an array that must have 3"), ("x/1", "0 elements in an array that must have 3")],
        ),
        (LAST_3, 1, [("x", "0 nested arrays are too few for the shape [..., 3]")]),
        (BETWEEN, [[1, 2, 3], [4, 5, 6]], [("x", "2 nested arrays are too few for the shape [2, ..., -1, 3]")]),
        (BETWEEN, [[[1, 2, 3]]], [("x", "1 element in an array that must have 2")]),
        (
            SQUARES,
            [[1, 2]],
            [("x", "the shape [1, 2] is not [..., n, n]: dimensions of one name must be equally long")],
        ),
    ],
)
def test_o7_fixed_part_of_a_variadic_shape_is_checked(spec: TypeSpec, value: Any, expected: Any) -> None:
    assert errors(spec, value) == expected


def errors(spec: TypeSpec, value: Any) -> list[tuple[str, str]]:
    raw = value if isinstance(value, bytes) else msgspec.json.encode({"x": value})
    validator = InputValidator(Signature((InputField("x", spec),), OutputSpec(TypeSpec("opaque"))))
    found: tuple[FieldError, ...] = validator.check(raw)
    assert all(error.loc[:2] == ("body", "input") and error.type == "value_error" for error in found)
    return [(error.loc[2], error.msg) for error in found]


ANY = tensor("FP64", -1, variadic=True)
RAGGED = "where the arrays before it have"
RIGHT = [
    (tensor("FP32"), 1.5),
    (tensor("FP32"), 1),
    (tensor("FP32", 2), [1, 2.5]),
    (tensor("FP32", -1), []),
    (tensor("FP32", -1, 3), []),
    (tensor("FP32", -1, 3), [[1, 2, 3]] * 4),
    (tensor("FP32", -1, -1), [[], []]),
    (tensor("FP32", 2, -1, 2), [[[1, 2]], [[3, 4]]]),
    (tensor("FP32", 0, 3), []),
    (tensor("FP32"), 3.4028235e38),
    (tensor("FP16"), 65519.9),
    (tensor("BF16"), 3.3895e38),
    (tensor("FP64"), 1.7976931348623157e308),
    (tensor("FP64"), 10**308),
    (tensor("INT8", 2), [-128, 127]),
    (tensor("INT8", 2), [7.0, 1]),  # an integer in JSON
    (tensor("UINT64", 2), [0, 2**64 - 1]),
    (tensor("UINT64", -1, -1), [[2**64 - 1], [7.0]]),
    (tensor("INT64", 2), [-(2**63), 2**63 - 1]),
    (tensor("BOOL", 1), [True]),
    (tensor("BYTES", 1, 1), [["é\0"]]),
    (ANY, 1),
    (ANY, []),
    (ANY, [1, 2]),
    (ANY, [[[1, 2]], [[3, 4]]]),
    (ANY, [[], []]),
]


@pytest.mark.parametrize(("spec", "value"), RIGHT, ids=short)
def test_accepted(spec: TypeSpec, value: Any) -> None:
    assert errors(spec, value) == []


WRONG: list[tuple[TypeSpec, Any, list[tuple[str, str]]]] = [
    (tensor("FP32"), [1], [("x", '[1] is not of type "number"')]),
    (tensor("FP32"), None, [("x", 'null is not of type "number"')]),
    (tensor("FP32", 2), 1.5, [("x", '1.5 is not of type "array"')]),
    (tensor("FP32", 2), {"a": 1}, [("x", '{"a":1} is not of type "array"')]),
    (tensor("FP32", 2), [1], [("x", "1 element in an array that must have 2")]),
    (tensor("FP32", 2), [1, 2, 3], [("x", "3 elements in an array that must have 2")]),
    (tensor("FP32", 2), [[1], [2]], [("x/0", '[1] is not of type "number"'), ("x/1", '[2] is not of type "number"')]),
    (tensor("FP32", 2), [1, "a"], [("x/1", '"a" is not of type "number"')]),
    (tensor("FP32", 2), [1, True], [("x/1", 'true is not of type "number"')]),
    (tensor("FP32", 2), [1, None], [("x/1", 'null is not of type "number"')]),
    (tensor("FP32", -1, 2), [1, 2], [("x/0", '1 is not of type "array"'), ("x/1", '2 is not of type "array"')]),
    (tensor("FP32", -1, 2), [[1, 2], [3]], [("x/1", "1 element in an array that must have 2")]),
    (tensor("FP32", -1, -1), [[1, 2], [3]], [("x/1", f"1 element, {RAGGED} 2: the rows must be equally long")]),
    (tensor("FP32", -1, -1), [[], [3]], [("x/1", f"1 element, {RAGGED} 0: the rows must be equally long")]),
    (
        tensor("FP32", -1, -1, -1),
        [[[1], [2]], [[3]], [[4], [5, 6]]],
        [
            ("x/1", f"1 element, {RAGGED} 2: the rows must be equally long"),
            ("x/2/1", f"2 elements, {RAGGED} 1: the rows must be equally long"),
        ],
    ),
    (ANY, [[1, 2], [3]], [("x/1", f"1 element, {RAGGED} 2: the rows must be equally long")]),
    (ANY, [[1, 2], 3], [("x/1", '3 is not of type "array"')]),
    (ANY, [1, [2]], [("x/1", '[2] is not of type "number"')]),
    (ANY, "a", [("x", '"a" is not of type "number"')]),
    (tensor("INT8", 1), [128], [("x/0", "128 is not in the range of INT8: -128 to 127")]),
    (
        tensor("UINT8", 2),
        [256, -1],
        [(f"x/{i}", f"{n} is not in the range of UINT8: 0 to 255") for i, n in ((0, 256), (1, -1))],
    ),
    (tensor("INT32", 1), [2**31], [("x/0", "2147483648 is not in the range of INT32: -2147483648 to 2147483647")]),
    (tensor("UINT32", 1), [2**32], [("x/0", "4294967296 is not in the range of UINT32: 0 to 4294967295")]),
    (tensor("INT64", 1), [2**63], [("x/0", f"{2**63} is not in the range of INT64: {-(2**63)} to {2**63 - 1}")]),
    (tensor("UINT64", 1), [2**64], [("x/0", f"{2**64} is not in the range of UINT64: 0 to {2**64 - 1}")]),
    (tensor("INT8", 1), [1e9], [("x/0", "1000000000.0 is not in the range of INT8: -128 to 127")]),
    (tensor("INT8", 1), [1.5], [("x/0", '1.5 is not of type "integer"')]),
    (tensor("INT8", 1), [True], [("x/0", 'true is not of type "integer"')]),
    (tensor("INT8", 1), ["1"], [("x/0", '"1" is not of type "integer"')]),
    (tensor("BOOL", 1), [1], [("x/0", '1 is not of type "boolean"')]),
    (tensor("BYTES", 1), [1], [("x/0", '1 is not of type "string"')]),
    (tensor("FP32", 1), [1e39], [("x/0", "1e+39 is beyond the range of FP32")]),
    (tensor("FP32", 1), [-1e39], [("x/0", "-1e+39 is beyond the range of FP32")]),
    (tensor("FP16", 1), [65520], [("x/0", "65520 is beyond the range of FP16")]),
    (tensor("BF16", 1), [3.4e38], [("x/0", "3.4e+38 is beyond the range of BF16")]),
]


@pytest.mark.parametrize(("spec", "value", "expected"), WRONG, ids=short)
def test_t4_what_does_not_fit_is_refused_with_its_place(
    spec: TypeSpec, value: Any, expected: list[tuple[str, str]]
) -> None:
    assert errors(spec, value) == expected


def test_t6_nan_is_no_json() -> None:
    for text in (b"NaN", b"Infinity", b"-Infinity", b"1e400"):
        with pytest.raises(Exception, match="not valid JSON"):
            errors(tensor("FP64", 1), b'{"x":[' + text + b"]}")


def test_integers_of_any_length_are_refused_and_not_wrapped() -> None:
    digits = "1" + "0" * 400
    for datatype, text in (("INT64", "is not in the range of INT64"), ("FP64", "is beyond the range of FP64")):
        ((place, message),) = errors(tensor(datatype, 1), f'{{"x":[{digits}]}}'.encode())
        assert place == "x/0"
        assert text in message


def test_many_faults_are_cut() -> None:
    found = errors(tensor("FP32", -1), ["a"] * 1000)
    assert len(found) == 11
    assert found[-1] == ("x", "more values are wrong; only the first 10 are listed")


def test_every_datatype_has_a_form_in_json() -> None:
    assert set(ELEMENTS) == DATATYPES


@pytest.mark.parametrize(
    ("spec", "value", "place"),
    [
        (tensor("FP32", -1), [0.5] * 150_000, "x/149999"),
        (tensor("UINT8", -1, -1, 3), [[[1, 2, 3] for _ in range(224)] for _ in range(224)], "x/223/223/2"),
    ],
    ids=["flat", "image"],
)
def test_no_step_is_taken_for_each_element(spec: TypeSpec, value: Any, place: str) -> None:
    validator = InputValidator(Signature((InputField("x", spec),), OutputSpec(TypeSpec("opaque"))))
    raw = msgspec.json.encode({"x": value})
    assert _calls(lambda: validator.check(raw)) < 1_000
    row = value
    while isinstance(row[-1], list):
        row = row[-1]
    row[-1] = "a"
    raw = msgspec.json.encode({"x": value})
    assert [error.loc[2] for error in validator.check(raw)] == [place]
    assert _calls(lambda: validator.check(raw)) < 5_000


def _calls(action: Callable[[], object]) -> int:
    """How many functions, of Python or C, are called."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


# what the schema says


def test_schema_of_sizes() -> None:
    assert type_schema(tensor("UINT8", -1, 3)) == {
        "type": "array",
        "items": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "minItems": 3,
            "maxItems": 3,
        },
        "x-tensor": {"datatype": "UINT8", "shape": [-1, 3]},
    }


@pytest.mark.parametrize(
    ("datatype", "element"), [("FP32", "number"), ("BF16", "number"), ("BOOL", "boolean"), ("BYTES", "string")]
)
def test_schema_of_elements(datatype: str, element: str) -> None:
    tensor_of_one = {"type": element, "x-tensor": {"datatype": datatype, "shape": []}}
    assert type_schema(tensor(datatype)) == tensor_of_one


def test_schema_of_any_shape() -> None:
    assert type_schema(tensor("FP32", -1, variadic=True)) == {
        "description": "A tensor of FP32 in nested arrays of any depth.",
        "anyOf": [{"type": "number"}, {"type": "array", "items": {}}],
        "x-tensor": {"datatype": "FP32", "shape": [-1]},
    }
