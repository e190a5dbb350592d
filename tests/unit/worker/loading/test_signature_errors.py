"""What an author is told whose `run()` no signature can be made of: the parameter, the annotation, the remedy."""

# ruff: noqa: UP006, UP007, UP035, UP045 - the older names are among what is tested

from __future__ import annotations

import datetime
import enum
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, List, Literal, Optional, TextIO, TypedDict, TypeVar, Union

import numpy as np
import pytest
from PIL import Image

from geartrain import BaseModel, ConcatenateIterator, Input, Path, Secret
from geartrain.worker.loading.signature import UnsupportedAnnotationError, read_signature
from tests.support.ids import short

if TYPE_CHECKING:
    from decimal import Decimal

EMPTY = object()


def complaint(run: Callable[..., Any]) -> str:
    with pytest.raises(UnsupportedAnnotationError) as raised:
        read_signature(run, owner_name="Runner.run()")
    return str(raised.value)


def complaint_about(annotation: Any, default: Any = EMPTY) -> str:
    def run(x: Any) -> None: ...

    run.__annotations__ = {"x": annotation}
    if default is not EMPTY:
        run.__defaults__ = (default,)
    text = complaint(run)
    assert text.startswith("Runner.run(): the parameter 'x'")
    return text.removeprefix("Runner.run(): the parameter 'x'").removeprefix(":").strip()


def complaint_about_output(annotation: Any) -> str:
    def run() -> Any: ...

    run.__annotations__ = {"return": annotation}
    return complaint(run).removeprefix("Runner.run()").removeprefix(":").strip()


class Empty(enum.Enum):
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    A = (1, 2)


class Config(BaseModel):
    picture: bytes


class Outer(TypedDict):
    config: Config


class Fine(TypedDict):
    a: int


class Node(BaseModel):
    children: List[Node]


class Unreadable(BaseModel):
    price: Decimal


T = TypeVar("T")


class Thing:
    pass


GENERAL = "use str, int, float, bool, Path, Secret, list, dict, a Literal, an Enum, a TypedDict, a dataclass or a"

INPUTS: list[tuple[Any, str]] = [
    (bytes, "is annotated bytes, which is not supported: use Path for a file, or str"),
    (set[str], "is annotated set[str], which is not supported: use list[...] instead"),
    (tuple[int, int], "is annotated tuple[int, int], which is not supported: use list[...] instead"),
    (list[bytearray], "is annotated list[bytearray]; bytearray is not supported; use Path for a file, or str"),
    (Optional[set[int]], "is annotated set[int] | None; set[int] is not supported; use list[...] instead"),
    (Iterator[str], "is annotated Iterator[str], which is not supported: use list[...] instead"),
    (ConcatenateIterator[str], "which is not supported: use list[...] instead"),
    (
        np.ndarray,
        "is annotated ndarray, which is not supported: use a type that says its datatype, such as NDArray[np.float32]",
    ),
    (np.float32, "is annotated float32, which is not supported: use float, int or str, or NDArray"),
    (Image.Image, "is annotated Image, which is not supported: use Path, and open the image in run()"),
    (datetime.datetime, "is annotated datetime, which is not supported: use str, and parse it in run()"),
    (TextIO, "is annotated TextIO, which is not supported: use Path, and open it in run()"),
    (Thing, f"is annotated Thing, which is not supported: {GENERAL}"),
    (Callable[[], int], "is annotated Callable[[], int], which is not supported: use str, int"),
    (5, "is annotated 5, which is not supported: use str, int"),
    ([int], "is annotated [<class 'int'>], which is not supported: use str, int"),
    (T, "is annotated T, which is not supported: use str, int"),
    ("T", "is annotated T, which is not supported: use str, int"),
    (Callable[..., list[int]], "is annotated Callable[..., list[int]], which is not supported: use"),
    (None, f"is annotated None, which is not supported: {GENERAL}"),
    (dict[str, Path], "a dict holds plain JSON values: use a TypedDict or a BaseModel, whose fields have types"),
    (Union[str, Path], "Path is not supported; a union holds only str, int, float, bool, dict, list and Literal"),
    (Union[Secret, int, None], "Secret is not supported; a union holds only"),
    (Union[Fine, int], "Fine is not supported; a union holds only"),
    (Empty, "is annotated Empty, which is not supported: it lists no value: give it some, or use str"),
    (Odd, "is annotated Odd, which is not supported: (1, 2) is no JSON value: let its values be strings or numbers"),
    (Literal[b"x"], "b'x' is no JSON value"),
    (Config, "is annotated Config; in the field 'picture' of Config, bytes is not supported; use Path for a file"),
    (list[Outer], "in the field 'picture' of Config, bytes is not supported; use Path for a file, or str"),
    (Node, "in the field 'children' of Node, Node is not supported; it contains itself: use dict for that field"),
    (Unreadable, "its annotations cannot be read (name 'Decimal' is not defined): import what they name"),
    (
        "Decimal",
        "is annotated Decimal, which cannot be evaluated (NameError: name 'Decimal' is not defined): import what it",
    ),
    ("list[", "is annotated list[, which cannot be evaluated (SyntaxError:"),
    (list[Annotated[int, Input(ge=1)]], "Input() describes a whole parameter, not a part of its type"),
]


@pytest.mark.parametrize(("annotation", "message"), INPUTS, ids=short)
def test_inputs(annotation: Any, message: str) -> None:
    assert message in complaint_about(annotation)


OUTPUTS: list[tuple[Any, str]] = [
    (
        bytes,
        "what it returns is annotated bytes, which is not supported: write it to a file and return Path, or",
    ),
    (list[bytearray], "what it returns is annotated list[bytearray]; bytearray is not supported; write it to a file"),
    (Image.Image, "which is not supported: save the image to a file and return Path"),
    (Thing, "or Annotated[..., Opaque] to leave the type open"),
    (np.complex64, "which is not supported: return .tolist() as list[float]"),
    (
        ConcatenateIterator[int],
        "returns ConcatenateIterator[int], and only text can be concatenated: use ConcatenateIterator[str], or",
    ),
    (Iterator[Iterator[str]], "returns an iterator of iterators: use Iterator[list[...]]"),
    ("Decimal", "what it returns is annotated Decimal, which cannot be evaluated"),
]


@pytest.mark.parametrize(("annotation", "message"), OUTPUTS, ids=short)
def test_outputs(annotation: Any, message: str) -> None:
    assert message in complaint_about_output(annotation)


# How run() is written


def test_a_parameter_without_annotation() -> None:
    def run(x) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001

    assert complaint(run) == ("Runner.run(): the parameter 'x' has no annotation: give it a type, such as x: str")


def test_stars() -> None:
    def args(*images: Path) -> None: ...
    def kwargs(**options: int) -> None: ...

    assert complaint(args) == "Runner.run() takes *images: write every input as a parameter of its own"
    assert complaint(kwargs) == "Runner.run() takes **options: write every input as a parameter of its own"


def test_positional_only() -> None:
    def run(x: int, /) -> None: ...

    assert complaint(run).endswith("'x' is positional-only, and inputs are given by name: remove the '/'")


def test_no_python_function() -> None:
    assert "the signature of Runner.run() cannot be read" in complaint(min)


# What Input() says

SETTINGS: list[tuple[Any, Any, str]] = [
    (str, Input(ge=1), "ge is for numbers, and it is a string"),
    (bool, Input(le=1), "le is for numbers, and it is true or false"),
    (list[str], Input(ge=1), "ge is for numbers, and it is a string"),
    (Path, Input(accept=["image/png"]), "accept=['image/png'] must be a string, such as 'image/*,.pdf'"),  # type: ignore[arg-type]
    (int, Input(ge="1"), "ge='1' must be a finite number"),  # type: ignore[arg-type]
    (int, Input(ge=True), "ge=True must be a finite number"),
    (float, Input(le=math.nan), "le=nan must be a finite number"),
    (int, Input(ge=5, le=1), "ge=5 is above le=1: no value could be right"),
    (int, Input(min_length=1), "min_length is for strings, and it is an integer"),
    (Path, Input(max_length=1), "max_length is for strings, and it is a path"),
    (Secret, Input(min_length=1), "min_length is for strings, and it is a secret"),
    (str, Input(min_length=-1), "min_length=-1 must be a whole number of at least 0"),
    (str, Input(max_length=1.5), "max_length=1.5 must be a whole number of at least 0"),  # type: ignore[arg-type]
    (str, Input(min_length=5, max_length=1), "min_length=5 is above max_length=1"),
    (int, Input(regex="a"), "regex is for strings, and it is an integer"),
    (str, Input(regex="("), "regex='(' is no regular expression: missing ), unterminated subpattern at position 0"),
    (str, Input(choices=[]), "choices is empty: no value could be right"),
    (str, Input(choices=["a", 1]), "1 of its choices is not a string"),
    (int, Input(choices=[1, 2.5]), "2.5 of its choices is not an integer"),
    (Path, Input(choices=["a"]), "choices is for strings and numbers, and it is a path"),
    (bool, Input(choices=[True]), "choices is for strings and numbers, and it is true or false"),
    (Literal["a"], Input(choices=["a"]), "choices repeats what its Literal or Enum says: leave it out"),
    (int, Input(choices=[1], ge=1, le=2), "choices already says what is allowed: leave out ge and le"),
    (int, "a", "its default 'a' is not an integer"),
    (int, 1.5, "its default 1.5 is not an integer"),
    (str, 5, "its default 5 is not a string"),
    (bool, 2, "its default 2 is not true or false"),
    (list[int], [1, "a"], "its default [1, 'a'] is not a list"),
    (list[int], 1, "its default 1 is not a list"),
    (dict, [], "its default [] is not a dict"),
    (Path, 5, "its default 5 is not a path"),
    (Literal["a", "b"], "c", "its default 'c' is not one of 'a', 'b'"),
    (int | str, 1.5, "its default 1.5 is not of one of its types"),
    (int, Input(0, ge=1), "its default 0 is below ge=1"),
    (int, Input(6, le=5), "its default 6 is above le=5"),
    (list[int], Input([1, 6], le=5), "its default 6 is above le=5"),
    (str, Input("", min_length=1), "its default '' is shorter than min_length=1"),
    (str, Input("ab", max_length=1), "its default 'ab' is longer than max_length=1"),
    (str, Input("b", regex="^a"), "its default 'b' does not match regex='^a'"),
    (str, Input("c", choices=["a", "b"]), "its default 'c' is not one of its choices"),
    (float, math.nan, "its default nan is nothing that JSON could carry"),
    (dict, pathlib.Path("a"), "its default 'a' is not a dict"),
    (Literal[Color.RED], Color.BLUE, "its default 'blue' is not one of 'red'"),
    (Optional[Fine], {"b": 1}, "its default {'b': 1} is not an object with its fields"),
    (dict, {"a": object()}, "its default is a object, which JSON cannot carry"),
    (Annotated[int, Input(ge=1)], Input(le=1), "has more than one Input(): keep one"),
    (Annotated[int, Input(1)], 2, "has two defaults, one in Input() and one after '=': keep one"),
]


@pytest.mark.parametrize(("annotation", "default", "message"), SETTINGS, ids=short)
def test_settings(annotation: Any, default: Any, message: str) -> None:
    assert complaint_about(annotation, default) == message


@pytest.mark.parametrize("annotation", [str, int, Optional[str], list[str], dict, Secret, Literal["a"], Fine])
def test_c5_accept_is_for_files(annotation: Any) -> None:
    info = Input(accept="image/*")
    assert complaint_about(annotation, info).startswith("accept is only valid on Path or File inputs, and it is ")


def test_a_default_of_a_regex_is_searched_not_matched() -> None:
    def run(x: str = Input("ba", regex="a")) -> None: ...

    assert read_signature(run, owner_name="run()").inputs[0].default == "ba"


def test_every_message_is_a_sentence_with_a_remedy() -> None:
    for annotation, _ in INPUTS:
        text = complaint_about(annotation)
        assert re.search(r"\b(use|import|let its values|give it some|describes)\b", text), text
