"""A model of language in a file as a runner: a backend of texts or speech with the interface of an author's class."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final, cast

from geartrain.authoring.files import Path
from geartrain.authoring.inputs import Input
from geartrain.authoring.iterators import AsyncConcatenateIterator
from geartrain.authoring.scope import current_scope
from geartrain.backends.text import (
    Dictation,
    Heard,
    Piece,
    PromptError,
    RankBackend,
    Sampling,
    SpeechBackend,
    TextBackend,
)
from geartrain.worker.errors import ClientError

MOST_LOGPROBS: Final = 20
_TASKS: Final = ["transcribe", "translate"]


class TextRunner:
    """The model of a text backend. Its inputs have the names of OpenAI's API, or those that other servers know."""

    def __init__(self, backend: TextBackend) -> None:
        self._backend = backend
        self.tokenizer = backend  # it has the chat template

    async def run(  # noqa: PLR0913 - the parameters of clients
        self,
        prompt: str = Input(description="The beginning of the text"),
        *,
        max_tokens: int | None = Input(default=None, description="The most tokens to make", ge=1),
        temperature: float | None = Input(default=None, description="0 takes the likeliest token", ge=0, le=2),
        top_p: float | None = Input(default=None, description="Of the likeliest tokens, so much of all", ge=0, le=1),
        top_k: int | None = Input(default=None, description="So many of the likeliest tokens; 0 for all", ge=-1),
        min_p: float | None = Input(
            default=None, description="Tokens at least so likely, next to the likeliest", ge=0, le=1
        ),
        repetition_penalty: float | None = Input(
            default=None, description="Makes tokens of the prompt and the text less likely", ge=0.01
        ),
        presence_penalty: float = Input(default=0.0, description="Makes tokens of the text less likely", ge=-2, le=2),
        frequency_penalty: float = Input(
            default=0.0, description="Likewise, for each time that they are there", ge=-2, le=2
        ),
        seed: int | None = Input(default=None, description="The same seed and inputs give the same text"),
        logprobs: bool = Input(default=False, description="Tell how likely each token is, to clients of OpenAI's API"),
        top_logprobs: int = Input(
            default=0, description="So many of the likeliest tokens in its place", ge=0, le=MOST_LOGPROBS
        ),
        ignore_eos: bool = Input(default=False, description="Go on after the end of the text"),
    ) -> AsyncConcatenateIterator[str]:
        """Go on with a text."""
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            seed=seed,
            logprobs=top_logprobs if logprobs else None,
            ignore_eos=ignore_eos,
        )
        scope = current_scope()
        pieces = cast("AsyncGenerator[Piece]", self._backend.generate(prompt, sampling))
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    _record(scope, piece)
                    if piece.text:
                        yield piece.text
        except PromptError as error:
            raise ClientError(str(error)) from None


class RankRunner:
    """The model of a backend that scores documents."""

    def __init__(self, backend: RankBackend) -> None:
        self._backend = backend

    def run(
        self,
        query: str = Input(description="The words that documents are held against"),
        documents: list[str] = Input(description="Texts, each of which gets a score"),  # noqa: B008 - never changed
    ) -> list[float]:
        """Score documents: the higher, the better they fit the query."""
        return self._backend.rank(query, documents)


class SpeechRunner:
    """The model of a backend that writes down speech. Its inputs have the names of OpenAI's API."""

    def __init__(self, backend: SpeechBackend) -> None:
        self._backend = backend

    def run(
        self,
        audio: Path = Input(description="A recording: WAV, FLAC, Ogg or MP3", accept="audio/*"),  # noqa: B008 - never changed
        *,
        language: str = Input(default="", description="The spoken language, such as en; empty: the model finds out"),
        prompt: str = Input(default="", description="Text that might stand before it, such as names that occur"),
        temperature: float = Input(default=0.0, description="0 takes the likeliest tokens", ge=0, le=1),
        task: str = Input(
            default="transcribe", description="The language of the text: the spoken one, or English", choices=_TASKS
        ),
    ) -> Iterator[Heard]:
        """Write down what is spoken, in segments."""
        dictation = Dictation(language, prompt, temperature, translates=task == _TASKS[1])
        try:
            yield from self._backend.transcribe(audio, dictation)
        except PromptError as error:
            raise ClientError(str(error)) from None


def _record(scope: Any, piece: Piece) -> None:
    """Record what the answer tells besides the text."""
    if piece.tokens <= 1:
        scope.record_metric("tokens.prompt", piece.prompt_tokens)
    scope.record_metric("tokens.completion", piece.tokens)
    for each in piece.logprobs:
        scope.record_metric("logprobs", dict(each))
    if piece.finish_reason:
        scope.record_metric("finish_reason", piece.finish_reason)
