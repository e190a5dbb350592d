"""The interfaces of backends for models of language: those that go on with a text, rank texts, or write down speech.

A backend schedules the texts that it makes at the same time by itself. `geartrain.worker.loading.backend_runner` makes
a model of it, with one run for each text.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict

import msgspec

from geartrain.backends.interface import BackendError
from geartrain.openai import TokenLogprob

__all__ = [
    "BackendError",
    "Dictation",
    "Heard",
    "Piece",
    "PromptError",
    "RankBackend",
    "Sampling",
    "SpeechBackend",
    "TextBackend",
]


class PromptError(Exception):
    """A prompt that the model cannot go on with, or a recording that it cannot read: one sentence for the client."""


class Sampling(msgspec.Struct, frozen=True):
    """The parameters of one text. None leaves a value to the model.

    `max_tokens` None is as many as the model can make. `logprobs` is the number of the likeliest tokens that are told
    for each token, None for no probabilities at all. With `ignore_eos` only `max_tokens` ends a text. `schema` is a
    JSON schema that the text has to fit, as JSON; empty for any text. Only a backend that `constrains` gets one.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    schema: str = ""


class Piece(NamedTuple):
    """A piece of a text: one or more tokens.

    `prompt_tokens` and `tokens` count those of the prompt and of the text so far. `finish_reason` is that of the last
    piece, "stop" or "length".
    """

    text: str
    prompt_tokens: int
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str = ""


class TextBackend(abc.ABC):
    """A language model in a file, or in a folder, of one format.

    `load()` is called once, in a process that has no other model. From then on `generate()` is called for one text
    after the other, up to `slots` at the same time, always on the same event loop. `chat_template` and
    `special_tokens_map` are the model's own template and the special tokens by their names in it; where the template is
    None, that of the model's folder is taken. `constrains`, set by `load()`, is true if texts can be made to fit a
    schema. `platform`, `options` and `description` are those of `Backend`.
    """

    platform: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    description: str = ""
    slots: int = 32
    constrains: bool = False
    chat_template: str | None = None
    special_tokens_map: Mapping[str, str] = {}

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """`options` are plain YAML values, still to be checked: see `geartrain.backends.options`."""
        self.path = path
        self.given = options

    @abc.abstractmethod
    def load(self) -> None:
        """Import the library and read the model. Raises `BackendError`, as that of `Backend`."""

    @abc.abstractmethod
    def generate(self, prompt: str, sampling: Sampling) -> AsyncIterator[Piece]:
        """Yield the text that follows a prompt. Raises `PromptError`; whatever else it raises is the client's answer.

        It is an async generator. When it is closed before its end, the text is canceled: no further token is made for
        it.
        """

    def close(self) -> None:  # noqa: B027 - some have nothing to do
        """Release what the library holds; nothing is called afterwards."""


class RankBackend(abc.ABC):
    """A model in a file, or in a folder, that scores documents for a query.

    `load()` is called once, and then `rank()` for one query after the other, always in the same thread. `platform`,
    `options` and `description` are those of `Backend`.
    """

    platform: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    description: str = ""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """`options` are plain YAML values, still to be checked: see `geartrain.backends.options`."""
        self.path = path
        self.given = options

    @abc.abstractmethod
    def load(self) -> None:
        """Import the library and read the model. Raises `BackendError`, as that of `Backend`."""

    @abc.abstractmethod
    def rank(self, query: str, documents: list[str]) -> list[float]:
        """Return the score of each document. Whatever it raises is the client's answer."""

    def close(self) -> None:  # noqa: B027 - some have nothing to do
        """Release what the library holds; nothing is called afterwards."""


class Dictation(msgspec.Struct, frozen=True):
    """The parameters of one transcript.

    `language` is a code such as "en"; empty leaves it to the model. With `translates` the text is English. `prompt` is
    text that might stand before the transcript, such as names that occur in it.
    """

    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    translates: bool = False


class _RequiredOfHeard(TypedDict):
    text: str


class Heard(_RequiredOfHeard, total=False):
    """A segment of a transcript, with its times in seconds.

    The first one has an empty text and no times: it tells the `language` of the recording and its `duration`.
    """

    start: float
    end: float
    tokens: list[int]
    temperature: float
    language: str
    duration: float


class SpeechBackend(abc.ABC):
    """A model in a file, or in a folder, that writes down what is spoken.

    `load()` is called once, and then `transcribe()` for one recording after the other, always in the same thread.
    `platform`, `options` and `description` are those of `Backend`.
    """

    platform: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    description: str = ""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """`options` are plain YAML values, still to be checked: see `geartrain.backends.options`."""
        self.path = path
        self.given = options

    @abc.abstractmethod
    def load(self) -> None:
        """Import the library and read the model. Raises `BackendError`, as that of `Backend`."""

    @abc.abstractmethod
    def transcribe(self, recording: Path, dictation: Dictation) -> Iterator[Heard]:
        """Yield the segments of a recording as they are recognised; they begin with what is known of the whole.

        Raises `PromptError`; whatever else it raises is the client's answer.
        """

    def close(self) -> None:  # noqa: B027 - some have nothing to do
        """Release what the library holds; nothing is called afterwards."""
