"""The signature that is read from a `run()`: every type of input and output, and its decorators."""

# ruff: noqa: UP006, UP007, UP035, UP045 - the older names are among what is tested

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import io
import pathlib
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    BinaryIO,
    Dict,
    Final,
    List,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)

import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pytest
import typing_extensions

from geartrain import (
    AsyncConcatenateIterator,
    BaseModel,
    ConcatenateIterator,
    File,
    Input,
    Opaque,
    Path,
    Secret,
    concurrent,
    streaming,
)
from geartrain.authoring.decorators import CONCURRENT_ATTRIBUTE
from geartrain.domain.signature.json_schema import type_schema
from geartrain.domain.signature.types import InputField, RecordField, Signature, TypeSpec
from geartrain.worker.loading.callables import decorator_value, is_async, is_generator
from geartrain.worker.loading.signature import read_signature
from tests.support.ids import short

EMPTY = object()
T = TypeVar("T")

STRING, INTEGER, NUMBER, BOOLEAN = TypeSpec("string"), TypeSpec("integer"), TypeSpec("number"), TypeSpec("boolean")
PATH, OBJECT, OPAQUE = TypeSpec("path"), TypeSpec("object"), TypeSpec("opaque")


def array(items: TypeSpec) -> TypeSpec:
    return TypeSpec("array", items=items)


def optional(spec: TypeSpec) -> TypeSpec:
    return msgspec.structs.replace(spec, nullable=True)


def union(*members: TypeSpec) -> TypeSpec:
    return TypeSpec("union", members=members)


def signature(run: Callable[..., Any]) -> Signature:
    return read_signature(run, owner_name="run()")


def field(annotation: Any, default: Any = EMPTY) -> InputField:
    """The field of `def run(x: annotation = default)`."""

    def run(x: Any) -> None: ...

    run.__annotations__ = {"x": annotation}
    if default is not EMPTY:
        run.__defaults__ = (default,)
    (only,) = signature(run).inputs
    return only


def output(annotation: Any) -> tuple[TypeSpec, str]:
    def run() -> Any: ...

    run.__annotations__ = {"return": annotation}
    found = signature(run).output
    return found.type, found.mode


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    AUTO = "auto"
    ONE = 1
    HALF = 0.5


class Box(BaseModel):
    left: int
    label: str | None
    tags: List[str] = dataclasses.field(default_factory=list)
    color: Color = Color.RED


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    hidden: int = dataclasses.field(init=False, default=0)


class Options(TypedDict, total=False):
    size: Required[int]
    name: NotRequired[str]
    box: Box


class Old(typing_extensions.TypedDict):
    a: int


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    site: pydantic.HttpUrl | None = None
    photo: pathlib.Path


class Strict(pydantic.BaseModel, extra="forbid"):
    a: int


class ByHand(BaseModel, auto_dataclass=False):
    a: int
    b: str = "x"


class Node(BaseModel):
    children: List[Node]


Name = NewType("Name", str)
Many = typing_extensions.TypeAliasType("Many", list[T], type_params=(T,))
Alias = typing_extensions.TypeAliasType("Alias", list[int])

BOX = TypeSpec(
    "record",
    title="Box",
    closed=True,
    fields=(
        RecordField("left", INTEGER),
        RecordField("label", optional(STRING), required=False),
        RecordField("tags", array(STRING), required=False),
        RecordField("color", TypeSpec("string", choices=("red", "blue")), required=False),
    ),
)

BOX_OUT = TypeSpec(
    "record",
    title="Box",
    fields=tuple(RecordField(known.name, known.type, required=not known.type.nullable) for known in BOX.fields),
)

INPUTS: list[tuple[Any, TypeSpec]] = [
    (str, STRING),
    (int, INTEGER),
    (float, NUMBER),
    (bool, BOOLEAN),
    (Path, PATH),
    (pathlib.Path, PATH),
    (File, TypeSpec("file")),
    (BinaryIO, TypeSpec("file")),
    (io.BytesIO, TypeSpec("file")),
    (Secret, TypeSpec("secret")),
    (dict, OBJECT),
    (dict[str, int], OBJECT),
    (Dict[str, Any], OBJECT),
    (Mapping[str, list[int]], OBJECT),
    (Any, OBJECT),
    (object, OPAQUE),
    (list, array(OPAQUE)),
    (List, array(OPAQUE)),
    (list[Any], array(OPAQUE)),
    (list[int], array(INTEGER)),
    (List[Path], array(PATH)),
    (Sequence[str], array(STRING)),
    (Iterable[str], array(STRING)),
    (list[list[float]], array(array(NUMBER))),
    (list[int | None], array(optional(INTEGER))),
    (Optional[str], optional(STRING)),
    (str | None, optional(STRING)),
    (Union[None, list[int]], optional(array(INTEGER))),
    (int | str, union(INTEGER, STRING)),
    (Union[str, list[str], dict, None], optional(union(STRING, array(STRING), OBJECT))),
    (int | Literal["auto"], union(INTEGER, TypeSpec("string", choices=("auto",)))),
    (Literal["a", "b"], TypeSpec("string", choices=("a", "b"))),
    (Literal[1, 2, None], TypeSpec("integer", nullable=True, choices=(1, 2))),  # noqa: PYI061 - tested
    (Literal[True], TypeSpec("boolean", choices=(True,))),
    (Literal["a", 1], union(TypeSpec("string", choices=("a",)), TypeSpec("integer", choices=(1,)))),
    (Literal[Color.RED], TypeSpec("string", choices=("red",))),
    (Color, TypeSpec("string", choices=("red", "blue"))),
    (Level, TypeSpec("integer", choices=(1, 2))),
    (
        Mixed,
        union(
            TypeSpec("string", choices=("auto",)),
            TypeSpec("integer", choices=(1,)),
            TypeSpec("number", choices=(0.5,)),
        ),
    ),
    (Optional[Color], TypeSpec("string", nullable=True, choices=("red", "blue"))),
    (list[Color], array(TypeSpec("string", choices=("red", "blue")))),
    (Name, STRING),
    (Alias, array(INTEGER)),
    (Many[str], array(STRING)),
    (Final[int], INTEGER),
    (Annotated[int, "metadata of others"], INTEGER),
    (Annotated[Any, Opaque], OPAQUE),
    (Annotated[bytes, Opaque], OPAQUE),
    (Annotated[list[bytes], Opaque], array(OPAQUE)),
    (Annotated[list[bytes] | None, Opaque], optional(array(OPAQUE))),
    (Annotated[bytes | None, Opaque], optional(OPAQUE)),
    (Annotated[bytes, Opaque] | None, optional(OPAQUE)),
    (list[Annotated[bytes, Opaque]], array(OPAQUE)),
    (Box, BOX),
    (list[Box], array(BOX)),
    (
        Point,
        TypeSpec(
            "record",
            title="Point",
            closed=True,
            fields=(RecordField("x", NUMBER), RecordField("y", NUMBER, required=False)),
        ),
    ),
    (
        Options,
        TypeSpec(
            "record",
            title="Options",
            fields=(
                RecordField("size", INTEGER),
                RecordField("name", STRING, required=False),
                RecordField("box", BOX, required=False),
            ),
        ),
    ),
    (Old, TypeSpec("record", title="Old", fields=(RecordField("a", INTEGER),))),
    (
        Person,
        TypeSpec(
            "record",
            title="Person",
            fields=(
                RecordField("fullName", STRING),
                RecordField("site", OPAQUE, required=False),
                RecordField("photo", PATH),
            ),
        ),
    ),
    (Strict, TypeSpec("record", title="Strict", closed=True, fields=(RecordField("a", INTEGER),))),
    (
        ByHand,
        TypeSpec(
            "record",
            title="ByHand",
            closed=True,
            fields=(RecordField("a", INTEGER), RecordField("b", STRING, required=False)),
        ),
    ),
]


@pytest.mark.parametrize(("annotation", "spec"), INPUTS, ids=short)
def test_input_types(annotation: Any, spec: TypeSpec) -> None:
    assert field(annotation).type == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("int", INTEGER),
        ("Optional[List[Path]]", optional(array(PATH))),
        ("list['Color'] | None", optional(array(TypeSpec("string", choices=("red", "blue"))))),
        ("Annotated[Any, Opaque]", OPAQUE),
    ],
)
def test_string_annotations(text: str, spec: TypeSpec) -> None:
    assert field(text).type == spec


def test_string_annotations_of_a_model_that_is_made_in_a_function() -> None:
    class Local(BaseModel):
        a: int

    def run(x: Local) -> Local:
        return Local(x.a)

    assert signature(run).inputs[0].type.title == "Local"


class Text(str):
    __slots__ = ()


class NumpyRow(NamedTuple):
    a: int
    b: str


OUTPUTS: list[tuple[Any, TypeSpec, str]] = [
    (str, STRING, "value"),
    (Optional[str], optional(STRING), "value"),
    (None, optional(OPAQUE), "value"),
    (Any, TypeSpec("object", anything=True), "value"),
    (object, OPAQUE, "value"),
    (Path, PATH, "value"),
    (List[Path], array(PATH), "value"),
    (dict[str, Path], TypeSpec("object", values=PATH), "value"),
    (dict[str, bytes], OBJECT, "value"),
    (Annotated[list[bytes], Opaque], TypeSpec("array", items=OPAQUE, anything=True), "value"),
    (OrderedDict, OBJECT, "value"),
    (Box, BOX_OUT, "value"),
    (Person | str, union(TypeSpec("record", title="Person", fields=(
        RecordField("name", STRING), RecordField("site", OPAQUE), RecordField("photo", PATH))), STRING), "value"),
    (Node, TypeSpec("record", title="Node", fields=(RecordField("children", array(OBJECT)),)), "value"),
    (tuple[int, ...], array(INTEGER), "value"),
    (tuple[int, str], array(union(INTEGER, STRING)), "value"),
    (tuple, array(OPAQUE), "value"),
    (NumpyRow, array(OPAQUE), "value"),
    (set[str], array(STRING), "value"),
    (deque[str], array(STRING), "value"),
    (Sequence[int], array(INTEGER), "value"),
    (np.ndarray, array(OPAQUE), "value"),
    (npt.NDArray[np.float32], TypeSpec("tensor", datatype="FP32", shape=(-1,), variadic=True), "value"),
    (npt.NDArray[Any], array(OPAQUE), "value"),
    (np.float32, NUMBER, "value"),
    (np.float64, NUMBER, "value"),
    (np.int64, INTEGER, "value"),
    (np.bool_, BOOLEAN, "value"),
    (np.str_, STRING, "value"),
    (msgspec.Struct, OBJECT, "value"),
    (Text, STRING, "value"),
    (map, array(OPAQUE), "value"),
    (datetime.datetime, STRING, "value"),
    (datetime.date, STRING, "value"),
    (uuid.UUID, STRING, "value"),
    (Color, TypeSpec("string", choices=("red", "blue")), "value"),
    (Annotated[bytes, Opaque], OPAQUE, "value"),
    (Iterator[int], INTEGER, "iterator"),
    (Iterator[Path], PATH, "iterator"),
    (Iterator[list[int]], array(INTEGER), "iterator"),
    (Iterator[str | None], optional(STRING), "iterator"),
    (Iterator, OPAQUE, "iterator"),
    (Iterator[Any], OPAQUE, "iterator"),
    (Iterable[str], STRING, "iterator"),
    (Generator[str, None, None], STRING, "iterator"),
    (AsyncIterator[str], STRING, "iterator"),
    (AsyncGenerator[str, None], STRING, "iterator"),
    (ConcatenateIterator[str], STRING, "concatenate"),
    (ConcatenateIterator, STRING, "concatenate"),
    (AsyncConcatenateIterator[str], STRING, "concatenate"),
    ("ConcatenateIterator[str]", STRING, "concatenate"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "spec", "mode"), OUTPUTS, ids=short)
def test_output_types(annotation: Any, spec: TypeSpec, mode: str) -> None:
    assert output(annotation) == (spec, mode)


class Untold:
    pass


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (dict, {}),
        (Dict, {}),
        (Counter[str], {}),
        (Dict[str, Any], {"additionalProperties": {"type": "object"}}),
        (dict[str, int], {"additionalProperties": {"type": "integer"}}),
        (Mapping[str, list[str]], {"additionalProperties": {"type": "array", "items": {"type": "string"}}}),
        (
            dict[str, dict[str, str]],
            {"additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}}},
        ),
        (dict[str, Optional[float]], {"additionalProperties": {"type": "number", "nullable": True}}),
        (dict[str, Untold], {}),
    ],
    ids=short,
)
def test_c6_the_values_of_a_dict_that_is_an_output(annotation: Any, schema: dict[str, Any]) -> None:
    spec, mode = output(annotation)
    assert (type_schema(spec), mode) == ({"type": "object", **schema}, "value")
    nested, _ = output(list[annotation])
    assert type_schema(nested)["items"] == {"type": "object", **schema}


def test_c6_a_dict_that_contains_itself() -> None:
    alias: Any = type("TypeAliasType", (), {})()  # what `type X = ...` of Python 3.12 makes
    alias.__value__ = dict[str, alias]
    spec, _ = output(alias)
    assert type_schema(spec) == {"type": "object", "additionalProperties": {"type": "object"}}


def test_c6_the_schema_of_an_input_stays_that_of_any_dict() -> None:
    assert type_schema(field(dict[str, int]).type) == {"type": "object"}


def test_no_return_annotation() -> None:
    def run():  # type: ignore[no-untyped-def] # noqa: ANN202
        return 1

    def stream():  # type: ignore[no-untyped-def] # noqa: ANN202
        yield 1

    assert (signature(run).output.type, signature(run).output.mode) == (OPAQUE, "value")
    assert (signature(stream).output.type, signature(stream).output.mode) == (OPAQUE, "iterator")


def test_a_generator_that_is_annotated_with_what_it_adds_up_to() -> None:
    def run() -> Any:
        yield 1

    run.__annotations__ = {"return": list[int]}
    assert (signature(run).output.type, signature(run).output.mode) == (INTEGER, "iterator")


# What Input() says, defaults, what is required


def test_everything_that_input_says() -> None:
    assert field(int, Input(3, description="d", ge=1, le=5, deprecated=True)) == InputField(
        "x", INTEGER, required=False, has_default=True, default=3, description="d", ge=1, le=5, deprecated=True
    )
    assert field(str, Input(min_length=1, max_length=5, regex="^a")) == InputField(
        "x", STRING, min_length=1, max_length=5, regex="^a"
    )
    assert field(str, Input(choices=["a", "b", "a"])) == InputField("x", STRING, choices=("a", "b"))
    assert field(Path, Input(accept="image/*")) == InputField("x", TypeSpec("path"), accept="image/*")
    for annotation in (File, Optional[Path], list[Path], Optional[list[File]]):
        assert field(annotation, Input(accept="image/*")).accept == "image/*"


def test_input_in_annotated() -> None:
    assert field(Annotated[int, Input(ge=1)]) == InputField("x", INTEGER, ge=1)
    assert field(Annotated[int, Input(ge=1)], 4) == InputField(
        "x", INTEGER, required=False, has_default=True, default=4, ge=1
    )
    assert field(Annotated[bytes | None, Input(description="d"), Opaque]) == InputField(
        "x", optional(OPAQUE), required=False, description="d"
    )


def test_choices_of_enum_members_are_their_values() -> None:
    assert field(str, Input(choices=list(Color))).choices == ("red", "blue")


@pytest.mark.parametrize("annotation", [list[int], Optional[list[int]]])
def test_what_input_says_of_a_list_is_about_its_elements(annotation: Any) -> None:
    assert field(annotation, Input(default=[1, 2], choices=[1, 2, 3])).choices == (1, 2, 3)
    assert field(annotation, Input(default=[1, 2], ge=1)).ge == 1


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (int, EMPTY, (True, False, None)),
        (int, Input(), (True, False, None)),
        (int, Input(...), (True, False, None)),
        (int, Input(default=None), (True, False, None)),
        (int, None, (True, False, None)),
        (dict, None, (True, False, None)),
        (int, 5, (False, True, 5)),
        (int, Input(5), (False, True, 5)),
        (float, 1, (False, True, 1)),
        (int, 7.0, (False, True, 7.0)),
        (int, True, (False, True, 1)),
        (bool, 0, (False, True, False)),
        (float, np.float64(0.5), (False, True, 0.5)),
        (Optional[int], EMPTY, (False, False, None)),
        (Optional[int], Input(), (False, False, None)),
        (Optional[int], None, (False, True, None)),
        (Optional[int], 3, (False, True, 3)),
        (Any, None, (False, True, None)),
        (Secret, None, (False, True, None)),
        (Secret, Input(default=None), (False, True, None)),
        (Secret, "hunter2", (False, True, "**********")),
        (Secret, Secret("hunter2"), (False, True, "**********")),
        (Path, "weights.bin", (False, True, "weights.bin")),
        (Path, pathlib.Path("weights.bin"), (False, True, "weights.bin")),
        (Color, Color.RED, (False, True, "red")),
        (Color, "blue", (False, True, "blue")),
        (Literal["a", "b"], "b", (False, True, "b")),
        (list[int], [], (False, True, [])),
        (list[int], (1, 2), (False, True, [1, 2])),
        (list[Color], [Color.RED], (False, True, ["red"])),
        (dict, {1: (2,)}, (False, True, {"1": [2]})),
        (int | str, "a", (False, True, "a")),
        (Box, Box(1, None), (False, True, {"left": 1, "label": None, "tags": [], "color": "red"})),
        (Strict, Strict(a=1), (False, True, {"a": 1})),
        (Annotated[Any, Opaque], None, (False, True, None)),
    ],
    ids=short,
)
def test_defaults(annotation: Any, default: Any, expected: tuple[bool, bool, Any]) -> None:
    """Expected: whether it is required, whether it has a default, and the default in JSON."""
    found = field(annotation, default)
    assert (found.required, found.has_default, found.default) == expected
    assert type(found.default) is type(expected[2])


def test_the_order_is_that_of_the_parameters() -> None:
    def run(z: int, a: int = 1, *, m: str) -> None: ...

    assert [one.name for one in signature(run).inputs] == ["z", "a", "m"]


def test_a_signature_crosses_the_border() -> None:
    def run(a: int, b: Box, c: Color = Color.RED) -> Iterator[Path]:
        """Make pictures.

        Many of them.
        """
        yield Path()

    found = signature(run)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Signature) == found
    assert found.description == "Make pictures.\n\nMany of them."


# Methods and decorators


def plain_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def wrapping_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Model:
    def run(self, x: int) -> str:
        return ""

    @plain_decorator
    @streaming
    def hidden(self, x: int) -> Iterator[str]:
        yield ""

    @wrapping_decorator
    @streaming()
    def wrapped(self, x: int) -> Iterator[str]:
        yield ""

    @plain_decorator
    @concurrent(max=3)
    async def hidden_async(self, x: int) -> str:
        return ""

    def __call__(self, x: int) -> str:
        return ""


@pytest.mark.parametrize("name", ["run", "hidden", "wrapped", "hidden_async", "__call__"])
def test_a_bound_method_has_no_self(name: str) -> None:
    found = signature(getattr(Model(), name))
    assert found.inputs == (InputField("x", INTEGER),)
    assert found.output.type == STRING


def test_an_object_that_can_be_called() -> None:
    assert signature(Model()).inputs == (InputField("x", INTEGER),)


def test_a_partial_function() -> None:
    def run(x: int, y: str) -> str:
        return ""

    assert [one.name for one in signature(functools.partial(run, 1)).inputs] == ["y"]


def test_streaming_is_seen_below_decorators() -> None:
    assert signature(Model().hidden).streaming
    assert signature(Model().wrapped).streaming
    assert not signature(Model().run).streaming


def test_the_kind_of_function_is_seen_below_decorators() -> None:
    model = Model()
    assert [is_generator(run) for run in (model.run, model.hidden, model.wrapped, model.hidden_async)] == [
        False,
        True,
        True,
        False,
    ]
    assert [is_async(run) for run in (model.run, model.hidden, model.hidden_async)] == [False, False, True]
    assert decorator_value(model.hidden_async, CONCURRENT_ATTRIBUTE) == 3
    assert decorator_value(model.run, CONCURRENT_ATTRIBUTE) is None


def test_an_async_generator_is_both() -> None:
    async def run() -> AsyncIterator[int]:
        yield 1

    assert is_async(run)
    assert is_generator(run)
    assert is_async(functools.partial(run))


def test_an_object_with_an_async_call_is_async() -> None:
    class Called:
        async def __call__(self, x: int) -> int:
            return x

    assert is_async(Called())
