"""Outputs are held to the annotation of `run()`: what conforms, what does not, and what is said of it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import pathlib
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

from geartrain import BaseModel, ConcatenateIterator, File, Opaque, Path, Secret
from geartrain.worker.loading.signature import read_signature, return_text
from geartrain.worker.values.output_check import Contract
from geartrain.worker.values.outputs import OutputEncoder, OutputError
from tests.support.ids import short


class Color(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    HIGH = 3


class Scores(BaseModel):
    text: str
    scores: list[float]
    note: str | None = None


@dataclasses.dataclass
class Data:
    z: int
    inner: list[Scores] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    a: int
    b: NotRequired[str]


class Pydantic(pydantic.BaseModel):
    z: int
    when: datetime.date = datetime.date(2024, 1, 2)
    hidden: str = pydantic.Field("h", exclude=True)

    @pydantic.field_serializer("z")
    def as_text(self, z: int) -> str:
        return str(z)


class Node(BaseModel):
    name: str
    parts: list[Node]


class ByHand(BaseModel, auto_dataclass=False):
    x: int

    def __init__(self, x: Any) -> None:
        self.x = x


Scores3 = NDArray[np.float32]


def encoder_for(annotation: Any, *, warnings: list[str] | None = None) -> OutputEncoder:
    def run() -> Any:
        """Its annotation is that of the test."""

    run.__annotations__["return"] = annotation
    spec = read_signature(run, owner_name="run()").output
    what = f"run() is annotated {return_text(run, owner_name='run()')}"
    return OutputEncoder(spec, Contract(what, None if warnings is None else warnings.append))


def encode(encoder: OutputEncoder, value: Any, folder: pathlib.Path) -> bytes:
    """As a job does: the quick way, and else the complete one."""
    plain = encoder.encode_plain(value)
    return encoder.encode(value, lambda: folder).json if plain is None else plain


FINE: list[tuple[Any, Any]] = [
    (str, "x"), (str, Color.RED), (str, np.str_("x")), (str, datetime.date(2026, 1, 2)), (str, Secret("x")),
    (int, 5), (int, np.int64(5)), (int, Level.HIGH), (int, np.array(5)),
    (float, 0.5), (float, 5), (float, np.float32(0.5)), (float, np.int8(5)), (float, np.array(0.5)),
    (bool, True), (bool, np.bool_(True)),
    (int | None, None), (int | str, "x"), (list[int] | str, [1]),
    (Literal["a", "b"], "a"), (Literal[1, "a"], 1), (Color, Color.RED), (Color, "r"), (Literal["a"] | None, None),
    (list[int], [1, 2]), (list[int], (1, 2)), (list[int], {1}), (list[int], deque([1])), (list[int], np.array([1, 2])),
    (list[int], []), (list[float], [1, 0.5, np.float32(1)]), (list[list[float]], np.zeros((2, 2))),
    (list, ["x", 1]), (list[Any], ["x", None]), (list[int], iter([1])), (np.ndarray, np.array(1.5)),
    (tuple[int, str], (1, "x")), (set[str], {"x"}),
    (dict, {"a": 1}), (dict[str, int], {"a": 1}), (dict[int, float], {1: 2}), (dict, Scores("t", [])),
    (Any, "x"), (Any, 5), (object, "x"), (Annotated[int, Opaque], "x"), (list[Annotated[int, Opaque]], ["x"]),
    (dict[str, Any], {"a": None}),
    (Scores, Scores("t", [1, 0.5])), (Scores, {"text": "t", "scores": [1.0]}), (Scores, Scores("t", [], None)),
    (Scores, {"text": "t", "scores": (), "more": 1}),
    (Data, Data(1, [Scores("t", [])])), (list[Data], [Data(1)]), (ByHand, ByHand(1)),
    (Typed, {"a": 1}), (Typed, {"a": 1, "b": "x"}),
    (Pydantic, Pydantic.model_validate({"z": 1})), (Pydantic, {"z": 1, "when": "2024-01-02", "hidden": "x"}),
    (Node, Node("a", [Node("b", [])])),
    (datetime.date, datetime.date(2026, 1, 2)), (uuid.UUID, uuid.UUID(int=1)),
    (Iterator[int], 5), (Iterator, "x"), (ConcatenateIterator[str], "x"), (None, None),
    (list[NDArray[np.float32]], [np.zeros(2, np.float32)]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value"), FINE, ids=short)
def test_c10_what_conforms(annotation: Any, value: Any, tmp_path: pathlib.Path) -> None:
    encoder = encoder_for(annotation)
    for _ in range(2):  # a type that has been seen is looked at in another way
        if not isinstance(value, Iterator):
            assert encode(encoder, value, tmp_path) == OutputEncoder(encoder._spec).encode(value, lambda: tmp_path).json
    batched = encoder.encode_all_plain([value, value])
    assert batched is None or batched == [encode(encoder, value, tmp_path)] * 2


WRONG: list[tuple[Any, Any, str]] = [
    (int, "x", "output: run() is annotated int, and returned a str: 'x'"),
    (int, 7.0, "output: run() is annotated int, and returned a float: 7.0"),
    (int, True, "output: run() is annotated int, and returned a bool: True"),
    (int, None, "output: run() is annotated int, and returned None"),
    (int, [1], "output: run() is annotated int, and returned a list: [1]"),
    (int, np.float64(1), "output: run() is annotated int, and returned a float64: "),
    (int, np.array([1]), "output: run() is annotated int, and returned a ndarray: array([1])"),
    (float, True, "output: run() is annotated float, and returned a bool: True"),
    (float, "0.5", "output: run() is annotated float, and returned a str: '0.5'"),
    (bool, 1, "output: run() is annotated bool, and returned an int: 1"),
    (str, 5, "output: run() is annotated str, and returned an int: 5"),
    (str, None, "output: run() is annotated str, and returned None"),
    (str, {"a": 1}, "output: run() is annotated str, and returned a dict: {'a': 1}"),
    (int | None, "x", "output: run() is annotated int | None, and returned a str: 'x'"),
    (int | str, 0.5, "output: run() is annotated int | str, and returned a float: 0.5"),
    (list[int] | str, [1, "x"],
     "output[1]: run() is annotated list[int] | str, and returned a str where int is wanted: 'x'"),
    (Literal["a", "b"], "c", "output: run() is annotated Literal['a', 'b'], and returned a str: 'c'"),
    (Literal[1], True, "output: run() is annotated Literal[1], and returned a bool: True"),
    (Color, "x", "output: run() is annotated Color, and returned a str where Literal['r'] is wanted: 'x'"),
    (list[int], 5, "output: run() is annotated list[int], and returned an int: 5"),
    (list[str], "ab", "output: run() is annotated list[str], and returned a str: 'ab'"),
    (list[int], {"a": 1}, "output: run() is annotated list[int], and returned a dict: {'a': 1}"),
    (list[int], None, "output: run() is annotated list[int], and returned None"),
    (list[int], [1, 2, "x"], "output[2]: run() is annotated list[int], and returned a str where int is wanted: 'x'"),
    (list[int], np.array([0.5]),
     "output[0]: run() is annotated list[int], and returned a float where int is wanted: 0.5"),
    (list[list[int]], [[1], [2, None]],
     "output[1][1]: run() is annotated list[list[int]], and returned None where int is wanted"),
    (dict, [1], "output: run() is annotated dict, and returned a list: [1]"),
    (dict[str, int], {"a": 1, "b c": "x"},
     "output['b c']: run() is annotated dict[str, int], and returned a str where int is wanted: 'x'"),
    (Scores, {"text": "t"}, "output: run() is annotated Scores, and returned no field 'scores'"),
    (Scores, Scores("t", [0.5, "x"]),  # type: ignore[list-item]
     "output.scores[1]: run() is annotated Scores, and returned a str where float is wanted: 'x'"),
    (Scores, "t", "output: run() is annotated Scores, and returned a str: 't'"),
    (Data, Data(1, [Scores("t", []), Scores(5, [])]),  # type: ignore[arg-type]
     "output.inner[1].text: run() is annotated Data, and returned an int where str is wanted: 5"),
    (ByHand, ByHand("x"), "output.x: run() is annotated ByHand, and returned a str where int is wanted: 'x'"),
    (Typed, {"a": 1, "b": 2}, "output.b: run() is annotated Typed, and returned an int where str is wanted: 2"),
    (Pydantic, Pydantic.model_construct(z="x"),
     "output.z: run() is annotated Pydantic, and returned a str where int is wanted: 'x'"),
    (Path, "out.png", "output: run() is annotated Path, and returned a str where Path is wanted: 'out.png'"),
    (list[Path], ["a"], "output[0]: run() is annotated list[Path], and returned a str where Path is wanted: 'a'"),
    (Iterator[int], "x", "output: run() is annotated Iterator[int], and yielded a str where int is wanted: 'x'"),
    (ConcatenateIterator[str], 5,
     "output: run() is annotated ConcatenateIterator[str], and yielded an int where str is wanted: 5"),
    (list[NDArray[np.float32]], ["x"],
     "output[0]: run() is annotated list[ndarray[tuple[Any, ...], dtype[float32]]], and returned a value that is "),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "message"), WRONG, ids=short)
def test_c10_what_does_not(annotation: Any, value: Any, message: str, tmp_path: pathlib.Path) -> None:
    encoder = encoder_for(annotation)
    message = message.replace("a str where Path is wanted: 'out.png'", "a str: 'out.png'")
    for _ in range(2):
        assert encoder.encode_plain(value) is None
        with pytest.raises(OutputError) as raised:
            encoder.encode(value, lambda: tmp_path)
        assert str(raised.value).startswith(message)
    assert encoder.encode_all_plain([value]) is None


def test_c10_files(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("x")
    copies = tmp_path / "copies"
    for annotation, value in ((Path, file), (File, io.BytesIO(b"x")), (list[Path], [file]), (Path | None, None)):
        copies.mkdir()
        encoder_for(annotation).encode(value, lambda: copies)
        for copy in copies.iterdir():
            copy.unlink()
        copies.rmdir()
    copies.mkdir()
    for wrong in (str, int, list[str], dict):
        with pytest.raises(OutputError, match=r"and returned a \w*Path"):
            encoder_for(wrong).encode(file, lambda: copies)
        copies.mkdir(exist_ok=True)
        assert not list(copies.iterdir())  # the copy is not left behind


def test_c10_long_values_are_shortened(tmp_path: pathlib.Path) -> None:
    for value in ("x" * 10_000, ["x" * 10_000] * 1000, {str(n): n for n in range(1000)}, np.array(["x" * 1000] * 1000)):
        with pytest.raises(OutputError) as raised:
            encoder_for(int).encode(value, lambda: tmp_path)
        assert len(str(raised.value)) < 400
    many: Any = Literal.__getitem__(tuple(f"choice {n}" for n in range(1000)))
    with pytest.raises(OutputError) as raised:
        encoder_for(list[many]).encode(["x"], lambda: tmp_path)
    assert "where Literal['choice 0'" in str(raised.value)


def test_c10_a_repr_that_raises_is_left_out(tmp_path: pathlib.Path) -> None:
    class Rude(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(OutputError, match=r"^output: run\(\) is annotated int, and returned a Rude"):
        encoder_for(int).encode(Rude("x"), lambda: tmp_path)


def test_c10_what_json_cannot_carry_is_said_first(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OutputError, match="is bytes, which JSON cannot carry"):
        encoder_for(str).encode(b"x", lambda: tmp_path)
    with pytest.raises(OutputError, match="is NaN"):
        encoder_for(float).encode(float("nan"), lambda: tmp_path)


def test_c10_a_wrong_output_of_a_model_for_cog_is_passed_on_with_one_warning(tmp_path: pathlib.Path) -> None:
    warnings: list[str] = []
    encoder = encoder_for(int, warnings=warnings)
    assert encode(encoder, 5, tmp_path) == b"5"
    assert warnings == []
    for value, text in (("secret", b'"secret"'), (None, b"null"), ([1], b"[1]"), (5, b"5")):
        assert encode(encoder, value, tmp_path) == text
    assert warnings == ["output: run() is annotated int, and returned a str"]  # and not the value: it is a client's
    assert encoder.encode_all_plain(["x", "y"]) == [b'"x"', b'"y"']


def test_c10_a_model_for_cog_gets_its_list_as_from_cog(tmp_path: pathlib.Path) -> None:
    warnings: list[str] = []
    encoder = encoder_for(list[int], warnings=warnings)
    assert [encode(encoder, value, tmp_path) for value in (5, "x", [1], None)] == [b"[5]", b'["x"]', b"[1]", b"null"]
    assert len(warnings) == 1


def test_c10_a_stream_where_one_value_is_declared(tmp_path: pathlib.Path) -> None:
    assert encode(encoder_for(list[int]).chunks, 5, tmp_path) == b"5"  # the elements of the list, one by one
    with pytest.raises(OutputError, match=r"annotated list\[int\], and yielded a str where int is wanted: 'x'$"):
        encode(encoder_for(list[int]).chunks, "x", tmp_path)
    with pytest.raises(OutputError, match=r"annotated str, and returned a stream of values$"):
        encode(encoder_for(str).chunks, "x", tmp_path)
    with pytest.raises(OutputError, match=r"annotated str \| None, and returned a stream of values$"):
        encode(encoder_for(str | None).chunks, None, tmp_path)
    for free in (Any, Iterator[str]):
        encoder = encoder_for(free)
        assert encoder.chunks is encoder


def test_c10_the_tensors_of_a_record_are_checked_as_tensors(tmp_path: pathlib.Path) -> None:
    class Record(TypedDict):
        x: NDArray[np.float32]
        label: str

    encoder = encoder_for(Record)
    array = np.zeros(2, np.float32)
    for apart in (True, False):
        encoder.encode({"x": array, "label": "a"}, lambda: tmp_path, apart=apart)
        with pytest.raises(OutputError, match=r"^output\.label: run\(\) is annotated Record, and returned an int"):
            encoder.encode({"x": array, "label": 5}, lambda: tmp_path, apart=apart)
        with pytest.raises(OutputError, match="no field 'label'"):
            encoder.encode({"x": array}, lambda: tmp_path, apart=apart)


def test_c10_nothing_is_held_to_no_annotation() -> None:
    def run(text: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return text

    assert return_text(run, owner_name="run()") == ""
    assert OutputEncoder(read_signature(run, owner_name="run()").output).encode_plain(5) == b"5"
