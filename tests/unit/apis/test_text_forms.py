"""The forms of requests for text, and of their answers, hold for whatever clients and models give."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.apis.anthropic.answers import MessageAnswer
from geartrain.apis.anthropic.requests import read_message
from geartrain.apis.openai.growth import TextAnswer
from geartrain.apis.openai.parameters import Members
from geartrain.apis.openai.response_answers import ResponseAnswer
from geartrain.apis.openai.response_requests import read_response
from geartrain.apis.openai.text_answers import ChoicesAnswer, Heading
from geartrain.apis.openai.text_requests import TextRequest, read_chat
from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.types import InputField, Kind, OutputSpec, Signature, TypeSpec

Read = Callable[[Members, Signature, OpenAIView], TextRequest]

KINDS: dict[str, Kind] = {
    "messages": "array",
    "tools": "array",
    "tool_choice": "opaque",
    "response_format": "object",
    "max_tokens": "integer",
    "reasoning_effort": "string",
    "seed": "integer",
}
SIGNATURE = Signature(
    tuple(InputField(name, TypeSpec(kind), required=False) for name, kind in KINDS.items()),
    OutputSpec(TypeSpec("string")),
)
NAMES = (
    *("input", "messages", "instructions", "system", "tools", "tool_choice", "text", "reasoning", "include", "n"),
    *("metadata", "max_output_tokens", "max_tokens", "temperature", "stop", "stop_sequences", "output_config", "seed"),
    *("output_format", "response_format", "thinking", "stream", "stream_options", "mcp_servers", "background"),
)
TYPES = (
    *("message", "function", "function_call", "function_call_output", "reasoning", "input_text", "text", "image"),
    *("input_image", "tool_use", "tool_result", "thinking", "tool", "any", "allowed_tools", "json_schema", "custom"),
)
WORDS = st.sampled_from((*TYPES, "user", "assistant", "system", "tool", "base64", "url", "a"))
MEMBERS = st.sampled_from(
    (
        *("type", "role", "content", "text", "name", "call_id", "arguments", "output", "id", "input", "source", "data"),
        *(
            "input_schema",
            "parameters",
            "format",
            "effort",
            "schema",
            "json_schema",
            "tool_use_id",
            "tools",
            "thinking",
        ),
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)
PARTS = st.sampled_from(["", "a", "b", "z", "zz", "ab"])
CALLS = st.builds(
    lambda name, arguments: [{"name": name, "arguments": arguments}],
    st.just("f"),
    st.sampled_from(["{}", "", '{"a":1}']),
)
DELTAS = st.fixed_dictionaries(
    {}, optional={"content": PARTS, "reasoning": PARTS, "tool_calls": CALLS, "finish_reason": st.just("stop")}
)


@pytest.mark.parametrize("read", [read_chat, read_response, read_message])
@given(body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5), first=JSON, view=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_body_is_read_or_refused(read: Read, body: dict[str, Any], first: Any, view: bool) -> None:
    given_members = {"input": "a", "messages": [{"role": "user", "content": first}], **body}
    members = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given_members.items()}
    try:
        request = read(members, SIGNATURE, OpenAIView(messages="messages") if view else OpenAIView(prompt="prompt"))
    except GeartrainError:
        return
    for one in request.inputs:
        msgspec.json.decode(msgspec.json.encode(one))


def _chat(request: TextRequest) -> TextAnswer:
    return ChoicesAnswer(Heading("i", 1, "m", is_chat=True), request)


def _response(request: TextRequest) -> TextAnswer:
    return ResponseAnswer(request, "p", "m")


def _message(request: TextRequest) -> TextAnswer:
    return MessageAnswer(request, "p", model="m", metrics={})


def _run(new: Callable[[TextRequest], TextAnswer], pieces: list[Any], stops: tuple[str, ...], *, stream: bool) -> bytes:
    answer = new(TextRequest(({},), is_stream=stream, stops=stops))
    (choice,) = answer.choices
    sent = []
    for piece in pieces:
        sent.append(choice.take(msgspec.json.encode(piece)))
        if choice.is_over:
            break
    sent.append(choice.end({}))
    choice.check_calls()
    if stream:
        return b"".join([*sent, answer.last([{}])])
    return b"".join(answer.whole([{}]))


def _texts(data: bytes) -> list[Any]:
    """Return the data of the events of a stream."""
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@given(pieces=st.lists(PARTS | DELTAS, max_size=8), stops=st.sampled_from([(), ("zz",), ("ab", "z")]))
@settings(max_examples=100, deadline=None)
def test_stream_has_the_text_of_the_whole_answer_in_every_form(pieces: list[Any], stops: tuple[str, ...]) -> None:
    (choice,) = json.loads(_run(_chat, pieces, stops, stream=False))["choices"]
    text, thought = choice["message"]["content"] or "", choice["message"].get("reasoning_content", "")
    calls = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", ())]
    deltas = [event["choices"][0]["delta"] for event in _texts(_run(_chat, pieces, stops, stream=True))]
    assert "".join(delta.get("content", "") for delta in deltas) == text

    output = json.loads(_run(_response, pieces, stops, stream=False))["output"]
    events = _texts(_run(_response, pieces, stops, stream=True))
    assert events[-1]["response"]["output"] == output
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    for kind, whole in (("message", text), ("reasoning", thought)):
        parts = [part["text"] for item in output if item["type"] == kind for part in item["content"]]
        assert "".join(parts) == whole
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    assert [item["arguments"] for item in output if item["type"] == "function_call"] == calls

    content = json.loads(_run(_message, pieces, stops, stream=False))["content"]
    blocks: list[dict[str, Any]] = []
    for event in _texts(_run(_message, pieces, stops, stream=True)):
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            (name,) = event["delta"].keys() - {"type"}
            blocks[-1][name] += event["delta"][name]
    for block in blocks:
        arguments = block.pop("partial_json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments or "{}")
    assert blocks == content
    assert "".join(block["text"] for block in content if block["type"] == "text") == text
