"""What becomes of a value that `run()` gives: section 9 of the observed API, and defect D30, row by row."""

from __future__ import annotations

import array
import dataclasses
import datetime
import enum
import functools
import gc
import json
import math
import pathlib
import re
import types
import uuid
import weakref
from collections import ChainMap, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain import BaseModel, Secret
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.worker.values.outputs import MAX_TYPES, OutputEncoder, OutputError
from tests.support.ids import short

OPAQUE = OutputSpec(TypeSpec("opaque"))
LIST = OutputSpec(TypeSpec("array", items=TypeSpec("string")))
STREAM_OF_LISTS = OutputSpec(TypeSpec("array", items=TypeSpec("string")), "iterator")


def no_files() -> pathlib.Path:
    raise AssertionError("there is no file in this output")


def encoded(value: Any, spec: OutputSpec = OPAQUE) -> str:
    result = OutputEncoder(spec).encode(value, no_files)
    assert result.files == ()
    return result.json.decode()


def fault(value: Any) -> str:
    with pytest.raises(OutputError) as raised:
        encoded(value)
    return str(raised.value)


class Color(enum.Enum):
    RED = "red"
    NESTED = ("a", 1)


class Name(enum.StrEnum):
    ADA = "ada"


class Level(enum.IntEnum):
    LOW = 1


class Result(BaseModel):
    text: str
    label: str | None = None


class ByHand(BaseModel, auto_dataclass=False):
    def __init__(self) -> None:
        self.a = 1


@dataclasses.dataclass(slots=True)
class Point:
    x: float
    hidden: int = dataclasses.field(default=1, repr=False)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: datetime.date


class Root(pydantic.RootModel[list[int]]):
    pass


class Struct(msgspec.Struct):
    b: int
    a: str


@attrs.define
class Attrs:
    b: int
    a: str


class Row(NamedTuple):
    a: int
    b: str


class Typed(TypedDict):
    a: int


class Text(str):
    __slots__ = ()


class Thing:
    pass


class Tensor:
    """As torch's and jax's: an array that numpy does not know."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __array__(self) -> Any:
        return np.asarray(self._values)

    def tolist(self) -> list[Any]:
        return self._values


# The table


ROWS: list[tuple[Any, str]] = [
    ("text", '"text"'),
    ("ü😀", '"ü😀"'),
    (5, "5"),
    (1.5, "1.5"),
    (1.0, "1.0"),
    (True, "true"),
    (None, "null"),
    ([], "[]"),
    ([1, "a", None, 2.5, [True]], '[1,"a",null,2.5,[true]]'),
    ({"b": 1, "a": {"d": 1, "c": [{"f": 1, "e": 2}]}}, '{"a":{"c":[{"e":2,"f":1}],"d":1},"b":1}'),
    ({}, "{}"),
    ((1, (2,)), "[1,[2]]"),
    ({3}, "[3]"),
    (frozenset({"a"}), '["a"]'),
    (deque([1]), "[1]"),
    (range(3), "[0,1,2]"),
    ({"a": 1}.keys(), '["a"]'),
    ({"a": 1}.values(), "[1]"),
    ({"a": 1}.items(), '[["a",1]]'),
    (array.array("i", [1, 2]), "[1,2]"),
    ((value * 2 for value in (1, 2)), "[2,4]"),
    (map(str, [1]), '["1"]'),
    ({"inner": iter([1])}, '{"inner":[1]}'),
    (Result("t"), '{"label":null,"text":"t"}'),
    ([Result("t", "l")], '[{"label":"l","text":"t"}]'),
    (ByHand(), '{"a":1}'),
    (Point(1), '{"hidden":1,"x":1}'),
    (Person(fullName="Ada", born=datetime.date(1815, 12, 10)), '{"born":"1815-12-10","name":"Ada"}'),
    (Root([1]), "[1]"),
    (Struct(1, "x"), '{"a":"x","b":1}'),
    (Attrs(1, "x"), '{"a":"x","b":1}'),
    (Row(1, "x"), '[1,"x"]'),
    (Typed(a=1), '{"a":1}'),
    (Color.RED, '"red"'),
    (Color.NESTED, '["a",1]'),
    ({Color.RED: [Level.LOW, Name.ADA]}, '{"red":[1,"ada"]}'),
    (Text("x"), '"x"'),
    (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), '"2026-01-02T03:04:05+00:00"'),
    (datetime.date(2026, 1, 2), '"2026-01-02"'),
    (datetime.time(3, 4), '"03:04:00"'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (2**70, "1180591620717411303424"),
    (-(2**63) - 1, "-9223372036854775809"),
    ([2**2000, 0.5], f"[{2**2000},0.5]"),
    (np.int64(3), "3"),
    (np.uint8(3), "3"),
    (np.float64(0.1), "0.1"),
    (np.float32(0.1), "0.10000000149011612"),
    (np.float16(0.5), "0.5"),
    (np.longdouble(0.5), "0.5"),
    (np.bool_(True), "true"),
    (np.str_("x"), '"x"'),
    (np.datetime64("2026-01-02"), '"2026-01-02"'),
    (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
    (np.array([0.5, 1], dtype=np.float32), "[0.5,1.0]"),
    (np.array([True]), "[true]"),
    (np.array(["a"]), '["a"]'),
    (np.array(1.5), "1.5"),
    (np.array([], dtype=float), "[]"),
    (np.array([{"a": np.int32(1)}, None]), '[{"a":1},null]'),
    (np.array([0.5], dtype=np.longdouble), "[0.5]"),
    (Tensor([[1.5]]), "[[1.5]]"),
    (Secret("hunter2"), '"**********"'),
    (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
    (defaultdict(int, a=1), '{"a":1}'),
    (ChainMap({"a": 1}), '{"a":1}'),
    (types.MappingProxyType({"a": 1}), '{"a":1}'),
    ({1: "a", None: "b", 2.5: "d"}, '{"1":"a","2.5":"d","null":"b"}'),
    ({False: 1, Level.LOW: 2, Name.ADA: 3, np.int64(7): 4}, '{"1":2,"7":4,"ada":3,"false":1}'),
    ({datetime.date(2026, 1, 2): 1, uuid.UUID(int=1): 2},
     '{"00000000-0000-0000-0000-000000000001":2,"2026-01-02":1}'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), ROWS, ids=short)
def test_rows(value: Any, text: str) -> None:
    assert encoded(value) == text


def test_an_encoder_is_used_again_and_again() -> None:
    encoder = OutputEncoder(OPAQUE)
    for _ in range(2):
        for value in (Result("t"), np.float32(0.5), Color.RED, "x", [Result("t")]):
            assert json.loads(encoder.encode(value, no_files).json) is not None


# A declared list


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hi", '["hi"]'),
        (5, "[5]"),
        (0.5, "[0.5]"),
        ({"a": 1}, '[{"a":1}]'),
        (["hi"], '["hi"]'),
        (("hi",), '["hi"]'),
        ({"hi"}, '["hi"]'),
        (iter(["hi"]), '["hi"]'),
        (np.array(1.5), "[1.5]"),
        ([], "[]"),
        (None, "null"),
    ],
    ids=short,
)
def test_where_a_list_is_declared_anything_else_is_wrapped(value: Any, text: str) -> None:
    assert encoded(value, LIST) == text


def test_the_elements_of_a_stream_are_not_wrapped() -> None:
    assert encoded("hi", STREAM_OF_LISTS) == '"hi"'


# D30 and the like: what JSON cannot carry is said with its place


@dataclasses.dataclass
class Scores:
    scores: Any


class OnlyAwaited:
    def __await__(self) -> Iterator[Any]:
        raise NotImplementedError


async def chunks() -> AsyncIterator[int]:
    yield 1


NAN = "is NaN, which JSON cannot carry; return None or a string instead"

FAULTS: list[tuple[Any, str]] = [
    (math.nan, f"output {NAN}"),
    (math.inf, "output is Infinity, which JSON cannot carry; return None or a string instead"),
    (-math.inf, "output is -Infinity, which JSON cannot carry; return None or a string instead"),
    ([0.5, 1, "a", math.nan], f"output[3] {NAN}"),
    ([0.5, math.nan], f"output[1] {NAN}"),
    (Scores([1.0, 2.0, 3.0, math.nan]), f"output.scores[3] {NAN}"),
    ({"a b": {"c": (1, math.nan)}}, f"output['a b'].c[1] {NAN}"),
    ({"a": math.nan}, f"output.a {NAN}"),
    (np.array([[0.0, 1.0], [2.0, np.nan]]), f"output[1][1] {NAN}"),
    (np.float32("nan"), f"output {NAN}"),
    ({1: np.float64("inf")}, "output['1'] is Infinity, which JSON cannot carry; return None or a string instead"),
    (
        b"x",
        "output is bytes, which JSON cannot carry; write it to a file and return the Path, or return text",
    ),
    (
        {"data": [bytearray()]},
        "output.data[0] is bytearray, which JSON cannot carry; write it to a file and return the Path, or return text",
    ),
    (memoryview(b""), "output is memoryview, which JSON cannot carry; write it to a file and return the Path, or"),
    (np.bytes_(b"x"), "output is bytes_, which JSON cannot carry; write it"),
    (
        [Thing()],
        "output[0] is of type Thing, which JSON cannot carry; return str, int, float, bool, list, dict, Path, a",
    ),
    (Thing, "output is the class Thing, which JSON cannot carry; return str"),
    (Result, "output is the class Result, which JSON cannot carry; return str"),
    (1j, "output is of type complex, which JSON cannot carry; return str"),
    (np.complex64(1j), "output is of type complex, which JSON cannot carry; return str"),
    (Decimal(1), "output is of type Decimal, which JSON cannot carry; return str"),
    (datetime.timedelta(1), "output is of type timedelta, which JSON cannot carry; return str"),
    (print, "output is of type builtin_function_or_method, which JSON cannot carry; return str"),
    (OnlyAwaited(), "output is of type OnlyAwaited, which was not awaited; return what it gives"),
    (chunks(), "output is of type async_generator, which was not awaited; return what it gives"),
    ({(1, 2): 1}, "output has a key of type tuple, and the keys of JSON are strings"),
    ([{b"a": 1}], "output[0] has a key of type bytes, and the keys of JSON are strings"),
    ({"1": 1, 1: 2}, "output has two keys that both become '1' in JSON"),
    ("\ud800", "output holds half a character (a lone surrogate), which UTF-8 cannot carry"),
    ({"a": ["x", "\udfff"]}, "output.a[1] holds half a character (a lone surrogate), which UTF-8 cannot carry"),
    ([{"\ud800": 1}], "output[0]['\\ud800'] holds half a character (a lone surrogate), which UTF-8 cannot carry"),
]


@pytest.mark.parametrize(("value", "message"), FAULTS, ids=short)
def test_d30_faults(value: Any, message: str) -> None:
    assert fault(value).startswith(message)


def test_a_list_that_contains_itself() -> None:
    values: list[Any] = [1]
    values.append(values)
    assert fault(values) == "output is nested too deeply, or contains itself"


def test_an_object_that_contains_itself() -> None:
    value = Scores(None)
    value.scores = {"again": value}
    assert fault(value) == "output is nested too deeply, or contains itself"


def test_what_an_iterator_raises_is_the_authors_own() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        encoded({"a": broken()})


def test_the_value_itself_is_not_changed() -> None:
    value = {"b": [(1,)], "a": 1, 2: "x"}
    encoded(value)
    assert value == {"b": [(1,)], "a": 1, 2: "x"}


# Properties


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(json_values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(encoded(value)) == value


@given(json_values)
def test_keys_are_sorted_at_every_depth(value: Any) -> None:
    json.loads(encoded(value), object_pairs_hook=_check_order)


def _check_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert keys == sorted(keys)
    return dict(pairs)


@given(st.lists(st.floats() | st.integers() | st.none()))
def test_a_number_that_json_cannot_carry_is_always_found(values: list[Any]) -> None:
    wrong = [index for index, value in enumerate(values) if isinstance(value, float) and not math.isfinite(value)]
    if wrong:
        assert fault(values).startswith(f"output[{wrong[0]}] is ")
    else:
        assert json.loads(encoded(values)) == values


# Plain values, at once


@pytest.mark.parametrize(
    "value",
    ["text", 1.5, None, 2**70, [], {}, [1.5, None, "a"], {"a": [1, [2.5, {"b": True}]], "0": {}}, [[1.0] * 9] * 9],
    ids=short,
)
def test_what_is_plain_is_encoded_at_once(value: Any) -> None:
    encoder = OutputEncoder(OPAQUE)
    plain = encoder.encode(value, no_files).json
    assert encoder.encode_plain(value) == plain
    assert encoder.encode_all_plain([value, 1, value]) == [plain, b"1", plain]


ITSELF: list[Any] = [1]
ITSELF += [ITSELF] * 1000
DEEP: Any = functools.reduce(lambda inner, _: [inner], range(100), list[Any]())


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        (1,),
        [1, math.inf],
        [1, [2], math.nan],
        {"a": -math.inf, "b": []},
        {"a": {"b": [math.nan]}},
        {1: 2},
        {Name.ADA: 1},
        {"a": {1: 2}},
        {"a": Name.ADA},
        [np.float64(1)],
        OrderedDict(a=1),
        [b"bytes"],
        [datetime.date(2026, 1, 1)],
        [1, ValueError()],
        ITSELF,
        DEEP,
        [0] * 100_000,
    ],
    ids=short,
)
def test_what_is_not_plain_or_too_much_is_left_to_the_walk(value: Any) -> None:
    assert OutputEncoder(OPAQUE).encode_plain(value) is None
    assert OutputEncoder(OPAQUE).encode_all_plain([1, value]) is None


def test_half_a_character_among_plain_values() -> None:
    encoder = OutputEncoder(OPAQUE)
    with pytest.raises(OutputError, match=re.escape("output.a[1] holds half a character")):
        encoder.encode_plain({"a": [1, "\ud800"]})
    assert encoder.encode_all_plain(["fine", "\ud800"]) is None


def test_what_would_be_wrapped_is_not_plain() -> None:
    encoder = OutputEncoder(LIST)
    assert encoder.encode_plain(["a"]) == b'["a"]'
    assert encoder.encode_all_plain([["a"], []]) == [b'["a"]', b"[]"]
    assert encoder.encode_plain("a") is encoder.encode_plain(None) is None
    assert encoder.encode_all_plain([["a"], "b"]) is None


any_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=1),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(st.lists(any_values), st.sampled_from([OPAQUE, LIST]))
def test_all_at_once_is_as_one_by_one(values: list[Any], spec: OutputSpec) -> None:
    encoder = OutputEncoder(spec)
    at_once = encoder.encode_all_plain(values)
    if at_once is not None:
        assert at_once == [encoder.encode(value, no_files).json for value in values]
    for value in values:
        plain = encoder.encode_plain(value)
        assert plain is None or plain == encoder.encode(value, no_files).json


def test_types_of_outputs_are_let_go_of() -> None:
    """A model may make a class for each call."""
    encoder = OutputEncoder(OPAQUE)

    def encode(number: int) -> weakref.ref[type]:
        kind = dataclasses.make_dataclass(f"Kind{number}", ["x"])
        assert encoder.encode(kind(number), no_files).json == b'{"x":%d}' % number
        return weakref.ref(kind)

    kinds = [encode(number) for number in range(2 * MAX_TYPES)]
    gc.collect()
    assert len([kind for kind in kinds if kind() is not None]) <= MAX_TYPES
