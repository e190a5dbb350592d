"""Messages of Anthropic's API: blocks that grow, whole and as events; and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import text_of
from geartrain.apis.openai.growth import Part, PartedGrowth, TextAnswer
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.texts import count_tokens
from geartrain.domain.tensors.tensor import Buffer

_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS: Final = {
    Code.UNAUTHENTICATED: "authentication_error",
    Code.FORBIDDEN: "permission_error",
    Code.NOT_FOUND: "not_found_error",
    Code.TOO_LARGE: "request_too_large",
    Code.AT_CAPACITY: "rate_limit_error",
    Code.QUEUE_FULL: "rate_limit_error",
    Code.TOO_MANY_READERS: "rate_limit_error",
    Code.NOT_READY: "overloaded_error",
    Code.SHUTTING_DOWN: "overloaded_error",
    Code.QUEUE_TIMED_OUT: "overloaded_error",
    Code.STORE_UNAVAILABLE: "overloaded_error",
    Code.OWNER_UNREACHABLE: "overloaded_error",
    Code.TIMED_OUT: "timeout_error",
    Code.STORE_VERSION: "api_error",
    Code.RUN_FAILED: "api_error",
    Code.RUN_CANCELED: "api_error",
    Code.INTERNAL: "api_error",
}
# The event of a piece, around the index of its part, its type and its JSON text: to encode it all takes 2 µs more.
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{%b%b}}\n\n'
_DELTAS: Final = {
    "text": b'"type":"text_delta","text":',
    "reasoning": b'"type":"thinking_delta","thinking":',
    "call": b'"type":"input_json_delta","partial_json":',
}
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_error(error: GeartrainError) -> bytes:
    """Return the body of an answer to a request that failed."""
    return encode_fault(text_of(error), _ERRORS.get(error.code, "invalid_request_error"))


def encode_fault(message: str, kind: str) -> bytes:
    """Return an error as Anthropic writes it."""
    return _encode({"type": "error", "error": {"type": kind, "message": message}})


class MessageAnswer(PartedGrowth, TextAnswer):
    """The message that answers one request. See `TextAnswer`."""

    def __init__(self, request: TextRequest, prediction_id: str, *, model: str, metrics: Mapping[str, Any]) -> None:
        """`metrics`: those of the run, as they grow."""
        super().__init__(prediction_id, stops=request.stops, tools=request.tools)
        self._is_stream = request.is_stream
        self._metrics = metrics
        self._model = model
        self._has_begun = False

    @property
    def id(self) -> str:
        """The id of the message."""
        return f"msg_{self._own_id}"

    @property
    def choices(self) -> tuple[MessageAnswer]:
        """The one answer."""
        return (self,)

    def take(self, piece: Buffer) -> bytes:
        """Return the events for what the model has given."""
        return self._begin() + super().take(piece)

    def whole(self, metrics: Sequence[Mapping[str, Any]]) -> tuple[bytes]:
        """Return the body of an answer that is no stream."""
        content = [self._block(part) for part in self.parts]
        message = {**self._head(), "content": content, **self._ending(), "usage": _usage(metrics)}
        return (_encode(message),)

    def last(self, metrics: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the last events of a stream."""
        end = _event("message_delta", delta=self._ending(), usage=_usage(metrics))
        return end + _event("message_stop")

    def fault(self, error: GeartrainError) -> bytes:
        """Return the last event of a stream that fails."""
        return b"event: error\ndata: %b\n\n" % encode_error(error)

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self._model}

    def _ending(self) -> dict[str, Any]:
        reason = "stop_sequence" if self.is_over else _REASONS[self.reason or "stop"]
        return {"stop_reason": reason, "stop_sequence": self.stop}

    def _block(self, part: Part) -> dict[str, Any]:
        """Return a block that is whole."""
        if part.call is not None:
            return {**_empty(part), "input": _input(part.text)}
        return {**_empty(part), "thinking" if part.kind == "reasoning" else "text": part.text}

    # the events

    def _begin(self) -> bytes:
        if self._has_begun or not self._is_stream:
            return b""
        self._has_begun = True
        none: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**self._head(), **none, "usage": {**_usage([self._metrics]), "output_tokens": 0}}
        return _event("message_start", message=message) + _PING

    def _start(self, part: Part) -> bytes:
        if not self._is_stream:
            return b""
        return self._begin() + _event("content_block_start", index=part.index, content_block=_empty(part))

    def _grow(self, part: Part, text: str, logprobs: list[dict[str, Any]]) -> bytes:  # noqa: ARG002 - it has none
        if not self._is_stream:
            return b""
        return _DELTA % (part.index, _DELTAS[part.kind], _encode(text))

    def _stop(self, part: Part) -> bytes:
        return _event("content_block_stop", index=part.index) if self._is_stream else b""


def _empty(part: Part) -> dict[str, Any]:
    """Return a block as it begins. No model here signs what it thinks."""
    if part.call is not None:
        return {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": {}}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def _input(arguments: str) -> dict[str, Any]:
    """Return the input of a tool; empty for one that the end of the text has cut."""
    try:
        value = _decode(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage. What was read from a cache is not counted as input."""
    tokens = count_tokens(metrics)
    return {
        "input_tokens": max(0, tokens.prompt - tokens.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }


def _event(name: str, /, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))
