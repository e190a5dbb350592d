"""Types for models that are asked by OpenAI's API, and the declaration of endpoints.

Models of text need none of it. One that takes `messages: list[Message]` gets a chat as it came, and one that gives
`Delta` can tell more than text. A model that gives a `Transcript` or `Segment`s has subtitles. Speech, images and
moderations are declared with `endpoint`: a file or a dict of numbers could be anything.
`Detokenizer` makes text of tokens that come one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypedDict, TypeVar

from geartrain.authoring.decorators import OPENAI_ATTRIBUTE

__all__ = ["Delta", "Detokenizer", "Message", "Segment", "TokenLogprob", "ToolCall", "Transcript", "Word", "endpoint"]

Endpoint = Literal["transcriptions", "speech", "images", "moderations"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_CONTEXT: Final = 5  # tokens of a prompt
_LONGEST: Final = 16  # tokens that are held at all, of what is no text
_MOST_HELD: Final = 3  # tokens, of a byte at least each: a character has up to 4 bytes
_ENDPOINTS: Final = ("transcriptions", "speech", "images", "moderations")


def endpoint(name: Endpoint, *, threshold: float = 0.5, **inputs: str) -> Callable[[_Function], _Function]:
    """Declare the endpoint of `run()`: `@endpoint("speech", input="text")`.

    `inputs` are the parameters of the endpoint that have inputs of another name: OpenAI's `input` is the input `text`
    here. `threshold` is for moderations: a text is flagged from this score on.

    Raises `ValueError` for an unknown endpoint or a threshold that is no number from 0 to 1.
    """
    if name not in _ENDPOINTS:
        raise ValueError(f"@endpoint({name!r}): the endpoints are {', '.join(_ENDPOINTS)}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"@endpoint({name!r}, threshold={threshold!r}): threshold is a number from 0 to 1")

    def decorate(function: _Function) -> _Function:
        setattr(function, OPENAI_ATTRIBUTE, {"name": name, "names": inputs, "threshold": float(threshold)})
        return function

    return decorate


class _RequiredOfMessage(TypedDict):
    role: str


class Message(_RequiredOfMessage, total=False):
    """A message of a chat.

    `role` is system, user, assistant or tool. `content` is a text, null for an assistant that only calls tools, or a
    list of parts where some are no text. `reasoning_content` is what the assistant thought before, where a client sends
    it: clients of responses and of Anthropic's messages do.
    """

    content: str | list[dict[str, Any]] | None
    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    reasoning_content: str


class ToolCall(TypedDict, total=False):
    """A call of a tool, or a part of one: `index` tells the calls of an answer apart, `arguments` is JSON text."""

    index: int
    id: str
    name: str
    arguments: str


class TokenLogprob(TypedDict, total=False):
    """The probability of a token, and the likeliest ones in its place in `top`."""

    token: str
    logprob: float
    top: list[dict[str, Any]]


class Delta(TypedDict, total=False):
    """A piece of an answer.

    Text is `content`. `reasoning` is what the model thinks, `tool_calls` are parts of calls, `logprobs` belong to the
    content. `finish_reason` says why the text has ended.
    """

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    logprobs: list[TokenLogprob]
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class _RequiredOfSegment(TypedDict):
    start: float
    end: float
    text: str


class Segment(_RequiredOfSegment, total=False):
    """A part of a transcript with its times in seconds. `speaker` names the voice, for `diarized_json`."""

    speaker: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word]


class Word(TypedDict):
    """A word of a transcript with its times in seconds."""

    word: str
    start: float
    end: float


class _RequiredOfTranscript(TypedDict):
    text: str


class Transcript(_RequiredOfTranscript, total=False):
    """A whole transcript: `language` is the spoken one, `duration` the seconds of the recording."""

    language: str
    duration: float
    segments: list[Segment]
    words: list[Word]


class Detokenizer:
    """The text of the tokens of one answer as they come.

    A character whose bytes lie in several tokens comes with the last of them. Each token costs about the same, however
    long the answer is.
    """

    __slots__ = ("_decode", "_given", "_held", "_ids", "_skips")

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> None:
        """`tokenizer` is one of `transformers` or of `tokenizers`; special tokens give no text, or their own.

        `after` is the end of the prompt's tokens: some tokenizers write no space before the first word of a text.
        """
        # That of `transformers` may take spaces out of text that has been given already.
        self._decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode
        self._skips = skip_special_tokens
        # The tokens of the last piece, which may matter to the next one, and those that are held.
        self._ids = list(after[-_CONTEXT:])
        self._held = 0
        self._given = len(self._text(self._ids)) if after else 0  # characters of the text of `_ids`

    def add(self, *tokens: int) -> str:
        """Take tokens; return the text that has become certain with them, which may be empty."""
        pieces = [self._add(token) for token in tokens]
        return pieces[0] if len(pieces) == 1 else "".join(pieces)

    def end(self) -> str:
        """Return the text that was held back, in which what is left of a character is U+FFFD."""
        piece = self._text(self._ids)[self._given :]
        self._ids, self._held, self._given = [], 0, 0
        return piece

    def _add(self, token: int) -> str:
        self._ids.append(token)
        self._held += 1
        text = self._text(self._ids)
        if not text.endswith(_BROKEN):
            return self._give(text, self._held)
        if self._held > _MOST_HELD and (count := self._settled(text)):
            return self._give(self._text(self._ids[: len(self._ids) - self._held + count]), count)
        whole = text.rstrip(_BROKEN)
        piece, self._given = whole[self._given :], max(self._given, len(whole))
        return piece

    def _settled(self, text: str) -> int:
        """Return the number of held tokens whose bytes can no longer become a character."""
        begin = len(self._ids) - self._held
        for count in range(1, self._held):
            before, behind = self._ids[: begin + count], self._ids[begin + count :]
            if len(self._text(before)) + len(self._text(behind)) == len(text):
                return count
        return 0 if self._held < _LONGEST else 1

    def _give(self, text: str, count: int) -> str:
        """Return the end of a text, with which the first `count` of the held tokens are given."""
        piece = text[self._given :]
        ahead = max(self._given - len(text), 0)  # given already, of the tokens behind
        begin = len(self._ids) - self._held
        del self._ids[:begin]
        self._held -= count
        self._given = len(self._text(self._ids[:count])) + ahead
        return piece

    def _text(self, ids: list[int]) -> str:
        text: str = self._decode(ids, skip_special_tokens=self._skips)
        return text
