"""Long texts that are left out of what is parsed: what comes of them is what a parser would have made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.service.models.admission import Interface
from geartrain.transport.held_texts import HeldBody, hold_texts
from geartrain.transport.held_urls import LONG

MANY = 10**6
TEXT = TypeSpec("string")


def taking(field: InputField) -> Interface:
    """Return the interface of a model with this input."""
    return Interface(WorkerInfo(Signature((field,), OutputSpec(TEXT)), slots=1, is_async=False, has_healthcheck=False))


PROMPT = taking(InputField("prompt", TEXT))


def held(body: dict[str, Any] | bytes, *, ascii_only: bool = True) -> HeldBody | None:
    text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=ascii_only).encode()
    return hold_texts(bytearray(text), MANY)


def filled(body: HeldBody, interface: Interface = PROMPT) -> dict[str, Any]:
    """Return the input that a model gets."""
    made = body.input(body.members, {}, interface)
    assert made is not None
    values: dict[str, Any] = json.loads(made[0].values)
    return values


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escapes", "utf-8"])
@settings(max_examples=25)
@given(st.text(min_size=1, max_size=9), st.integers(min_value=0, max_value=70_000), st.text(max_size=9))
def test_model_gets_the_text(ascii_only: bool, unit: str, shift: int, rest: str) -> None:
    text = "a" * shift + (unit * (2 * LONG))[: 2 * LONG] + rest
    body = held({"prompt": text}, ascii_only=ascii_only)
    if body is None:
        assert "\0" in text  # as a mark would be written
        return
    assert len(body.members["prompt"]) < 32
    assert filled(body) == {"prompt": text}


def test_texts_of_messages_are_left_out() -> None:
    messages = [{"role": "user", "content": letter * (LONG + 1)} for letter in "ab"]
    body = held({"model": "m", "messages": messages, "stop": ["x"]})
    assert body is not None
    assert len(body.members["messages"]) < 200
    interface = taking(InputField("messages", TypeSpec("array", items=TypeSpec("opaque"))))
    made = body.input({"messages": body.members["messages"]}, {}, interface)
    assert made is not None
    assert json.loads(made[0].values) == {"messages": messages}


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "short"},
        {"prompt": "a" * (LONG + 1), "tools": "b" * (LONG + 1)},  # which an answer may have again
        {"prompt": "a" * (LONG + 1), "stop": "\0" + "1\0"},
        b'{"prompt":"%b\x01"}' % (b"a" * LONG),
        b'{"prompt":"%b\xff"}' % (b"a" * LONG),
        b'{"prompt":"%b\\ud800"}' % (b"a" * LONG),
        b'{"prompt":"%b\\x"}' % (b"a" * LONG),
        b'{"prompt":"%b' % (b"a" * LONG),
        b'{"prompt":"%b","prompt":"a"}' % (b"a" * (LONG + 1)),
    ],
    ids=["short", "elsewhere", "mark", "control", "utf-8", "surrogate", "escape", "open", "twice"],
)
def test_other_bodies_are_read_whole(body: dict[str, Any] | bytes) -> None:
    assert held(body) is None


@pytest.mark.parametrize(
    "field",
    [
        InputField("prompt", TEXT, max_length=10),
        InputField("prompt", TEXT, min_length=10),
        InputField("prompt", TEXT, regex="a+"),
        InputField("prompt", TEXT, choices=("a",)),
        InputField("prompt", TypeSpec("path")),
        InputField("prompt", TypeSpec("integer")),
    ],
    ids=["longest", "shortest", "regex", "choices", "file", "number"],
)
def test_texts_that_have_to_be_seen_are_read_whole(field: InputField) -> None:
    body = held({"prompt": "a" * (LONG + 1)})
    assert body is not None
    assert body.input(body.members, {}, taking(field)) is None


def test_values_are_counted() -> None:
    text = json.dumps({"prompt": ["a" * (LONG + 1), *["b"] * 20]}).encode()
    body = hold_texts(bytearray(text), 10)
    assert body is not None
    lists = taking(InputField("prompt", TypeSpec("array", items=TEXT)))
    assert body.input(body.members, {}, lists) is None
