"""From a tensor, or nested lists, to the array that `run()` gets, and from the array that it gives back again."""

# ruff: noqa: F821, UP037 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import jaxtyping as jt
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geartrain import Input, Path
from geartrain.domain.tensors.tensor import (
    SIZES,
    Tensor,
    TensorSpec,
    check,
    heads,
    join_bytes,
    pack,
    pack_parts,
    split_bytes,
    unpack,
)
from geartrain.worker.loading.signature import read_parameters, read_signature
from geartrain.worker.values.arguments import ArgumentBinder, ArgumentError
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.outputs import Encoded, OutputEncoder

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
ml_dtypes: Any = importlib.import_module("ml_dtypes") if importlib.util.find_spec("ml_dtypes") else None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
needs_ml_dtypes = pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed")
Nd = np.ndarray

VALUES: list[tuple[str, list[Any], str]] = [  # datatype, values, struct's code
    ("BOOL", [True, False, True, True], "?"),
    ("UINT8", [0, 1, 255, 7], "B"),
    ("UINT16", [0, 1, 65535, 7], "H"),
    ("UINT32", [0, 1, 2**32 - 1, 7], "I"),
    ("UINT64", [0, 1, 2**64 - 1, 7], "Q"),
    ("INT8", [-128, 0, 127, 7], "b"),
    ("INT16", [-(2**15), 0, 2**15 - 1, 7], "h"),
    ("INT32", [-(2**31), 0, 2**31 - 1, 7], "i"),
    ("INT64", [-(2**63), 0, 2**63 - 1, 7], "q"),
    ("FP16", [-65504.0, 0.0, 0.5, 2.0**-24], "e"),
    ("FP32", [-1.5, 0.0, 16777216.0, 3.4028234663852886e38], "f"),
    ("FP64", [-1.5, 0.1, 1.7976931348623157e308, 5e-324], "d"),
]
_NAMES = "Bool UInt8 UInt16 UInt32 UInt64 Int8 Int16 Int32 Int64 Float16 Float32 Float64"
ANNOTATIONS = {row[0]: getattr(jt, name) for row, name in zip(VALUES, _NAMES.split(), strict=True)}


def model(annotation: Any, default: Any = ...) -> Callable[..., Any]:
    def run(x: Any) -> Any: ...

    run.__annotations__ = {"x": annotation, "return": None}
    if default is not ...:
        run.__defaults__ = (default,)
    return run


def bound(annotation: Any, tensor: Tensor | None = None, default: Any = ..., **values: Any) -> Any:
    """What `run()` gets for a tensor, or for JSON."""
    run = model(annotation, default)
    binder = ArgumentBinder(read_parameters(run, owner_name="run()"))
    return binder.bind(msgspec.json.encode(values), () if tensor is None else (tensor,))["x"]


def encoder_of(annotation: Any) -> OutputEncoder:
    def run() -> Any: ...

    run.__annotations__ = {"return": annotation}
    return OutputEncoder(read_signature(run, owner_name="run()").output)


def encoded(annotation: Any, value: Any, *, apart: bool = True) -> Encoded:
    return encoder_of(annotation).encode(value, no_folder, apart=apart)


def no_folder() -> Any:
    raise AssertionError("there is no file in this output")


def given_tensor(annotation: Any, value: Any) -> Tensor:
    """The one tensor of an output."""
    result = encoded(annotation, value)
    assert result.json == b"{}"
    assert result.tensors is not None
    (tensor,) = result.tensors
    return Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))


def given_json(annotation: Any, value: Any) -> Any:
    result = encoded(annotation, value, apart=False)
    assert result.tensors is None
    return json.loads(result.json)


def fault(annotation: Any, value: Any, *, apart: bool = True) -> str:
    with pytest.raises(OutputError) as raised:
        encoded(annotation, value, apart=apart)
    return str(raised.value)


def contents(values: list[Any], code: str) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


# every datatype


@pytest.mark.parametrize(("datatype", "values", "code"), VALUES)
def test_numpy(datatype: str, values: list[Any], code: str) -> None:
    annotation = ANNOTATIONS[datatype][Nd, "2 2"]
    nested = [values[:2], values[2:]]
    sent = Tensor("x", datatype, (2, 2), memoryview(contents(values, code)))
    for array in (bound(annotation, sent), bound(annotation, x=nested)):
        assert array.dtype == np.dtype(f"<{code}")
        assert array.tolist() == nested
        array[0, 0] = array[1, 1]  # it is the model's own
    array = np.array(nested, dtype=f"<{code}")
    for own in (array, array.astype(f">{code}")):  # in whichever order the model has its bytes
        assert given_tensor(annotation, own) == Tensor("output", datatype, (2, 2), contents(values, code))
        assert given_json(annotation, own) == nested


@needs_torch
@pytest.mark.parametrize(("datatype", "values", "code"), VALUES)
def test_torch(datatype: str, values: list[Any], code: str) -> None:
    annotation = ANNOTATIONS[datatype][torch.Tensor, "2 2"]
    nested = [values[:2], values[2:]]
    sent = Tensor("x", datatype, (2, 2), memoryview(contents(values, code)))
    for array in (bound(annotation, sent), bound(annotation, x=nested)):
        assert isinstance(array, torch.Tensor)
        assert array.tolist() == nested
        assert given_tensor(annotation, array) == Tensor("output", datatype, (2, 2), contents(values, code))
        assert given_json(annotation, array) == nested
        array[0, 0] = array[1, 1]


BFLOATS = [1.0, -2.5, 0.0, 3.3895313892515355e38]
BFLOAT_BITS = b"".join(struct.pack("<f", value)[2:] for value in BFLOATS)


@needs_torch
def test_bfloat16_of_torch() -> None:
    annotation = jt.BFloat16[torch.Tensor, "2 2"]
    nested = [BFLOATS[:2], BFLOATS[2:]]
    for array in (bound(annotation, Tensor("x", "BF16", (2, 2), BFLOAT_BITS)), bound(annotation, x=nested)):
        assert array.dtype == torch.bfloat16
        assert array.tolist() == nested
        assert given_tensor(annotation, array) == Tensor("output", "BF16", (2, 2), BFLOAT_BITS)
        assert given_json(annotation, array) == nested
    assert bound(jt.BFloat16[torch.Tensor, ""], x=1).shape == ()
    assert given_tensor(annotation, torch.tensor(nested)).data == BFLOAT_BITS  # float32, rounded
    assert given_tensor(jt.Float32[torch.Tensor, "2 2"], array).data == contents(BFLOATS, "f")


@needs_ml_dtypes
def test_bfloat16_of_numpy() -> None:
    annotation = jt.BFloat16[Nd, "2 2"]
    nested = [BFLOATS[:2], BFLOATS[2:]]
    for array in (bound(annotation, Tensor("x", "BF16", (2, 2), BFLOAT_BITS)), bound(annotation, x=nested)):
        assert array.dtype == ml_dtypes.bfloat16
        assert array.astype(np.float32).tolist() == nested
        assert given_tensor(annotation, array) == Tensor("output", "BF16", (2, 2), BFLOAT_BITS)
        assert given_json(annotation, array) == nested


@needs_torch
@given(st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda value: abs(value) < 3.38e38))
def test_bfloat16_is_rounded_as_torch_does(value: float) -> None:
    made = bound(jt.BFloat16[torch.Tensor, ""], x=value)
    assert made.item() == torch.tensor(value, dtype=torch.float32).bfloat16().item()


@needs_torch
def test_torch_tensor_of_any_layout_that_learns() -> None:
    value = torch.arange(6, dtype=torch.float32, requires_grad=True).reshape(2, 3).T
    tensor = given_tensor(jt.Float32[torch.Tensor, "3 2"], value)
    assert (tensor.shape, tensor.data) == ((3, 2), contents([0, 3, 1, 4, 2, 5], "f"))
    assert given_json(jt.Float32[torch.Tensor, "3 2"], value) == [[0, 3], [1, 4], [2, 5]]


def test_any_other_byte_than_0_is_true() -> None:
    made = bound(jt.Bool[Nd, "3"], Tensor("x", "BOOL", (3,), b"\x00\x02\xff"))
    assert made.tolist() == [False, True, True]


# strings and bytes

TEXTS = ["", "zwölf", "a b"]


@pytest.mark.parametrize("scalar", [np.str_, np.bytes_, np.object_])
def test_bytes_of_numpy(scalar: Any) -> None:
    annotation = npt.NDArray[scalar]
    elements = [text.encode() for text in TEXTS]
    sent = Tensor("x", "BYTES", (3, 1), join_bytes(elements))
    expected = [[text] for text in (TEXTS if scalar is np.str_ else elements)]
    for array in (bound(annotation, sent), bound(annotation, x=[[text] for text in TEXTS])):
        assert np.issubdtype(array.dtype, scalar)
        assert array.tolist() == expected
        assert given_tensor(annotation, array) == Tensor("output", "BYTES", (3, 1), join_bytes(elements))
        assert given_json(annotation, array) == [[text] for text in TEXTS]


def test_list_of_bytes() -> None:
    raw = [b"", b"\xff\x00", b"abc"]
    assert bound(list[bytes], Tensor("x", "BYTES", (3,), join_bytes(raw))) == raw
    assert bound(list[bytes], x=TEXTS) == [text.encode() for text in TEXTS]
    assert given_tensor(list[bytes], raw) == Tensor("output", "BYTES", (3,), join_bytes(raw))
    assert given_tensor(list[bytes], []) == Tensor("output", "BYTES", (0,), b"")
    assert given_json(list[bytes], [b"abc"]) == ["abc"]
    assert fault(list[bytes], raw, apart=False) == "output holds bytes that are no UTF-8 text, which JSON cannot carry"


def test_bytes_that_are_no_text_stay_what_they_are_in_an_array_of_objects() -> None:
    raw = [b"\xff\x00\x00", b""]
    array = bound(npt.NDArray[np.object_], Tensor("x", "BYTES", (2,), join_bytes(raw)))
    assert array.tolist() == raw


# shapes


@pytest.mark.parametrize(
    ("annotation", "value", "shape"),
    [
        (jt.Float32[Nd, ""], 1.5, ()),
        (jt.Float32[Nd, "n"], [], (0,)),
        (jt.Float32[Nd, "n 3"], [], (0, 3)),
        (jt.Float32[Nd, "n m"], [], (0, 0)),
        (jt.Float32[Nd, "n m 3"], [[], []], (2, 0, 3)),
        (jt.Float32[Nd, "..."], [], (0,)),
        (jt.Float32[Nd, "..."], [[], []], (2, 0)),
        (jt.Float32[Nd, "..."], 2, ()),
        (npt.NDArray[np.float32], [[[1]]], (1, 1, 1)),
        (npt.NDArray[np.str_], [], (0,)),
        (npt.NDArray[np.object_], [["a"], ["b"]], (2, 1)),
        (npt.NDArray[np.str_], "a", ()),
    ],
    ids=str,
)
def test_shapes_of_nested_lists(annotation: Any, value: Any, shape: tuple[int, ...]) -> None:
    assert bound(annotation, x=value).shape == shape


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    return st.sampled_from([np.dtype(f"<{code}") for _, _, code in VALUES])


def arrays(kinds: st.SearchStrategy[np.dtype[Any]]) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    return kinds.flatmap(lambda kind: shapes.flatmap(lambda shape: hnp.arrays(kind, shape)))


@settings(max_examples=150)
@given(arrays(dtypes()), st.booleans())
def test_any_array_comes_back_as_it_went(array: Any, transposed: bool) -> None:
    array = array.T if transposed else array
    annotation = npt.NDArray[array.dtype.type]
    given = given_tensor(annotation, array)
    check(TensorSpec("output", given.datatype, array.shape), given)
    back = bound(annotation, Tensor("x", given.datatype, given.shape, given.data))
    assert (back.shape, back.dtype, back.tobytes()) == (array.shape, array.dtype, array.tobytes())
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        assert "which JSON cannot carry" in fault(annotation, array, apart=False)
    elif 0 not in array.shape:
        again = bound(annotation, x=given_json(annotation, array))
        np.testing.assert_array_equal(again, array, strict=True)


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=5)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    datatype = draw(st.sampled_from([*SIZES, "BYTES"]))
    count = math.prod(shape)
    if datatype == "BYTES":
        data = join_bytes(draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count)))
    else:
        size = count * SIZES[datatype]
        data = draw(st.binary(min_size=size, max_size=size))
    return Tensor(draw(texts), datatype, shape, data)


@given(st.dictionaries(texts, st.integers()), st.lists(tensors(), max_size=4))
def test_packed_comes_back_as_it_was(values: dict[str, int], given: list[Tensor]) -> None:
    text = msgspec.json.encode(values)
    packed = b"".join(pack(text, given))
    json_text, back = unpack(packed)
    assert json_text == text
    assert [Tensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in back] == given
    assert all((len(packed) == 0 or packed.index(bytes(t.data)) >= 0) and t.data.readonly for t in back)  # type: ignore[union-attr]


def test_contents_of_packed_tensors_are_aligned() -> None:
    data = bytes(range(8))
    packed = b"".join(pack(b"{}", [Tensor("a", "UINT8", (1,), b"\xff"), Tensor("b", "FP64", (1,), data)]))
    assert packed.index(data) % 64 == 0


def test_large_names_and_shapes_find_room() -> None:
    given = [Tensor("é" * 10_000, "UINT8", (1,) * 1000, b"1"), Tensor("", "INT64", (0, 2**40), b"")]
    assert unpack(b"".join(pack(b"[1]", given)))[1] == given


# defaults


def test_defaults() -> None:
    annotation = jt.Float32[Nd, "2"]
    assert bound(annotation | None) is None
    assert bound(annotation | None, default=None) is None
    for default in ([1.0, 2], np.array([1.0, 2.0]), Input(default=[1, 2])):
        made = bound(annotation, default=default)
        assert (made.dtype, made.tolist()) == (np.float32, [1.0, 2.0])
    assert bound(annotation, Tensor("x", "FP32", (2,), contents([3, 4], "f")), default=[1, 2]).tolist() == [3.0, 4.0]
    assert bound(list[bytes], default=[b"\xff"]) == [b"\xff"]


def test_each_prediction_has_a_default_of_its_own() -> None:
    default = np.zeros(2, np.float32)
    run = model(jt.Float32[Nd, "2"], default)
    binder = ArgumentBinder(read_parameters(run, owner_name="run()"))
    first = binder.bind(b"{}")["x"]
    first += 1
    assert binder.bind(b"{}")["x"].tolist() == default.tolist() == [0.0, 0.0]


def test_text_that_is_none_is_told_by_the_name_of_the_input() -> None:
    with pytest.raises(ArgumentError, match=r"input\.x: UnicodeDecodeError"):
        bound(npt.NDArray[np.str_], Tensor("x", "BYTES", (1,), join_bytes([b"\xff"])))


# outputs that are not as declared

CASTS = [
    (jt.Float32[Nd, "2"], np.array([0.1, 2]), contents([0.1, 2], "f")),
    (jt.Float32[Nd, "2"], np.array([1, 2]), contents([1, 2], "f")),
    (jt.Float64[Nd, "2"], np.array([0.5, 2], np.float16), contents([0.5, 2], "d")),
    (jt.Int8[Nd, "2"], np.array([-128, 127]), contents([-128, 127], "b")),
    (jt.UInt64[Nd, "2"], np.array([0, 1], np.int8), contents([0, 1], "Q")),
    (jt.Int64[Nd, "2"], [3, 4], contents([3, 4], "q")),
    (jt.Float32[Nd, ""], np.float32(1.5), contents([1.5], "f")),
    (jt.Float32[Nd, ""], 1.5, contents([1.5], "f")),
    (jt.Bool[Nd, "2"], [True, False], b"\x01\x00"),
]


@pytest.mark.parametrize(("annotation", "value", "data"), CASTS, ids=str)
def test_cast_where_nothing_but_precision_is_lost(annotation: Any, value: Any, data: bytes) -> None:
    assert given_tensor(annotation, value).data == data
    given_json(annotation, value)


class Strange:
    """Nothing that an array can be made of; its text is the same in every run."""

    def __repr__(self) -> str:
        return "strange"


FAULTS = [
    (jt.Float32[Nd, "n 3"], np.zeros((2, 4), "f"), "output has the shape [2, 4], and [-1, 3] is declared"),
    (jt.Float32[Nd, "n 3"], np.zeros(3, "f"), "output has the shape [3], and [-1, 3] is declared"),
    (jt.Float32[Nd, ""], np.zeros(1, "f"), "output has the shape [1], and [] is declared"),
    (jt.Int64[Nd, "2"], np.zeros(2), "output is FP64, and INT64 is declared"),
    (jt.Bool[Nd, "2"], np.zeros(2, "i8"), "output is INT64, and BOOL is declared"),
    (jt.Int64[Nd, "2"], np.zeros(2, bool), "output is BOOL, and INT64 is declared"),
    (jt.Float32[Nd, "2"], np.zeros(2, "c8"), "output is an array of complex64, and FP32 is declared"),
    (jt.Float32[Nd, "2"], "text", "output is of type str, and FP32 is declared"),
    (jt.Float32[Nd, "2"], Strange(), "output is of type Strange, and FP32 is declared"),
    (jt.Float32[Nd, "2"], None, "output is None, and FP32 [2] is declared"),
    (npt.NDArray[np.float32], None, "output is None, and FP32 is declared"),
    (jt.Int8[Nd, "1"], [128], "output is INT64, and holds values that are not in the range of the declared INT8"),
    (jt.UInt8[Nd, "1"], [-1], "output is INT64, and holds values that are not in the range of the declared UINT8"),
    (jt.Float32[Nd, "1"], [1e39], "output is FP64, and holds values beyond the range of the declared FP32"),
    (npt.NDArray[np.str_], np.zeros(2), "output is an array of float64, and BYTES is declared"),
    (npt.NDArray[np.str_], [1], "output holds an element of type int, and BYTES is declared"),
]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("annotation", "value", "text"), FAULTS, ids=str)
def test_wrong_output(annotation: Any, value: Any, text: str, apart: bool) -> None:
    assert fault(annotation, value, apart=apart) == text


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("shape", "given", "text"),
    [
        ("... 3", (2, 4), "output has the shape [2, 4], and [..., 3] is declared"),
        ("... 3", (), "output has the shape [], and [..., 3] is declared"),
        ("batch ... 3", (3,), "output has the shape [3], and [-1, ..., 3] is declared"),
        ("*batch n n", (5, 2, 3), "output has the shape [5, 2, 3], and [..., n, n] is declared"),
    ],
)
def test_o7_fixed_part_of_a_variadic_output_is_checked(
    shape: str, given: tuple[int, ...], text: str, apart: bool
) -> None:
    assert fault(jt.Float32[Nd, shape], np.zeros(given, "f"), apart=apart) == text


def test_ragged_output() -> None:
    assert fault(jt.Float32[Nd, "2"], [[1], [1, 2]]).startswith("output is of type list, which is no array: ")


def test_nan_is_a_value_of_a_tensor_and_not_of_json() -> None:
    annotation = jt.Float32[Nd, "2 2"]
    value = np.array([[0, 1], [math.nan, 2]], np.float32)
    assert given_tensor(annotation, value).data == value.tobytes()
    expected = "output[1][0] is NaN, which JSON cannot carry; return None or a string instead"
    assert fault(annotation, value, apart=False) == expected


# records


class Result(NamedTuple):
    scores: jt.Float32[Nd, "n"]
    label: str
    more: jt.Int64[Nd, "n"] | None = None


@dataclasses.dataclass
class Data:
    scores: jt.Float32[Nd, "n"]
    label: str


@pytest.mark.parametrize(
    "value",
    [Result(np.ones(2, "f"), "a"), Data(np.ones(2, "f"), "a"), {"scores": np.ones(2, "f"), "label": "a"}],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [Result, Data])
def test_fields_of_a_record(annotation: Any, value: Any) -> None:
    result = encoded(annotation, value)
    assert result.tensors is not None
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in result.tensors] == [
        ("scores", "FP32", (2,), contents([1, 1], "f"))
    ]
    assert json.loads(result.json) == {"label": "a"}
    plain = given_json(annotation, value)
    assert (plain["scores"], plain["label"], plain.get("more")) == ([1.0, 1.0], "a", None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"label": "a"}, "output.scores is None, and FP32 [-1] is declared"),
        (Data(np.ones((1, 2), "f"), "a"), "output.scores has the shape [1, 2], and [-1] is declared"),
        (Data(np.array(["a"]), "a"), "output.scores is an array of text, and FP32 is declared"),
        (7, "output is of type int, and a record with the fields scores, label, more is declared"),
        (None, "output is of type NoneType, and a record with the fields scores, label, more is declared"),
    ],
    ids=str,
)
def test_wrong_record(value: Any, text: str) -> None:
    assert fault(Result, value) == fault(Result, value, apart=False) == text


def test_optional_record_may_be_none() -> None:
    result = encoded(Result | None, None)
    assert (result.json, result.tensors) == (b"{}", ())
    assert given_json(Result | None, None) is None


def test_files_beside_tensors(tmp_path: Any) -> None:
    class WithFile(NamedTuple):
        scores: npt.NDArray[np.float32]
        file: Path

    picture = tmp_path / "a.png"
    picture.write_text("x")
    folder = tmp_path / "out"
    folder.mkdir()
    result = encoder_of(WithFile).encode(WithFile(np.ones(1, "f"), Path(picture)), lambda: folder, apart=True)
    assert json.loads(result.json) == {"file": result.files[0].token}
    assert result.tensors is not None
    assert [tensor.name for tensor in result.tensors] == ["scores"]


def test_no_contents_are_copied_on_the_way_out() -> None:
    array = np.arange(1000, dtype=np.float32)
    (tensor,) = encoded(npt.NDArray[np.float32], array).tensors or ()
    array[0] = 7
    assert bytes(tensor.data[:4]) == struct.pack("<f", 7)
    assert split_bytes("x", join_bytes([b"a"])) == [b"a"]


@given(st.lists(st.lists(tensors(), min_size=1, max_size=3, unique_by=lambda each: each.datatype), max_size=70))
def test_heads_that_are_kept_are_those_of_any_output(outputs: list[list[Tensor]]) -> None:
    for output in outputs + outputs[::-1]:
        named = [msgspec.structs.replace(each, name=each.datatype) for each in output]
        parts = [part for head, each in zip(heads(named), named, strict=True) for part in (head, each.data)]
        packed = b"".join(parts)
        assert packed == b"".join(pack(b"{}", named))
        assert packed == b"".join(pack_parts(b"{}", [(each, (each.data,)) for each in named]))
        json, found = unpack(packed)
        assert json == b"{}"
        assert [msgspec.structs.replace(each, data=bytes(each.data)) for each in found] == [
            msgspec.structs.replace(each, data=bytes(each.data)) for each in named
        ]
