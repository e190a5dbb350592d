"""Text as chat completions and completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import encode_error
from geartrain.apis.openai.growth import LARGE, TEXT_MARK, Call, Growth, JsonText, TextAnswer, joined, put_in
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.texts import count_tokens
from geartrain.domain.tensors.tensor import Buffer

NO_USAGE: Final[dict[str, Any]] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_DONE: Final = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(str).decode


class Heading(msgspec.Struct, frozen=True):
    """The members of every answer and chunk of one request; `created` in seconds since the epoch."""

    id: str
    created: int
    model: str
    is_chat: bool

    def members(self, *, is_chunk: bool) -> dict[str, Any]:
        """Return the members that come first."""
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Choice(Growth):
    """One text of an answer as it grows: pieces in, chunks out.

    The JSON text of a piece goes as it is into its chunk, and into the whole answer, unless a stop sequence cuts it.
    """

    def __init__(
        self,
        heading: Heading,
        index: int,
        *,
        keeps: bool,
        stops: Sequence[str] = (),
        tools: frozenset[str] = frozenset(),
        is_stream: bool = True,
        echo: str = "",
    ) -> None:
        """`keeps`: whether the whole text is needed at the end. `is_stream`: whether there are chunks at all."""
        super().__init__(heading.id, stops=stops, tools=tools)
        self._heading = heading
        self._index = index
        self._keeps = keeps
        self._is_stream = is_stream
        self._whole_text = JsonText()
        self._reasoning: list[str] = []
        self._logprobs: list[Any] = []
        self._has_begun = False
        self._before, self._behind = self._frame()
        self._echo = echo

    @property
    def text(self) -> str:
        """The text so far, where it is kept."""
        return str(self._whole_text)

    def take(self, piece: Buffer) -> bytes:
        """Return the chunks for what the model has given."""
        begin = self._begin()
        if piece[:1] != b'"':
            return begin + super().take(piece)
        if self._cutter is None:
            written = self._written(piece)
            return joined(begin, written) if begin else written
        text = _decode(piece)
        passed = self._cutter.add(text)
        if passed is text:  # it goes as it has come, which saves 1 µs
            return begin + self._written(piece) if text else begin
        return begin + self._text(passed, []) if passed else begin

    def end(self, metrics: Mapping[str, Any]) -> bytes:
        """Return the last chunks, once the run has ended."""
        return self._begin() + super().end(metrics)

    @property
    def whole_text(self) -> JsonText:
        """The whole text, where it is kept."""
        return self._whole_text

    def whole(self) -> dict[str, Any]:
        """Return the choice as a member of an answer, after its end. `TEXT_MARK` stands for its text."""
        logprobs = self._told(self._logprobs) if self._logprobs else None
        choice: dict[str, Any] = {"index": self._index}
        if self._heading.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": TEXT_MARK, "refusal": None}
            if self._reasoning:
                message["reasoning_content"] = "".join(self._reasoning)
            if self.calls:
                message["content"] = TEXT_MARK if self._whole_text else None
                message["tool_calls"] = [_tool_call(call) for call in self.calls]
            choice["message"] = message
        else:
            choice["text"] = TEXT_MARK
        return {**choice, "logprobs": logprobs, "finish_reason": self.reason}

    def _begin(self) -> bytes:
        """Begin, once: return the chunk of the role, or that of the prompt that is echoed."""
        if self._has_begun:
            return b""
        self._has_begun = True
        if self._heading.is_chat:
            return self._chunk({"role": "assistant", "content": "", "refusal": None})
        return self._text(self._echo, []) if self._echo else b""

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        if not logprobs:
            return self._written(_encode(text))
        if self._keeps:
            self._whole_text.add(_encode(text))
        self._logprobs += logprobs
        return self._chunk({"content": text}, logprobs=self._told(logprobs))

    def _told(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return probabilities as the answer has them: those of completions have lists of their members."""
        if self._heading.is_chat:
            return {"content": logprobs, "refusal": None}
        tokens = [one["token"] for one in logprobs]
        begin = sum(len(one["token"]) for one in self._logprobs[: len(self._logprobs) - len(logprobs)])
        return {
            "tokens": tokens,
            "token_logprobs": [one["logprob"] for one in logprobs],
            "top_logprobs": [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in logprobs],
            "text_offset": [begin + sum(map(len, tokens[:at])) for at in range(len(tokens))],
        }

    def _written(self, piece: Buffer) -> bytes:
        """Return the chunk of the JSON text of a piece; none where there are no chunks."""
        if self._keeps:
            self._whole_text.add(piece)
        if not self._is_stream:
            return b""
        parts = (self._before, piece, self._behind)
        return b"".join(parts) if len(piece) <= LARGE else joined(*parts)

    def _thought(self, text: str) -> bytes:
        self._reasoning.append(text)
        return self._chunk({"reasoning_content": text})

    def _call(self, at: int, part: Call, *, is_new: bool) -> bytes:
        function = {"name": part.name, "arguments": part.arguments} if part.name else {"arguments": part.arguments}
        if is_new:
            return self._chunk({"tool_calls": [{"index": at, "id": part.id, "type": "function", "function": function}]})
        return self._chunk({"tool_calls": [{"index": at, "function": function}]})

    def _last(self) -> bytes:
        return self._chunk({}, finish_reason=self.reason)

    def _chunk(self, delta: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": self._index}
        if not self._heading.is_chat:
            choice |= {"text": delta.get("content", ""), "logprobs": logprobs}
        else:
            choice |= {"delta": delta} if logprobs is None else {"delta": delta, "logprobs": logprobs}
        choice["finish_reason"] = finish_reason
        return event({**self._heading.members(is_chunk=True), "choices": [choice]})

    def _frame(self) -> tuple[bytes, bytes]:
        """Return the two halves of a chunk, around the JSON text of its piece."""
        head = _encode(self._heading.members(is_chunk=True))[:-1]
        if self._heading.is_chat:
            before = b'data: %b,"choices":[{"index":%d,"delta":{"content":' % (head, self._index)
            return before, b'},"finish_reason":null}]}\n\n'
        before = b'data: %b,"choices":[{"index":%d,"text":' % (head, self._index)
        return before, b',"logprobs":null,"finish_reason":null}]}\n\n'


class ChoicesAnswer(TextAnswer):
    """The choices of one request. See `TextAnswer`."""

    def __init__(self, heading: Heading, request: TextRequest) -> None:
        self._heading = heading
        self._request = request
        keeps = not request.is_stream or request.shape is not None
        echoes = request.echoes or ("",) * len(request.inputs)
        self._choices = [
            Choice(
                heading,
                index,
                keeps=keeps,
                stops=request.stops,
                tools=request.tools,
                is_stream=request.is_stream,
                echo=echo,
            )
            for index, echo in enumerate(echoes)
        ]

    @property
    def id(self) -> str:
        """The id of the answer."""
        return self._heading.id

    @property
    def choices(self) -> Sequence[Choice]:
        """The choices, in their order."""
        return self._choices

    def whole(self, metrics: Sequence[Mapping[str, Any]]) -> list[Buffer]:
        """Return a whole answer in parts, without copies of large pieces of text."""
        usage = self._usage(metrics)
        wholes = [choice.whole() for choice in self.choices]
        answer = {**self._heading.members(is_chunk=False), "choices": wholes}
        texts = [choice.whole_text for choice, whole in zip(self.choices, wholes, strict=True) if _has_text(whole)]
        return put_in(_encode(answer if usage is None else {**answer, "usage": usage}), texts)

    def last(self, metrics: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the end of a stream, with the usage in a chunk without choices if the client asks for it."""
        if not self._request.has_usage:
            return _DONE
        chunk = {**self._heading.members(is_chunk=True), "choices": []}
        usage = self._usage(metrics)
        return event(chunk if usage is None else {**chunk, "usage": usage}) + _DONE

    def _usage(self, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the usage; None where the model counts no tokens. LangChain fails on a completion without one."""
        return usage_of(metrics, self._request.count) or (None if self._heading.is_chat else NO_USAGE)

    def fault(self, error: GeartrainError) -> bytes:
        """Return the end of a stream that fails."""
        return b"data: %b\n\n" % encode_error(error)


def usage_of(metrics: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any] | None:
    """Sum up the tokens that the runs have recorded; None if none of them has.

    `metrics` are those of each choice; `count` of them have the same prompt.
    """
    tokens = count_tokens(metrics, count)
    if not tokens:
        return None
    usage: dict[str, Any] = {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}
    usage["total_tokens"] = tokens.prompt + tokens.completion
    if tokens.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def _has_text(whole: dict[str, Any]) -> bool:
    return "message" not in whole or whole["message"]["content"] is not None


def _tool_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def event(value: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: %b\n\n" % _encode(value)
