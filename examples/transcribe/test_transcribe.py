"""Tests of the model beside this file: `pytest`."""

import io
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.testing import runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def wav(samples: bytes, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setparams((1, 2, rate, 0, "NONE", ""))
        audio.writeframes(samples)
    return file.getvalue()


def recording() -> bytes:
    with wave.open(str(MODEL / "speech.wav")) as audio:
        return audio.readframes(audio.getnframes())


def test_recognizes_a_sentence(run: Run) -> None:
    (sentence,) = run(audio=MODEL / "speech.wav")
    assert "he might even have been made" in sentence.text
    assert 0 <= sentence.start < sentence.end <= 3.3
    assert run.metrics["audio_seconds"] == pytest.approx(3.29)


def test_sentences_come_one_by_one(run: Run) -> None:
    pause = bytes(2 * 16_000)
    sentences = run.stream(audio=wav(recording() + pause + recording()))
    first = next(sentences)
    (second,) = sentences
    assert second.start > first.end + 0.5
    assert [each.text.startswith("he might even") for each in (first, second)] == [True, True]


def test_silence_has_no_sentence(run: Run) -> None:
    assert run(audio=wav(bytes(64_000))) == []
    with pytest.raises(ValueError, match="is empty"):
        run(audio=wav(b""))


def test_file_that_is_no_recording_fails(run: Run) -> None:
    with pytest.raises(wave.Error, match="RIFF"):
        run(audio=b"no recording")
