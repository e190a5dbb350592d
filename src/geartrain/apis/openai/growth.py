"""The answer of a model as it grows: pieces in, the bytes of an API's form out.

Each form is a subclass. Stop sequences, calls of tools and the reason of the end are the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from geartrain.apis.openai.errors import OpenAIError
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.domain.tensors.tensor import Buffer

Reason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]

_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_CUT: Final = frozenset({"length", "content_filter"})  # ends after which a call may be half of one
_SHORT: Final = 100  # characters of a piece
_decode = msgspec.json.Decoder().decode
_is_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StopCutter:
    """Cuts one stream of text. What may be the beginning of a stop sequence is held back until it is known."""

    __slots__ = ("_begins", "_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._begins = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.found: str | None = None  # the stop sequence that has come

    @property
    def is_over(self) -> bool:
        """True once a stop sequence has come."""
        return self.found is not None

    def add(self, text: str) -> str:
        """Take a piece, and return what can be passed on: the very piece where there is nothing to cut or to hold."""
        if self.is_over:
            return ""
        # Of most pieces no character begins a stop sequence: to find that out takes 0.1 µs, all that follows 3 µs.
        if not self._held and len(text) <= _SHORT and self._begins.isdisjoint(text):
            return text
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Let go of the text that was held back: it is over, and was no stop sequence."""
        held, self._held = self._held, ""
        return held


class Call(msgspec.Struct):
    """A call of a tool, or a part of one. `arguments` is JSON text."""

    id: str
    name: str = ""
    arguments: str = ""


class Growth(ABC):
    """One answer as it grows."""

    def __init__(self, own_id: str, *, stops: Sequence[str], tools: frozenset[str]) -> None:
        """`tools`: the names that calls may have; any where there are none."""
        self._own_id = own_id
        self._tools = tools
        self._cutter = StopCutter(stops) if stops else None
        self.calls: list[Call] = []
        self.reason: Reason | None = None  # of its end

    @property
    def is_over(self) -> bool:
        """True once a stop sequence has come: nothing of what follows counts."""
        return self._cutter is not None and self._cutter.is_over

    @property
    def stop(self) -> str | None:
        """The stop sequence that has ended the text."""
        return None if self._cutter is None else self._cutter.found

    @property
    @abstractmethod
    def text(self) -> str:
        """The text so far, where it is kept."""

    def take(self, piece: Buffer) -> bytes:
        """Take the JSON text of what the model has given; return the bytes for it.

        It is a text, null, or a record with a `content`. Raises `RUN_FAILED`.
        """
        value = _decode(piece)
        if isinstance(value, str):
            return self._cut(value, [])
        return self._take_delta(value) if isinstance(value, dict) else b""

    def end(self, metrics: Mapping[str, Any]) -> bytes:
        """Return the last bytes, once the run has ended."""
        rest = self._release()
        if self.is_over:
            self.reason = "stop"
        if self.reason is None:
            self.reason = _reason(metrics.get("finish_reason")) or ("tool_calls" if self.calls else "stop")
        return rest + self._last()

    def check_calls(self) -> None:
        """Raise `RUN_FAILED` for calls of tools that are none, after the end."""
        for call in self.calls if self.reason not in _CUT else ():
            if self._tools and call.name not in self._tools:
                raise _bad_call(f"The model called '{clip(call.name)}', which is not one of the 'tools'.")
            try:
                _is_object(call.arguments.encode() or b"{}")
            except (ValueError, RecursionError):
                msg = f"The model called '{clip(call.name)}' with arguments that are no JSON object."
                raise _bad_call(msg) from None

    # the form

    @abstractmethod
    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """Return the bytes for a piece of text."""

    @abstractmethod
    def _thought(self, text: str) -> bytes:
        """Return the bytes for a piece of reasoning."""

    @abstractmethod
    def _call(self, at: int, part: Call, *, is_new: bool) -> bytes:
        """Return the bytes for a part of the call with the number `at`."""

    @abstractmethod
    def _last(self) -> bytes:
        """Return the bytes for the end."""

    # the pieces

    def _take_delta(self, value: dict[str, Any]) -> bytes:
        """Return the bytes for a record that tells more than text."""
        if self.is_over:
            return b""
        content, reasoning, calls = value.get("content"), value.get("reasoning"), value.get("tool_calls")
        given = value.get("logprobs")
        pieces = []
        if isinstance(reasoning, str) and reasoning:
            pieces += [self._release(), self._thought(reasoning)]
        logprobs = (
            [_logprob({"top": [], **one}) for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        )
        if isinstance(content, str) or logprobs:
            pieces.append(self._cut(content if isinstance(content, str) else "", logprobs))
        if isinstance(calls, list) and calls and not self.is_over:
            pieces += [self._release(), *(self._add_call(call) for call in calls if isinstance(call, dict))]
        self.reason = _reason(value.get("finish_reason")) or self.reason
        return b"".join(pieces)

    def _cut(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        if self._cutter is not None:
            text = self._cutter.add(text)
        return self._text(text, logprobs) if text or logprobs else b""

    def _release(self) -> bytes:
        """Return the bytes for text that was held back."""
        rest = self._cutter.rest() if self._cutter is not None else ""
        return self._text(rest, []) if rest else b""

    def _add_call(self, given: dict[str, Any]) -> bytes:
        """Put a part of a call to the parts before it."""
        index = given.get("index")
        count = len(self.calls)
        at = index if isinstance(index, int) and 0 <= index <= count else count
        is_new = at == count
        if is_new:
            self.calls.append(Call(str(given.get("id") or f"call_{self._own_id}_{at}")))
        call = self.calls[at]
        part = Call(call.id, str(given.get("name") or ""), str(given.get("arguments") or ""))
        call.name += part.name
        call.arguments += part.arguments
        return self._call(at, part, is_new=is_new)


class Part(msgspec.Struct):
    """A part of an answer whose parts stand one after the other."""

    kind: Literal["reasoning", "text", "call"]
    index: int
    call: Call | None = None
    texts: list[str] = []
    logprobs: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class PartedGrowth(Growth):
    """An answer whose parts stand one after the other: each ends where the next one begins."""

    def __init__(self, own_id: str, *, stops: Sequence[str], tools: frozenset[str]) -> None:
        super().__init__(own_id, stops=stops, tools=tools)
        self.parts: list[Part] = []
        self._has_open = False  # the last one

    @property
    def text(self) -> str:
        """The text so far, without reasoning."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    # the form

    @abstractmethod
    def _start(self, part: Part) -> bytes:
        """Return the bytes for the beginning of a part."""

    @abstractmethod
    def _grow(self, part: Part, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """Return the bytes for a piece of a part."""

    @abstractmethod
    def _stop(self, part: Part) -> bytes:
        """Return the bytes for the end of a part."""

    # the pieces

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        begin, part = self._part("text")
        part.logprobs += logprobs
        part.texts.append(text)
        return begin + self._grow(part, text, logprobs)

    def _thought(self, text: str) -> bytes:
        begin, part = self._part("reasoning")
        part.texts.append(text)
        return begin + self._grow(part, text, [])

    def _call(self, at: int, part: Call, *, is_new: bool) -> bytes:
        begin = b""
        if is_new:
            begin = self._open("call", self.calls[at])
        elif not self._has_open or self.parts[-1].call is not self.calls[at]:
            msg = "The model went on with the call of a tool after it had begun with something else."
            raise GeartrainError(Code.RUN_FAILED, msg)
        self.parts[-1].texts.append(part.arguments)
        return begin + self._grow(self.parts[-1], part.arguments, []) if part.arguments else begin

    def _last(self) -> bytes:
        begin = b"" if self.parts else self._part("text")[0]
        return begin + self._close()

    def _part(self, kind: Literal["reasoning", "text"]) -> tuple[bytes, Part]:
        """Return the part of a kind that grows, and the bytes for its beginning if it is new."""
        if self._has_open and self.parts[-1].kind == kind:
            return b"", self.parts[-1]
        return self._open(kind, None), self.parts[-1]

    def _open(self, kind: Literal["reasoning", "text", "call"], call: Call | None) -> bytes:
        before = self._close()
        self.parts.append(Part(kind, len(self.parts), call))
        self._has_open = True
        return before + self._start(self.parts[-1])

    def _close(self) -> bytes:
        if not self._has_open:
            return b""
        self._has_open = False
        return self._stop(self.parts[-1])


class TextAnswer(ABC):
    """The answer to one request for text, in the form of one API."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of the answer."""

    @property
    @abstractmethod
    def choices(self) -> Sequence[Growth]:
        """The answers of the runs."""

    @abstractmethod
    def whole(self, metrics: Sequence[Mapping[str, Any]]) -> Sequence[Buffer]:
        """Return the body of an answer that is no stream, in parts. `metrics` are those of each run."""

    @abstractmethod
    def last(self, metrics: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the end of a stream."""

    @abstractmethod
    def fault(self, error: GeartrainError) -> bytes:
        """Return the end of a stream that has begun and fails."""


def _reason(said: Any) -> Reason | None:
    return cast("Reason", said) if isinstance(said, str) and said in _REASONS else None


def _logprob(one: Any) -> dict[str, Any]:
    given = one if isinstance(one, dict) else {}
    token = str(given.get("token", ""))
    top = given.get("top")
    one_token = {"token": token, "logprob": given.get("logprob", 0.0), "bytes": list(token.encode())}
    return {**one_token, "top_logprobs": [_logprob(each) for each in top]} if isinstance(top, list) else one_token


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that a stop sequence begins with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def _bad_call(message: str) -> OpenAIError:
    return OpenAIError(Code.RUN_FAILED, message, kind="invalid_tool_call")
