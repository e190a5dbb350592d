"""What `run()` receives for the JSON of an input."""

# ruff: noqa: UP045 - the older names are among what is tested

from __future__ import annotations

import dataclasses
import enum
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, Optional, TypedDict

import msgspec
import pydantic
import pytest

from geartrain import BaseModel, File, Input, Path, Secret
from geartrain.worker.loading.signature import read_parameters
from geartrain.worker.values.arguments import ArgumentBinder, ArgumentError
from tests.support.ids import short

EMPTY = object()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Box(BaseModel):
    picture: Path
    label: Optional[str]
    colors: list[Color] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Options(TypedDict):
    color: Color
    box: Box | None


class Plain(TypedDict, total=False):
    a: int


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName", min_length=2)
    photo: pathlib.Path | None = None
    box: Box | None = None
    token: Secret | None = None
    path: Path | None = None


class ByHand(BaseModel, auto_dataclass=False):
    a: int

    def __init__(self, a: int) -> None:
        self.doubled = 2 * a


def binder(run: Callable[..., Any]) -> ArgumentBinder:
    return ArgumentBinder(read_parameters(run, owner_name="run()"))


def binder_of(annotation: Any, default: Any = EMPTY) -> ArgumentBinder:
    def run(x: Any) -> None: ...

    run.__annotations__ = {"x": annotation}
    if default is not EMPTY:
        run.__defaults__ = (default,)
    return binder(run)


def bound(annotation: Any, value: Any) -> Any:
    """What the parameter receives for a JSON value."""
    return binder_of(annotation).bind(msgspec.json.encode({"x": value}))["x"]


def bound_default(annotation: Any, default: Any = EMPTY) -> Any:
    return binder_of(annotation, default).bind(b"{}")["x"]


# Plain values pass as they are


@pytest.mark.parametrize(
    ("annotation", "raw", "value"),
    [
        (int, "7", 7),
        (float, "1.5", 1.5),
        (int, str(2**70), 2**70),
        (str, '"ü\\u00fc\\ud83d\\ude00"', "üü😀"),
        (bool, "true", True),
        (dict, '{"a":{"b":[1]}}', {"a": {"b": [1]}}),
        (list[float], "[1,2.5]", [1, 2.5]),
        (int | str, '"a"', "a"),
        (Literal["a", "b"], '"a"', "a"),
        (Plain, '{"a":1}', {"a": 1}),
        (Any, '{"a":1}', {"a": 1}),
    ],
)
def test_plain_values(annotation: Any, raw: str, value: Any) -> None:
    result = binder_of(annotation).bind(f'{{"x":{raw}}}'.encode())
    assert result == {"x": value}
    assert type(result["x"]) is type(value)


class Numbers(BaseModel):
    whole: int
    parts: list[float]
    maybe: int | None = None


class Keys(TypedDict):
    whole: int


@pytest.mark.parametrize(
    ("annotation", "raw", "value"),
    [
        (int, "7.0", 7),
        (int, "-0.0", 0),
        (int, "1e18", 10**18),
        (float, "1", 1.0),
        (Optional[int], "7.0", 7),
        (Optional[float], "null", None),
        (list[int], "[1, 2.0]", [1, 2]),
        (list[float], "[1, 2.5]", [1.0, 2.5]),
        (list[list[float]], "[[1], [2.5]]", [[1.0], [2.5]]),
        (list[Optional[int]], "[1.0, null]", [1, None]),
        (list[int] | None, "[1.0]", [1]),
        (int | str, "7.0", 7),
        (float | str, "7", 7.0),
        (list[float] | float | str, "[7]", [7.0]),
        (int | float, "7.0", 7.0),
        (int | float, "7", 7),
        (Literal[1, 2], "2.0", 2),
        (Literal[1.0, 2.5], "1", 1.0),
        (Keys, '{"whole":7.0}', {"whole": 7}),
        (list[Keys], '[{"whole":7.0}]', [{"whole": 7}]),
        (dict[str, int], '{"a":7.0,"b":8}', {"a": 7, "b": 8}),
        (dict[str, float], '{"a":7,"b":8.5}', {"a": 7.0, "b": 8.5}),
        (Mapping[str, float], '{"a":7}', {"a": 7.0}),
        (Optional[dict[str, int]], '{"a":7.0}', {"a": 7}),
        (Optional[dict[str, int]], "null", None),
        (dict[str, Optional[int]], '{"a":7.0,"b":null}', {"a": 7, "b": None}),
        (dict[str, list[float]], '{"a":[1,2.5],"b":[]}', {"a": [1.0, 2.5], "b": []}),
        (dict[str, dict[str, int]], '{"a":{"b":7.0}}', {"a": {"b": 7}}),
        (dict[str, int | str], '{"a":7.0,"b":"7.0"}', {"a": 7, "b": "7.0"}),
        (dict[str, int | float], '{"a":7.0,"b":7}', {"a": 7.0, "b": 7}),
        (list[dict[str, float]], '[{"a":7}]', [{"a": 7.0}]),
        (dict[str, int] | list[int] | str, '{"a":7.0}', {"a": 7}),
        (dict[str, int] | list[int] | str, "[7.0]", [7]),
        # The values of a dict are not checked: what is of another type stays.
        (dict[str, int], '{"a":7.5,"b":"c","d":[7.0],"e":true}', {"a": 7.5, "b": "c", "d": [7.0], "e": True}),
        (dict[str, float], '{"a":true,"b":1}', {"a": True, "b": 1.0}),
        (
            dict[str, list[int]],
            '{"a":7.0,"b":{"c":7.0},"d":"7","e":[7.0]}',
            {"a": 7.0, "b": {"c": 7.0}, "d": "7", "e": [7]},
        ),
        (dict[str, list[list[int]]], '{"a":[1,[2.0]]}', {"a": [1, [2]]}),
        (dict[str, dict[str, int]], '{"a":7.0,"b":[7.0]}', {"a": 7.0, "b": [7.0]}),
    ],
    ids=short,
)
def test_a4_numbers_become_those_of_the_annotation(annotation: Any, raw: str, value: Any) -> None:
    result = binder_of(annotation).bind(f'{{"x":{raw}}}'.encode())["x"]
    assert repr(result) == repr(value)


class Tables(BaseModel):
    scores: dict[str, float]
    counts: dict[str, list[int]] | None = None


@dataclasses.dataclass
class TablesOfData:
    scores: dict[str, float]
    counts: dict[str, list[int]] | None = None


class TablesOfPydantic(pydantic.BaseModel):
    scores: dict[str, float]
    counts: dict[str, list[int]] | None = None


class TablesOfKeys(TypedDict):
    scores: dict[str, float]
    counts: dict[str, list[int]]


@pytest.mark.parametrize("record", [Tables, TablesOfData, TablesOfPydantic, TablesOfKeys])
def test_a4_numbers_in_a_dict_of_a_record(record: Any) -> None:
    result = bound(record, {"scores": {"a": 1}, "counts": {"a": [2.0, 3]}})
    fields = result if isinstance(result, dict) else vars(result)
    assert repr((fields["scores"], fields["counts"])) == "({'a': 1.0}, {'a': [2, 3]})"
    (result,) = bound(list[record], [{"scores": {"a": 1}, "counts": {"a": [2.0, 3]}}])
    fields = result if isinstance(result, dict) else vars(result)
    assert repr((fields["scores"], fields["counts"])) == "({'a': 1.0}, {'a': [2, 3]})"


def test_a4_numbers_in_a_record() -> None:
    result = bound(Numbers, {"whole": 7.0, "parts": [1, 2.5], "maybe": 3.0})
    assert repr((result.whole, result.parts, result.maybe)) == "(7, [1.0, 2.5], 3)"


@pytest.mark.parametrize(
    ("annotation", "default", "value"),
    [(float, 1, 1.0), (list[float], [1], [1.0]), (dict[str, float], {"a": 1}, {"a": 1.0})],
)
def test_a4_numbers_of_a_default(annotation: Any, default: Any, value: Any) -> None:
    assert repr(bound_default(annotation, default)) == repr(value)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert binder_of(int).bind(b'{"x":1,"x":2}') == {"x": 2}


# Values that are made


def test_paths(tmp_path: pathlib.Path) -> None:
    value = bound(Path, str(tmp_path / "a.png"))
    assert type(value) is Path
    assert value == tmp_path / "a.png"
    assert bound(pathlib.Path, "/a") == pathlib.Path("/a")
    assert bound(list[Path], ["/a", "/b"]) == [Path("/a"), Path("/b")]
    assert bound(Optional[list[Path]], ["/a"]) == [Path("/a")]


def test_secrets() -> None:
    assert bound(Secret, "hunter2") == Secret("hunter2")
    assert bound(list[Secret], ["a"]) == [Secret("a")]


def test_enums() -> None:
    assert bound(Color, "red") is Color.RED
    assert bound(Level, 2) is Level.HIGH
    assert bound(Level, 2.0) is Level.HIGH
    assert bound(list[Color | None], ["red", None]) == [Color.RED, None]
    assert bound(Literal[Color.RED], "red") is Color.RED


def test_files_are_open_until_they_are_released(tmp_path: pathlib.Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)

    def run(one: File, many: list[File], maybe: File | None, text: str = "") -> None: ...

    bind = binder(run)
    raw = {"one": str(tmp_path / "a"), "many": [str(tmp_path / "b"), str(tmp_path / "c")]}
    arguments = bind.bind(msgspec.json.encode(raw))
    assert arguments["one"].read() == b"a"
    assert arguments["one"].name == str(tmp_path / "a")
    assert [file.read() for file in arguments["many"]] == [b"b", b"c"]
    assert arguments["maybe"] is None
    bind.release(arguments)
    assert arguments["one"].closed
    assert all(file.closed for file in arguments["many"])
    bind.release(arguments)


def test_files_are_closed_when_another_input_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("a")
    opened = []

    def run(file: File, number: Even) -> None: ...

    class Spy(ArgumentBinder):
        def release(self, arguments: dict[str, Any]) -> None:
            opened.append(arguments["file"])
            super().release(arguments)

    bind = Spy(read_parameters(run, owner_name="run()"))
    with pytest.raises(ArgumentError, match=r"^input\.number: ValueError: 3 is odd$"):
        bind.bind(msgspec.json.encode({"file": str(tmp_path / "a"), "number": {"number": 3}}))
    assert opened[0].closed


def test_records() -> None:
    box = bound(Box, {"picture": "/a.png", "colors": ["red"]})
    assert box == Box(picture=Path("/a.png"), label=None, colors=[Color.RED])
    assert bound(Box, {"picture": "/a.png", "label": "l"}).colors == []
    assert bound(list[Even], [{"number": 2}]) == [Even(2)]
    assert bound(Options, {"color": "blue"}) == {"color": Color.BLUE, "box": None}
    nested = bound(Options, {"color": "blue", "box": {"picture": "/a"}})
    assert nested == {"color": Color.BLUE, "box": Box(Path("/a"), None)}
    assert bound(ByHand, {"a": 2}).doubled == 4


def test_pydantic_models() -> None:
    person = bound(
        Person, {"fullName": "Ada", "photo": "/a.png", "box": {"picture": "/b.png"}, "token": "t", "path": "/c"}
    )
    assert person.name == "Ada"
    assert person.photo == pathlib.Path("/a.png")
    assert person.box == Box(picture=Path("/b.png"), label=None)
    assert person.token == Secret("t")
    assert type(person.path) is Path
    with pytest.raises(ArgumentError, match=r"^input\.x: ValidationError: 1 validation error for Person"):
        bound(Person, {"fullName": "A"})


# Inputs that were left out


@pytest.mark.parametrize(
    ("annotation", "default", "value"),
    [
        (int, 3, 3),
        (int, Input(3), 3),
        (int, True, 1),
        (bool, 0, False),
        (str, "s", "s"),
        (Optional[int], EMPTY, None),
        (Optional[int], Input(), None),
        (Optional[int], None, None),
        (Optional[Path], EMPTY, None),
        (Any, None, None),
        (Secret, None, None),
        (Secret, "hunter2", Secret("hunter2")),
        (Secret, Secret("hunter2"), Secret("hunter2")),
        (Path, "weights.bin", Path("weights.bin")),
        (Path, pathlib.Path("weights.bin"), Path("weights.bin")),
        (Color, Color.RED, Color.RED),
        (Color, "red", Color.RED),
        (Literal["a", "b"], "b", "b"),
        (list[int], (1, 2), [1, 2]),
        (list[Color], ["red", Color.BLUE], [Color.RED, Color.BLUE]),
        (Box, Box(Path("/a"), None), Box(Path("/a"), None)),
        (Even, {"number": 4}, Even(4)),
    ],
    ids=short,
)
def test_defaults(annotation: Any, default: Any, value: Any) -> None:
    result = bound_default(annotation, default)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (list[int], [1]),
        (dict, {"a": []}),
        (list[Color], [Color.RED]),
        (Box, Box(Path("/a"), None)),
        (Options, {"color": "red", "box": None}),
        (Person, Person(fullName="Ada")),
    ],
    ids=short,
)
def test_every_prediction_gets_a_mutable_default_of_its_own(annotation: Any, default: Any) -> None:
    bind = binder_of(annotation, default)
    first, second = bind.bind(b"{}")["x"], bind.bind(b"{}")["x"]
    assert first == second
    assert first is not second
    assert first is not default


def test_a_default_file_is_opened_for_every_prediction(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("a")
    bind = binder_of(File, str(tmp_path / "a"))
    for _ in range(2):
        arguments = bind.bind(b"{}")
        assert arguments["x"].read() == b"a"
        bind.release(arguments)


def test_what_is_given_comes_before_the_default() -> None:
    def run(a: int = 1, b: Color = Color.RED, c: list[int] = [], d: int | None = None) -> None: ...  # noqa: B006

    raw = b'{"a":2,"b":"blue","c":[3],"d":4}'
    assert binder(run).bind(raw) == {"a": 2, "b": Color.BLUE, "c": [3], "d": 4}
    assert binder(run).bind(b"{}") == {"a": 1, "b": Color.RED, "c": [], "d": None}


def test_a_bound_method_is_called_with_the_result() -> None:
    class Runner:
        def run(self, text: str, times: int = 2, color: Color = Input(default=Color.RED)) -> str:
            return f"{text * times} {color.name}"

    runner = Runner()
    assert runner.run(**binder(runner.run).bind(b'{"text":"ab"}')) == "abab RED"
