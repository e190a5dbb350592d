"""Texts as the values of inputs; more of them in `tests/unit/cli/test_values.py` and in the tests of forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geartrain.domain.signature.text_values import (
    MismatchError,
    TextReader,
    encode_values,
    parse_boolean,
    parse_json,
)
from geartrain.domain.signature.types import InputField, TypeSpec, takes_file, takes_files

PATH, STRING, INTEGER = TypeSpec("path"), TypeSpec("string"), TypeSpec("integer")
PATHS = TypeSpec("array", items=PATH)
READER = TextReader(read=lambda text: text.removeprefix("read:"), read_file=lambda text: f"file:{text}")


def value(spec: TypeSpec, *texts: str, choices: tuple[Any, ...] | None = None) -> Any:
    return READER.value(InputField("x", spec, choices=choices), texts)


@pytest.mark.parametrize(
    ("spec", "texts", "expected"),
    [
        (INTEGER, ["read:7"], 7),
        (STRING, ["read:a"], "a"),
        (PATH, ["read:a"], "file:read:a"),
        (PATHS, ["a", "b"], ["file:a", "file:b"]),
        (PATHS, ['["a"]'], ["a"]),
        (TypeSpec("array", items=INTEGER), ["read:[1,2]"], [1, 2]),
        (TypeSpec("array", items=INTEGER), ["1", "read:2"], [1, 2]),
        (TypeSpec("array"), ["1", "x"], [1, "x"]),
        (TypeSpec("union", members=(STRING, INTEGER)), ["read:3"], 3),
    ],
)
def test_values(spec: TypeSpec, texts: list[str], expected: Any) -> None:
    assert value(spec, *texts) == expected


def test_element_of_a_list() -> None:
    field = InputField("x", TypeSpec("array", items=INTEGER), choices=(1, 2))
    assert READER.element(field, "2") == 2
    for text in ("3", "[1]", "x"):
        with pytest.raises(MismatchError):
            READER.element(field, text)


@pytest.mark.parametrize(
    ("spec", "texts", "choices", "problem"),
    [
        (INTEGER, ["x"], None, '"x" is not of type "integer"'),
        (INTEGER, ["null"], None, "must not be null; leave it out instead"),
        (STRING, ["a", "b"], None, "given 2 times, but it is no list"),
        (STRING, ["c"], ("a", "b"), "must be one of: a, b"),
        (STRING, ["\ud800"], None, "the text is not valid UTF-8"),
    ],
)
def test_mismatches(spec: TypeSpec, texts: list[str], choices: tuple[Any, ...] | None, problem: str) -> None:
    with pytest.raises(MismatchError) as caught:
        value(spec, *texts, choices=choices)
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    ("spec", "one", "several"),
    [
        (PATH, True, False),
        (TypeSpec("file", nullable=True), True, False),
        (PATHS, False, True),
        (TypeSpec("union", members=(STRING, PATH)), True, False),
        (TypeSpec("array", items=TypeSpec("union", members=(STRING, PATH))), False, True),
        (TypeSpec("union", members=(STRING, PATHS)), False, False),
        (TypeSpec("array", items=PATHS), False, False),
        (TypeSpec("array"), False, False),
        (STRING, False, False),
        (TypeSpec("opaque"), False, False),
    ],
)
def test_what_takes_files(spec: TypeSpec, one: bool, several: bool) -> None:
    assert (takes_file(spec), takes_files(spec)) == (one, several)


def test_json_without_what_json_has_not() -> None:
    assert parse_json('{"a":[1.5]}') == {"a": [1.5]}
    for text in ("NaN", "[-Infinity]", "{"):
        with pytest.raises(ValueError):  # noqa: PT011 - the text is Python's
            parse_json(text)


def test_values_as_json() -> None:
    assert json.loads(encode_values({"a": [1, "ä"], "b": 2**70})) == {"a": [1, "ä"], "b": 2**70}
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for wrong in (float("inf"), float("nan"), deep):
        with pytest.raises(ValueError, match="the input"):
            encode_values({"a": wrong})


def test_booleans() -> None:
    assert [parse_boolean(text) for text in ("true", "ON", " 1 ", "False", "n")] == [True, True, True, False, False]
    with pytest.raises(ValueError, match="neither true nor false"):
        parse_boolean("maybe")
