"""A folder with a Whisper as a server of OpenAI's transcriptions."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geartrain.backends.interface import BackendError
from geartrain.backends.recordings import Recording
from geartrain.backends.text import PromptError
from geartrain.backends.whisper import WhisperBackend
from tests.text_models.server import Server, serve
from tests.text_models.tiny import RATE, TONES, make_whisper, tone

MORNING, GOODBYE = TONES


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whisper(tmp_path_factory.mktemp("models") / "ears")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
    with serve(folder) as server:
        yield server


def written(*samples: Any, rate: int = RATE, channels: int = 1) -> bytes:
    """Return samples, one after the other, as a WAV file."""
    whole = (np.repeat(np.concatenate(samples), channels) * 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, 2, rate, 0, "NONE", ""))
        sound.writeframes(whole.tobytes())
    return file.getvalue()


def heard(server: Server, sound: bytes, path: str = "transcriptions", **options: Any) -> Any:
    files = {"file": ("speech.wav", sound)}
    return server.client.post(f"/v1/audio/{path}", data={"model": server.model, **options}, files=files)


def test_model_is_listed(server: Server) -> None:
    (model,) = server.client.get("/v1/models").json()["data"]
    assert model["endpoints"] == ["transcriptions", "translations"]
    assert server.client.get(f"/v2/models/{server.model}").json()["platform"] == "whisper"


@pytest.mark.parametrize("text", list(TONES))
@pytest.mark.parametrize(("rate", "channels"), [(RATE, 1), (8_000, 1), (44_100, 2)])
def test_recordings_of_any_rate(server: Server, text: str, rate: int, channels: int) -> None:
    sound = written(tone(TONES[text], 1.5, rate), rate=rate, channels=channels)
    answer = heard(server, sound, temperature=0)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"text": text, "usage": {"type": "duration", "seconds": 1.5}}


def test_segments_of_a_long_recording(server: Server) -> None:
    silence = np.zeros(2 * RATE, np.float32)
    sound = written(tone(TONES[MORNING], 2), silence, tone(TONES[GOODBYE], 2), tone(TONES[MORNING], 1.2))
    answer = heard(server, sound, response_format="verbose_json").json()
    assert (answer["text"], answer["language"], answer["duration"]) == (f"{MORNING} {GOODBYE} {MORNING}", "en", 7.2)
    times = [(segment["start"], segment["end"], segment["text"]) for segment in answer["segments"]]
    assert times == [(0.0, 1.0, MORNING), (4.0, 5.0, GOODBYE), (6.0, 7.0, MORNING)]
    assert all(segment["tokens"] for segment in answer["segments"])
    srt = heard(server, sound, response_format="srt").text
    assert "00:00:04,000 --> 00:00:05,000\nauf wiedersehen" in srt
    stream = heard(server, sound, stream="true").text
    assert stream.count("transcript.text.delta") == 3
    assert "transcript.text.done" in stream


def test_language_and_translation(server: Server) -> None:
    sound = written(tone(TONES[GOODBYE], 2))
    assert heard(server, sound, response_format="verbose_json").json()["language"] == "de"
    assert heard(server, sound, language="en", response_format="verbose_json").json()["language"] == "en"
    answer = heard(server, sound, "translations", response_format="verbose_json").json()
    assert (answer["text"], answer["task"]) == ("good bye", "translate")
    refused = heard(server, sound, language="xx")
    assert refused.status_code == 400
    assert "it knows en, de" in refused.json()["error"]["message"]


def test_prompt_and_temperature(server: Server) -> None:
    sound = written(tone(TONES[MORNING], 2))
    assert heard(server, sound, prompt="Ada, " * 100).status_code == 200
    assert heard(server, sound, temperature=0.01).json()["text"] == MORNING
    assert heard(server, sound, temperature=3).json()["error"]["param"] == "temperature"


@pytest.mark.parametrize("sound", [b"", b"RIFF and nothing", b"\0" * 5000])
def test_files_that_are_no_recording(server: Server, sound: bytes) -> None:
    answer = heard(server, sound)
    assert answer.status_code == 400, answer.text
    assert "cannot be read" in answer.json()["error"]["message"]


def test_recording_without_samples(server: Server) -> None:
    assert heard(server, written(np.zeros(0, np.float32))).json()["text"] == ""
    assert heard(server, written(np.zeros(RATE, np.float32))).json()["text"] == ""


def test_other_protocols(server: Server) -> None:
    import base64

    url = "data:audio/wav;base64," + base64.b64encode(written(tone(TONES[MORNING], 2))).decode()
    prediction = server.client.post("/predictions", json={"input": {"audio": url}}).json()
    assert prediction["status"] == "succeeded", prediction
    assert [piece["text"] for piece in prediction["output"]] == ["", MORNING]
    assert prediction["output"][0]["language"] == "en"


def test_no_more_than_a_window_is_held(tmp_path: Path) -> None:
    (tmp_path / "long.wav").write_bytes(written(np.zeros(60 * RATE, np.float32)))
    recording = Recording(tmp_path / "long.wav", RATE)
    try:
        assert recording.duration == 60
        for _ in range(29):
            assert len(recording.window(2 * RATE)) == 2 * RATE
            assert len(recording._held) <= 3 * RATE
            recording.skip(2 * RATE)
    finally:
        recording.close()


def test_recording_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "cut.flac").write_bytes(b"fLaC" + b"\0" * 100)
    with pytest.raises(PromptError, match="cannot be read"):
        Recording(tmp_path / "cut.flac", RATE)


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["WhisperForConditionalGeneration"]}')
    with pytest.raises(BackendError, match="transformers cannot load it"):
        WhisperBackend(tmp_path, {}).load()
