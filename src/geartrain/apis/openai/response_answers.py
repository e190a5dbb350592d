"""Responses of OpenAI's API: items that grow, whole and as typed events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import text_of
from geartrain.apis.openai.growth import Part, PartedGrowth, TextAnswer
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.texts import count_tokens
from geartrain.domain.tensors.tensor import Buffer

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ITEMS: Final = {"text": "msg", "reasoning": "rs", "call": "fc"}  # beginnings of their ids
_CONTENT: Final = {"text": "output_text", "reasoning": "reasoning_text"}
_DELTAS: Final = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}

_encode = msgspec.json.Encoder().encode


class ResponseAnswer(PartedGrowth, TextAnswer):
    """The response to one request. See `TextAnswer`."""

    def __init__(self, request: TextRequest, prediction_id: str, model: str) -> None:
        super().__init__(prediction_id, stops=request.stops, tools=request.tools)
        self._is_stream = request.is_stream
        self._repeated = request.repeated
        self._model = model
        self._id = f"resp_{prediction_id}"
        self._created_at = int(time())
        self._number = 0  # of the next event
        self._has_begun = False
        self._frame = (b"", b"", b"")  # of the deltas of the part that grows: about the number and the text

    @property
    def id(self) -> str:
        """The id of the response."""
        return self._id

    @property
    def choices(self) -> tuple[ResponseAnswer]:
        """The one answer."""
        return (self,)

    def take(self, piece: Buffer) -> bytes:
        """Return the events for what the model has given."""
        return self._begin() + super().take(piece)

    def whole(self, metrics: Sequence[Mapping[str, Any]]) -> tuple[bytes]:
        """Return the body of an answer that is no stream."""
        return (_encode(self._complete(metrics)),)

    def last(self, metrics: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the last event of a stream."""
        response = self._complete(metrics)
        return self._event(f"response.{response['status']}", response=response)

    def fault(self, error: GeartrainError) -> bytes:
        """Return the last event of a stream that fails. Its error has few codes, which OpenAI's document lists."""
        told = {"code": "server_error", "message": text_of(error)}
        return self._event("response.failed", response=self._resource("failed", error=told))

    def _complete(self, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        reason = _INCOMPLETE.get(self.reason or "")
        response = self._resource("incomplete" if reason else "completed")
        if reason:
            response["incomplete_details"] = {"reason": reason}
        else:
            response["completed_at"] = int(time())
        tokens = count_tokens(metrics)
        if tokens:
            response["usage"] = {
                "input_tokens": tokens.prompt,
                "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
                "output_tokens": tokens.completion,
                "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
                "total_tokens": tokens.prompt + tokens.completion,
            }
        return response

    def _resource(self, status: str, *, error: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the response as it is now."""
        is_cut = status in ("incomplete", "failed")
        items = [self._item(part, "completed") for part in self.parts]
        if items and is_cut:
            items[-1]["status"] = "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "model": self._model,
            "output": items,
            "error": error,
            "incomplete_details": None,
            **self._repeated,
        }

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(part), "status": status}
        if part.call is not None:
            call = {"call_id": part.call.id, "name": part.call.name, "arguments": part.text}
            return {**item, "type": "function_call", **call}
        content = [self._content(part)] if part.texts or status == "completed" else []
        if part.kind == "reasoning":
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _content(self, part: Part) -> dict[str, Any]:
        content: dict[str, Any] = {"type": _CONTENT[part.kind], "text": part.text}
        return content if part.kind == "reasoning" else {**content, "annotations": [], "logprobs": part.logprobs}

    def _item_id(self, part: Part) -> str:
        return f"{_ITEMS[part.kind]}_{self._own_id}_{part.index}"

    # the events

    def _start(self, part: Part) -> bytes:
        if not self._is_stream:
            return b""
        self._frame = self._frame_of(part)
        item = self._item(part, "in_progress")
        if part.call is not None:
            item["arguments"] = ""
        elif item["content"]:
            item["content"] = []
        events = self._begin() + self._event("response.output_item.added", output_index=part.index, item=item)
        if part.call is not None:
            return events
        return events + self._of("response.content_part.added", part, part=_emptied(self._content(part)))

    def _grow(self, part: Part, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        if not self._is_stream:
            return b""
        if logprobs:
            return self._of(f"{_DELTAS[part.kind]}.delta", part, delta=text, logprobs=logprobs)
        before, between, behind = self._frame
        self._number += 1
        return b"%b%d%b%b%b" % (before, self._number - 1, between, _encode(text), behind)

    def _stop(self, part: Part) -> bytes:
        if not self._is_stream:
            return b""
        name = f"{_DELTAS[part.kind]}.done"
        if part.call is not None:
            events = self._of(name, part, name=part.call.name, arguments=part.text)
        else:
            more = {"logprobs": part.logprobs} if part.kind == "text" else {}
            events = self._of(name, part, text=part.text, **more)
            events += self._of("response.content_part.done", part, part=self._content(part))
        item = self._item(part, "completed")
        if self.reason in _INCOMPLETE:
            item["status"] = "incomplete"
        return events + self._event("response.output_item.done", output_index=part.index, item=item)

    def _begin(self) -> bytes:
        if self._has_begun or not self._is_stream:
            return b""
        self._has_begun = True
        response = {**self._resource("in_progress"), "output": []}
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _frame_of(self, part: Part) -> tuple[bytes, bytes, bytes]:
        name = f"{_DELTAS[part.kind]}.delta".encode()
        between = b"," + _encode(self._place(part))[1:-1] + b',"delta":'
        behind = b',"logprobs":[]}\n\n' if part.kind == "text" else b"}\n\n"
        return b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name), between, behind

    def _of(self, name: str, part: Part, /, **members: Any) -> bytes:
        """Return an event about a part."""
        return self._event(name, **self._place(part), **members)

    def _place(self, part: Part) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id(part), "output_index": part.index}
        return place if part.call is not None else {**place, "content_index": 0}

    def _event(self, name: str, /, **members: Any) -> bytes:
        data = _encode({"type": name, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _emptied(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "text": "", **({"logprobs": []} if "logprobs" in content else {})}
