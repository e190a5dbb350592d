"""Inputs of a file, and those that a schema gives."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.bench.inputs import default_input, read_many
from geartrain.bench.work import InputsError


@pytest.mark.parametrize("text", [b'{"a": 1}\n\n{"a": 2}\n', b'[{"a": 1}, {"a": 2}]', b'\n{"a":1}\r\n{"a":2}'])
def test_lines_and_arrays_are_read(text: bytes) -> None:
    assert read_many(text, "inputs.jsonl") == [{"a": 1}, {"a": 2}]


def test_one_line_is_one_input() -> None:
    assert read_many(b'{"a": 1}\n', "inputs.jsonl") == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "inputs.jsonl is empty"),
        (b"[]", "inputs.jsonl has 0 inputs"),
        (b'{"a": 1}\n{"a": ', "inputs.jsonl, line 2 is not JSON"),
        (b'{"a": 1}\n7', "inputs.jsonl, line 2: an input is a JSON object"),
        (b"[7]", "inputs.jsonl: an input is a JSON object"),
        (b"{}\n" * 100_001, "inputs.jsonl has 100001 inputs; at most 100000"),
    ],
)
def test_what_is_wrong_is_named(text: bytes, words: str) -> None:
    with pytest.raises(InputsError, match=words):
        read_many(text, "inputs.jsonl")


def document(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"components": {"schemas": {"Input": {"properties": properties, "required": list(required)}}}}


def test_examples_and_defaults_are_enough() -> None:
    properties = {"a": {"example": 1}, "b": {"examples": ["x", "y"]}, "c": {"default": 3}}
    assert default_input(document(properties, "a", "b")) == {"a": 1, "b": "x"}
    assert default_input(document({})) == {}


def test_inputs_without_a_default_are_named() -> None:
    with pytest.raises(InputsError, match=r"no default for a, b; give -i a=… -i b=…"):
        default_input(document({"a": {}, "b": {"examples": []}, "c": {}}, "a", "b"))
