"""A model's inputs and outputs as tensors: the rule for each kind of the signature, and each error's sentence."""

# ruff: noqa: F722, UP037, UP045 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import base64
import enum
import json
import math
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, NamedTuple, Optional, TypedDict

import jaxtyping as jt
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from geartrain import BaseModel, ConcatenateIterator, File, Input, Path, Secret
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.tensor_view import Bound, TensorView
from geartrain.domain.tensors.tensor import (
    DATATYPES,
    Tensor,
    TensorSpec,
    check,
    check_size,
    join_bytes,
    pack,
    split_bytes,
)
from geartrain.worker.loading.signature import read_signature
from tests.support.ids import short

Nd = np.ndarray


def view_of(run: Callable[..., Any]) -> TensorView:
    return TensorView(read_signature(run, owner_name="run()"))


def view_of_input(annotation: Any) -> TensorView:
    def run(x: Any) -> None: ...

    run.__annotations__ = {"x": annotation}
    return view_of(run)


def view_of_output(annotation: Any) -> TensorView:
    def run() -> Any: ...

    run.__annotations__ = {"return": annotation}
    return view_of(run)


def strings(*values: str | bytes) -> bytes:
    return join_bytes([value.encode() if isinstance(value, str) else value for value in values])


def numbers(code: str, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Typed(TypedDict):
    a: int
    b: list[str]


class Model(BaseModel):
    a: int
    b: Optional[str] = None


INPUTS: list[tuple[Any, tuple[str, tuple[int, ...]], bytes, Any]] = [
    (str, ("BYTES", (1,)), strings("zwölf"), "zwölf"),
    (Secret, ("BYTES", (1,)), strings("s"), "s"),
    (Literal["a", "b"], ("BYTES", (1,)), strings("a"), "a"),
    (Color, ("BYTES", (1,)), strings("red"), "red"),
    (int, ("INT64", (1,)), numbers("q", -7), -7),
    (Level, ("INT64", (1,)), numbers("q", 1), 1),
    (float, ("FP64", (1,)), numbers("d", 0.1), 0.1),
    (bool, ("BOOL", (1,)), b"\x01", True),
    (list[str], ("BYTES", (-1,)), strings("a", "", "c"), ["a", "", "c"]),
    (list[int], ("INT64", (-1,)), numbers("q", 1, 2), [1, 2]),
    (list[float], ("FP64", (-1,)), b"", []),
    (list[bool], ("BOOL", (-1,)), b"\x00\x02", [False, True]),
    (Path, ("BYTES", (1,)), strings("https://a.example/b.png"), "https://a.example/b.png"),
    (Path, ("BYTES", (1,)), strings("DATA:text/plain,a"), "DATA:text/plain,a"),
    (Path, ("BYTES", (1,)), strings(base64.b64encode(b"abc")), "data:;base64,YWJj"),
    (Path, ("BYTES", (1,)), strings(b"\x89PNG\r\n"), "data:;base64," + base64.b64encode(b"\x89PNG\r\n").decode()),
    (File, ("BYTES", (1,)), strings("http://a"), "http://a"),
    (list[Path], ("BYTES", (-1,)), strings("http://a", b"\xff"), ["http://a", "data:;base64,/w=="]),
    (dict, ("BYTES", (1,)), strings('{"a": [1, 2.5]}'), {"a": [1, 2.5]}),
    (Any, ("BYTES", (1,)), strings("{}"), {}),
    (Typed, ("BYTES", (1,)), strings('{"a":1,"b":[]}'), {"a": 1, "b": []}),
    (Model, ("BYTES", (1,)), strings('{"a":1}'), {"a": 1}),
    (list[dict], ("BYTES", (-1,)), strings("{}", '{"a":1}'), [{}, {"a": 1}]),  # type: ignore[type-arg]
    (list[list[int]], ("BYTES", (-1,)), strings("[1]", "[]"), [[1], []]),
    (int | str, ("BYTES", (1,)), strings('"7"'), "7"),
    (Optional[int], ("INT64", (1,)), numbers("q", 5), 5),
]


@pytest.mark.parametrize(("annotation", "spec", "data", "value"), INPUTS, ids=short)
def test_input(annotation: Any, spec: tuple[str, tuple[int, ...]], data: bytes, value: Any) -> None:
    view = view_of_input(annotation)
    (described,) = view.inputs
    assert (described.datatype, described.shape) == spec
    count = len(value) if isinstance(value, list) else 1
    bound = view.bind([Tensor("x", spec[0], (count,), data)])
    assert json.loads(bound.json) == {"x": value}
    assert bound.tensors == ()


def test_optional_and_defaulted_inputs_may_be_left_out() -> None:
    def run(a: Optional[str], b: int = 3, c: Optional[jt.Float32[Nd, "2"]] = None) -> None: ...

    view = view_of(run)
    assert [spec.optional for spec in view.inputs] == [True, True, True]
    assert view.bind([]).json == b"{}"


def test_tensors_pass_as_they_are_beside_the_json() -> None:
    def run(x: jt.Float32[Nd, "n 2"], label: str, y: npt.NDArray[np.uint8]) -> None: ...

    view = view_of(run)
    x, y = Tensor("x", "FP32", (1, 2), bytes(8)), Tensor("y", "UINT8", (), b"1")
    bound = view.bind([y, Tensor("label", "BYTES", (1,), strings("a")), x])
    assert bound.json == b'{"label":"a"}'
    assert bound.tensors == (y, x)
    assert view.inputs == (
        TensorSpec("x", "FP32", (-1, 2)),
        TensorSpec("label", "BYTES", (1,)),
        TensorSpec("y", "UINT8", (-1,), variadic=True),
    )
    assert (view.has_tensors, view.gives_tensors) == (True, False)


# shapes with "..."


def run_of_variadics(
    last: jt.Float32[Nd, "... 3"], between: jt.Float32[Nd, "2 ... n n"], square: jt.Float32[Nd, "n n"]
) -> None: ...


VARIADICS = {"last": (2, 3), "between": (2, 5, 4, 4), "square": (2, 2)}


def bind_variadics(**shapes: tuple[int, ...]) -> Bound:
    given = {**VARIADICS, **shapes}
    tensors = [Tensor(name, "FP32", shape, bytes(4 * math.prod(shape))) for name, shape in given.items()]
    return view_of(run_of_variadics).bind(tensors)


@pytest.mark.parametrize(
    "shapes", [{}, {"last": (3,)}, {"last": (1, 2, 0, 3)}, {"between": (2, 1, 1)}, {"between": (2, 1, 1, 1, 0, 0)}]
)
def test_o7_fixed_part_of_a_variadic_shape_fits(shapes: dict[str, tuple[int, ...]]) -> None:
    assert [tensor.shape for tensor in bind_variadics(**shapes).tensors] == list({**VARIADICS, **shapes}.values())


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"last": (2, 4)}, "unexpected shape for input 'last'. Expected [..., 3], got [2, 4]"),
        ({"last": ()}, "Expected [..., 3], got []"),
        ({"between": (2, 3)}, "unexpected shape for input 'between'. Expected [2, ..., n, n], got [2, 3]"),
        ({"between": (3, 2, 2)}, "Expected [2, ..., n, n], got [3, 2, 2]"),
        ({"between": (2, 1, 2, 3)}, "Expected [2, ..., n, n], got [2, 1, 2, 3]"),
        ({"square": (2, 3)}, "unexpected shape for input 'square'. Expected [n, n], got [2, 3]"),
    ],
)
def test_o7_fixed_part_of_a_variadic_shape_is_checked(shapes: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(GeartrainError, match=re.escape(text)):
        bind_variadics(**shapes)


# what is refused


def run_of_all(
    x: jt.Float32[Nd, "n 2"],
    texts: npt.NDArray[np.str_],
    name: str = "",
    number: int = 0,
    many: list[float] = Input(default=[]),
    file: Optional[Path] = None,
    anything: Optional[dict[str, Any]] = None,
) -> None: ...


X = Tensor("x", "FP32", (1, 2), bytes(8))
TEXTS = Tensor("texts", "BYTES", (1,), strings("a"))
PLEASE = "Please provide all required inputs."
REFUSED: list[tuple[list[Tensor], str]] = [
    (
        [X],
        f"expected between 2 and 7 inputs but got 1: missing required input(s) ['texts']. {PLEASE}",
    ),
    (
        [],
        f"expected between 2 and 7 inputs but got 0: missing required input(s) ['x', 'texts']. {PLEASE}",
    ),
    (
        [Tensor("z", "FP32", (), b"")],
        "unexpected inference input 'z'; the inputs are: ['x', 'texts', 'name', 'number', 'many', 'file', 'anything']",
    ),
    ([X, X], "input 'x' already exists in request"),
    ([Tensor("x", "FP64", (1, 2), bytes(16))], "input 'x' has datatype FP64; the model expects FP32"),
    ([Tensor("x", "FP32", (2,), bytes(8))], "unexpected shape for input 'x'. Expected [-1, 2], got [2]"),
    ([Tensor("x", "FP32", (1, 3), bytes(12))], "unexpected shape for input 'x'. Expected [-1, 2], got [1, 3]"),
    ([Tensor("x", "FP32", (-1, 2), b"")], "unexpected shape for input 'x'. Expected [-1, 2], got [-1, 2]"),
    (
        [Tensor("x", "FP32", (1, 2), bytes(7))],
        "input byte size mismatch for input 'x'. Expected 8 bytes for shape [1, 2] of FP32, got 7",
    ),
    ([Tensor("x", "FP32", (2**50, 2), b"")], f"input 'x' of shape [{2**50}, 2] has too many elements"),
    ([Tensor("texts", "BYTES", (-1,), b"")], "unexpected shape for input 'texts'. Expected [...], got [-1]"),
    (
        [Tensor("texts", "BYTES", (2,), strings("a"))],
        "unexpected number of string elements for input 'texts': 1 for 2",
    ),
    (
        [Tensor("texts", "BYTES", (1,), b"\x05\0\0\0abc")],
        "incomplete string data for input 'texts': a string of 5 bytes, but 3 bytes left",
    ),
    (
        [Tensor("texts", "BYTES", (1,), b"\x05\0")],
        "incomplete string length indicator for input 'texts': 2 bytes of 4",
    ),
    (
        [Tensor("texts", "BYTES", (1,), strings(b"\xff"))],
        "input 'texts' is text, and its bytes are not valid UTF-8",
    ),
    (
        [Tensor("name", "BYTES", (1,), strings(b"\xff"))],
        "input 'name' is text, and its bytes are not valid UTF-8",
    ),
    ([Tensor("name", "BYTES", (2,), strings("a", "b"))], "unexpected shape for input 'name'. Expected [1], got [2]"),
    ([Tensor("name", "BYTES", (1,), b"abc")], "incomplete string length indicator for input 'name': 3 bytes of 4"),
    (
        [Tensor("number", "INT64", (1,), bytes(4))],
        "input byte size mismatch for input 'number'. Expected 8 bytes for shape [1] of INT64, got 4",
    ),
    ([Tensor("number", "INT32", (1,), bytes(4))], "input 'number' has datatype INT32; the model expects INT64"),
    ([Tensor("many", "FP64", (), bytes(8))], "unexpected shape for input 'many'. Expected [-1], got []"),
    (
        [Tensor("many", "FP64", (2**50,), bytes(8))],
        f"input 'many' of shape [{2**50}] has too many elements",
    ),
    (
        [Tensor("file", "BYTES", (1,), b"\xff\xff\xff\xff")],
        "incomplete string data for input 'file': a string of 4294967295 bytes, but 0 bytes left",
    ),
    (
        [Tensor("anything", "BYTES", (1,), strings("{"))],
        "input 'anything' takes JSON, and its bytes are none: Input data was truncated",
    ),
]


@pytest.mark.parametrize(("tensors", "message"), REFUSED, ids=short)
def test_t5_what_is_refused_is_the_client_s_fault(tensors: list[Tensor], message: str) -> None:
    with pytest.raises(GeartrainError) as raised:
        view_of(run_of_all).bind(tensors)
    assert (raised.value.code, raised.value.message) == (Code.INVALID_TENSOR, message)


def test_exact_number_of_inputs_is_named_where_none_is_optional() -> None:
    with pytest.raises(GeartrainError, match=r"expected 1 input\(s\) but got 0"):
        view_of_input(str).bind([])


def test_nan_is_no_json_number() -> None:
    """What comes as a tensor into an input that is none has to survive as JSON."""
    for value in (float("nan"), float("inf")):
        with pytest.raises(GeartrainError) as raised:
            view_of_input(float).bind([Tensor("x", "FP64", (1,), numbers("d", value))])
        assert raised.value.code is Code.INVALID_TENSOR
        assert "'x'" in raised.value.message


def test_json_nested_too_deeply_is_refused() -> None:
    data = strings("[" * 100_000)
    with pytest.raises(GeartrainError, match="takes JSON, and its bytes are none"):
        view_of_input(dict).bind([Tensor("x", "BYTES", (1,), data)])


# outputs


class Named(NamedTuple):
    y: jt.Float32[Nd, "n 2"]
    label: str
    more: jt.Int64[Nd, ""] | None = None


OUTPUTS: list[tuple[Any, Any, tuple[int, ...], list[Tensor]]] = [
    (str, "zwölf", (1,), [Tensor("output", "BYTES", (1,), strings("zwölf"))]),
    (int, 7, (1,), [Tensor("output", "INT64", (1,), numbers("q", 7))]),
    (int, 7.0, (1,), [Tensor("output", "INT64", (1,), numbers("q", 7))]),
    (float, 7, (1,), [Tensor("output", "FP64", (1,), numbers("d", 7))]),
    (bool, True, (1,), [Tensor("output", "BOOL", (1,), b"\x01")]),
    (list[str], ["a", "b"], (-1,), [Tensor("output", "BYTES", (2,), strings("a", "b"))]),
    (list[float], [], (-1,), [Tensor("output", "FP64", (0,), b"")]),
    (dict, {"a": 1}, (1,), [Tensor("output", "BYTES", (1,), strings('{"a":1}'))]),
    (Any, [1], (1,), [Tensor("output", "BYTES", (1,), strings("[1]"))]),
    (list[list[int]], [[1], []], (-1,), [Tensor("output", "BYTES", (2,), strings("[1]", "[]"))]),
    (Path, "data:,a", (1,), [Tensor("output", "BYTES", (1,), strings("data:,a"))]),
    (Optional[str], None, (1,), []),
    (str | int, "a", (1,), [Tensor("output", "BYTES", (1,), strings('"a"'))]),
]


@pytest.mark.parametrize(("annotation", "value", "shape", "tensors"), OUTPUTS, ids=short)
def test_output(annotation: Any, value: Any, shape: tuple[int, ...], tensors: list[Tensor]) -> None:
    view = view_of_output(annotation)
    assert [spec.shape for spec in view.outputs] == [shape]
    assert view.whole(msgspec.json.encode(value), []) == tensors


@pytest.mark.parametrize("record", [Typed, Optional[Typed]])
def test_fields_of_a_record_are_outputs(record: Any) -> None:
    view = view_of_output(record)
    assert view.names == ("a", "b")
    a, b = Tensor("a", "INT64", (1,), numbers("q", 1)), Tensor("b", "BYTES", (1,), strings("x"))
    assert view.whole(b'{"a":1,"b":["x"]}', []) == [a, b]
    assert view.whole(b"null", []) == []


def test_tensors_and_values_of_a_record() -> None:
    view = view_of_output(Named)
    assert view.outputs == (
        TensorSpec("y", "FP32", (-1, 2)),
        TensorSpec("label", "BYTES", (1,)),
        TensorSpec("more", "INT64", ()),
    )
    y = Tensor("y", "FP32", (1, 2), numbers("f", 1, 2))
    packed = b"".join(pack(b'{"label":"a","more":null}', [y]))
    assert view.whole(packed, []) == [y, Tensor("label", "BYTES", (1,), strings("a"))]
    assert view.gives_tensors


def test_value_that_is_not_what_was_declared_is_the_run_s_fault() -> None:
    for annotation, value in ((int, "a"), (int, 2**63), (str, 1), (list[int], [None]), (float, "x"), (int, [1, 2])):
        with pytest.raises(GeartrainError) as raised:
            view_of_output(annotation).whole(msgspec.json.encode(value), [])
        assert raised.value.code is Code.RUN_FAILED
        assert raised.value.message.startswith("output 'output' is declared as ")


def test_stream_is_one_tensor_along_its_first_dimension() -> None:
    view = view_of_output(Iterator[int])
    assert view.outputs == (TensorSpec("output", "INT64", (-1,)),)
    assert view.whole(b"[1,2]", [b"1", b"2"]) == [Tensor("output", "INT64", (2,), numbers("q", 1, 2))]
    assert view.whole(b"[]", []) == [Tensor("output", "INT64", (0,), b"")]
    assert view.one(b"1") == [Tensor("output", "INT64", (1,), numbers("q", 1))]


def test_stream_of_tensors() -> None:
    view = view_of_output(AsyncIterator[jt.Float32[Nd, "n 2"]])
    assert view.outputs == (TensorSpec("output", "FP32", (-1, 2)),)
    chunks = [
        b"".join(pack(b"{}", [Tensor("output", "FP32", (count, 2), numbers("f", *range(2 * count)))]))
        for count in (1, 0, 2)
    ]
    assert view.whole(b"", chunks) == [Tensor("output", "FP32", (3, 2), numbers("f", 0, 1, 0, 1, 2, 3))]
    assert view.whole(b"", []) == [Tensor("output", "FP32", (0, 2), b"")]


def test_stream_of_scalars_is_a_vector() -> None:
    view = view_of_output(Iterator[jt.Float32[Nd, ""]])
    assert view.outputs == (TensorSpec("output", "FP32", (-1,)),)
    chunk = b"".join(pack(b"{}", [Tensor("output", "FP32", (), numbers("f", 1))]))
    assert view.whole(b"", [chunk, chunk]) == [Tensor("output", "FP32", (2,), numbers("f", 1, 1))]


def test_stream_of_shapes_that_do_not_go_together() -> None:
    view = view_of_output(Iterator[jt.Float32[Nd, "n m"]])
    chunks = [b"".join(pack(b"{}", [Tensor("output", "FP32", (1, m), bytes(4 * m))])) for m in (1, 2)]
    with pytest.raises(GeartrainError, match="was yielded in shapes that cannot be joined; read it as a stream"):
        view.whole(b"", chunks)


def test_concatenated_text_is_one_text() -> None:
    view = view_of_output(ConcatenateIterator[str])
    assert view.outputs == (TensorSpec("output", "BYTES", (1,)),)
    assert view.whole(b"", [b'"a"', b'"b"']) == [Tensor("output", "BYTES", (1,), strings("ab"))]


def test_requested_outputs_must_be_there() -> None:
    view = view_of_output(Typed)
    view.check_requested(["b"])
    with pytest.raises(GeartrainError, match=r"unexpected inference output 'z'; the outputs are: \['a', 'b'\]"):
        view.check_requested(["a", "z"])


def test_sizes_of_every_datatype() -> None:
    for datatype in DATATYPES - {"BYTES"}:
        check_size(Tensor("x", datatype, (0, 3), b""))
        with pytest.raises(GeartrainError, match="input byte size mismatch"):
            check_size(Tensor("x", datatype, (3,), b"12345678901234567"))
    check(TensorSpec("x", "BYTES", (-1,)), Tensor("x", "BYTES", (2,), strings("", "a")))
    assert split_bytes("x", memoryview(strings("", "a"))) == [b"", b"a"]
