"""Endpoints of OpenAI's API that a model of media has: those that follow from its signature, and declared ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from geartrain import BaseModel, ConcatenateIterator, File, Input, Path
from geartrain.domain.signature.openai_view import openai_view
from geartrain.openai import Segment, Transcript, endpoint
from geartrain.worker.loading.signature import UnsupportedAnnotationError, read_signature


class Sentence(BaseModel):
    start: float
    end: float
    text: str
    speaker: str


def endpoints(run: Callable[..., Any]) -> tuple[str, ...]:
    return openai_view(read_signature(run, owner_name="run()")).endpoints


# transcriptions follow from names and types


def by_name(audio: Path) -> str: ...  # type: ignore[empty-body]
def by_what_it_accepts(sound: File = Input(accept=".wav,audio/*")) -> ConcatenateIterator[str]: ...  # type: ignore[empty-body]
def with_a_prompt(audio: Path, prompt: str = "", language: str | None = None) -> Transcript: ...  # type: ignore[empty-body]
def as_segments(audio: Path) -> Iterator[Sentence]: ...  # type: ignore[empty-body]
def as_a_list(audio: Path) -> list[Segment]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("run", "has_segments", "has_words", "has_speakers"),
    [
        (by_name, False, False, False),
        (by_what_it_accepts, False, False, False),
        (with_a_prompt, True, True, True),
        (as_segments, True, False, True),
        (as_a_list, True, True, True),
    ],
)
def test_transcriptions(run: Callable[..., Any], has_segments: bool, has_words: bool, has_speakers: bool) -> None:
    view = openai_view(read_signature(run, owner_name="run()"))
    media = view.media
    assert view.endpoints == ("transcriptions",)
    assert (media.has_segments, media.has_words, media.has_speakers) == (has_segments, has_words, has_speakers)


def picture(image: Path) -> str: ...  # type: ignore[empty-body]
def two_files(audio: Path, other: Path) -> str: ...  # type: ignore[empty-body]
def effect(audio: Path) -> Path: ...  # type: ignore[empty-body]
def tagger(audio: Path) -> dict[str, float]: ...  # type: ignore[empty-body]
def with_a_text(audio: Path, question: str) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("run", [picture, two_files, effect, tagger, with_a_text])
def test_other_models_of_files_have_no_endpoint(run: Callable[..., Any]) -> None:
    assert endpoints(run) == ()


def test_translations_need_a_task() -> None:
    def run(audio: Path, task: str = "transcribe") -> str: ...  # type: ignore[empty-body]

    assert endpoints(run) == ("transcriptions", "translations")


# others are declared


def test_declared_endpoints() -> None:
    @endpoint("transcriptions", file="recording")
    def transcribe(recording: Path, model_size: str = "s") -> dict: ...  # type: ignore[empty-body, type-arg]

    @endpoint("speech", input="words")
    def speech(words: str, voice: str) -> Path: ...  # type: ignore[empty-body]

    @endpoint("images")
    def images(prompt: str, image: Path | None = None) -> Iterator[Path]: ...  # type: ignore[empty-body]

    @endpoint("images", image="source")
    def edits(prompt: str, source: list[Path]) -> list[Path]: ...  # type: ignore[empty-body]

    @endpoint("moderations", threshold=1)
    def moderations(text: str) -> dict[str, float]: ...  # type: ignore[empty-body]

    found = [endpoints(run) for run in (transcribe, speech, images, edits, moderations)]
    assert found == [("transcriptions",), ("speech",), ("images", "image_edits"), ("image_edits",), ("moderations",)]


def speech_of_nothing(number: int) -> Path: ...  # type: ignore[empty-body]
def speech_as_text(text: str) -> str: ...  # type: ignore[empty-body]
def speech_of_two(text: str, key: str) -> Path: ...  # type: ignore[empty-body]
def scores_of_many(text: list[str]) -> dict[str, float]: ...  # type: ignore[empty-body]
def number_of_one(text: str) -> float: ...  # type: ignore[empty-body]
def silent(audio: Path) -> int: ...  # type: ignore[empty-body]
def deaf(text: str) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("name", "run", "options", "said"),
    [
        ("speech", speech_of_nothing, {}, "no input takes the text, such as input: str"),
        ("speech", speech_of_nothing, {"input": "text"}, "input='text' names no input; the inputs are number"),
        ("speech", speech_as_text, {}, "run.. has to give a file: annotate it Path"),
        ("speech", speech_of_two, {}, "the input 'key' is required, and no parameter fills it"),
        ("images", speech_as_text, {"prompt": "text"}, "run.. has to give a file"),
        ("moderations", scores_of_many, {}, "a list of scores by category"),
        ("moderations", number_of_one, {}, "the score of each category"),
        ("transcriptions", silent, {}, "run.. gives no text"),
        ("transcriptions", deaf, {}, "no input takes the recording"),
    ],
)
def test_declared_endpoints_that_do_not_fit(
    name: Any, run: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    def declared(*args: Any, **kwargs: Any) -> Any: ...

    declared.__wrapped__ = run  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedAnnotationError, match=rf'@endpoint\("{name}"\): .*{said}'):
        read_signature(endpoint(name, **options)(declared), owner_name="run()")


def test_declarations_that_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="the endpoints are transcriptions, speech, images, moderations"):
        endpoint("video")  # type: ignore[arg-type]
    for threshold in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="threshold is a number from 0 to 1"):
            endpoint("moderations", threshold=threshold)
