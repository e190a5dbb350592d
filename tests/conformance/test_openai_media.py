"""OpenAI's API for models of media: with the official clients, and each answer against OpenAI's own document."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from geartrain.service.models.deployment import Limits
from tests.support import modes
from tests.support.gates import Gates
from tests.support.loop_probe import LoopProbe
from tests.support.openai_client import Official, assert_refused, check, official_clients
from tests.support.receiver import receiving
from tests.support.servers import LiveServer, Serve, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHISPER = """
    from geartrain import BaseRunner, Input, Path, current_scope
    from geartrain.openai import Transcript

    class Runner(BaseRunner):
        def run(
            self,
            audio: Path,
            language: str = "english",
            prompt: str = "",
            temperature: float = Input(default=0.0, ge=0, le=1),
            task: str = Input(default="transcribe", choices=["transcribe", "translate"]),
        ) -> Transcript:
            said = audio.read_bytes().decode()
            if said == "fail":
                raise ValueError("no speech in it")
            if prompt == "tokens":
                current_scope().record_metric("tokens.prompt", 7)
                current_scope().record_metric("tokens.completion", 2)
            words = said.split()
            return {
                "text": f"{prompt}{said} {task} {temperature} {audio.suffix}",
                "language": language,
                "duration": float(len(words)),
                "segments": [
                    {"start": float(n), "end": n + 0.5, "text": word, "speaker": "AB"[n % 2]}
                    for n, word in enumerate(words)
                ],
                "words": [{"word": word, "start": float(n), "end": n + 0.5} for n, word in enumerate(words)],
            }
"""
SENTENCES = """
    import select
    from collections.abc import Iterator
    from geartrain import BaseModel, BaseRunner, Input, Path

    class Sentence(BaseModel):
        start: float
        end: float
        text: str

    class Runner(BaseRunner):
        def run(self, recording: Path = Input(accept="audio/wav")) -> Iterator[Sentence]:
            said = recording.read_bytes().decode()
            if said.startswith("wait "):
                yield Sentence(start=0, end=1, text="begun")
                with open(said.removeprefix("wait "), "rb", buffering=0) as gate:
                    select.select([gate], [], [])
                raise ValueError("it went wrong later")
            for number, word in enumerate(said.split()):
                yield Sentence(start=number, end=number + 1, text=word)
"""
DICTATION = """
    from geartrain import BaseRunner, ConcatenateIterator, Path

    class Runner(BaseRunner):
        def run(self, audio: Path) -> ConcatenateIterator[str]:
            for word in audio.read_bytes().decode().split():
                yield word + " "
"""
SPEECH = """
    import tempfile
    from geartrain import BaseRunner, Input, Path, current_scope
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("speech", input="text", voice="speaker")
        def run(
            self, text: str, speaker: str = "anna", speed: float = Input(default=1.0, ge=0.25, le=4), kind: str = "wav"
        ) -> Path:
            if text == "fail":
                raise ValueError("no voice today")
            current_scope().record_metric("tokens.prompt", len(text))
            sound = Path(tempfile.mkdtemp()) / f"sound.{kind}"
            sound.write_bytes(f"{speaker} {speed}: {text}".encode() * (100_000 if text == "long" else 1))
            return sound
"""
CODECS = """
    import io
    from geartrain import BaseRunner, File
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("speech")
        def run(self, input: str, response_format: str = "mp3") -> File:
            return io.BytesIO(f"{response_format} {input}".encode())
"""
RADIO = """
    import io
    import select
    from collections.abc import Iterator
    from geartrain import BaseRunner, File
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("speech")
        def run(self, text: str) -> Iterator[File]:
            if text == "fail":
                raise ValueError("no voice today")
            for word in text.split():
                if word.startswith("/"):
                    with open(word, "rb", buffering=0) as gate:
                        select.select([gate], [], [])
                    raise ValueError("it went wrong later")
                yield io.BytesIO(word.encode())
"""
PAINTER = """
    import select
    import tempfile
    from geartrain import BaseRunner, Input, Path, current_scope
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("images")
        def run(
            self, prompt: str, seed: int = 0, width: int = Input(default=64, le=512), height: int = 64, style: str = ""
        ) -> Path:
            if prompt.startswith("wait "):
                with open(prompt.removeprefix("wait "), "rb", buffering=0) as gate:
                    select.select([gate], [], [])
            if prompt == "fail" and seed in {0, 8}:
                raise ValueError("no paint left")
            current_scope().record_metric("tokens.prompt", 1)
            picture = Path(tempfile.mkdtemp()) / "picture.png"
            picture.write_text(f"{prompt} {width}x{height} {style} {seed}")
            return picture
"""
STUDIO = """
    import tempfile
    from geartrain import BaseRunner, Path
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("images", n="count")
        def run(
            self,
            prompt: str,
            images: list[Path] = [],
            mask: Path | None = None,
            count: int = 1,
            size: str = "auto",
            output_format: str = "webp",
        ) -> list[Path]:
            folder = Path(tempfile.mkdtemp())
            told = [prompt, size, *(each.read_text() for each in images), mask.read_text() if mask else "-"]
            pictures = [folder / f"{number}.{output_format}" for number in range(count)]
            for number, picture in enumerate(pictures):
                picture.write_text(f"{' '.join(told)} {number}")
            return pictures
"""
RETOUCH = """
    import tempfile
    from geartrain import BaseRunner, Path
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("images")
        def run(self, prompt: str, image: Path, seed: int = 0) -> Path:
            if prompt == "fail":
                raise ValueError("no paint left")
            picture = Path(tempfile.mkdtemp()) / "picture.jpg"
            picture.write_text(f"{prompt} {image.read_text()} {seed}")
            return picture
"""
JUDGE = """
    from geartrain import BaseRunner
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("moderations", threshold=0.7)
        def run(self, texts: list[str]) -> list[dict[str, float]]:
            if "few" in texts:
                return []
            return [{"violence": 0.7 * ("hit" in text), "hate_threatening": 0.69, "spam": 0.0} for text in texts]
"""
JUDGE_OF_ONE = """
    from geartrain import BaseModel, BaseRunner
    from geartrain.openai import endpoint

    class Scores(BaseModel):
        self_harm: float
        sexual_minors: float

    class Runner(BaseRunner):
        @endpoint("moderations")
        def run(self, input: str) -> Scores:
            return Scores(self_harm=0.5, sexual_minors=len(input) / 100)
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def whisper(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(WHISPER, name="whisper") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sentences(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SENTENCES, name="sentences") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def dictation(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(DICTATION, name="dictation") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def voice(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SPEECH, name="voice") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def radio(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(RADIO, name="radio") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def painter(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(PAINTER, name="painter") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def studio(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(STUDIO, name="studio") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def retouch(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(RETOUCH, name="retouch") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def judge(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(JUDGE, name="judge") as server:
        yield server


@pytest.fixture
def servers(whisper: LiveServer, sentences: LiveServer, dictation: LiveServer) -> dict[str, LiveServer]:
    return {"whisper": whisper, "sentences": sentences, "dictation": dictation}


@pytest_asyncio.fixture(loop_scope="module")
async def official() -> AsyncIterator[Official]:
    async with official_clients() as clients:
        yield clients


@contextlib.contextmanager
def blocking(server: LiveServer) -> Iterator[openai.OpenAI]:
    """The official client that blocks, for a thread."""
    options: dict[str, Any] = {"max_retries": 0}
    given = modes.current().credentials
    if given is not None:
        options["http_client"] = openai.DefaultHttpxClient(verify=given.trust)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none" if given is None else given.key, **options
    ) as client:
        yield client


Parts = list[tuple[str, Any]]


async def transcribe(
    server: LiveServer, said: str = "one two", *, path: str = "transcriptions", **fields: Any
) -> httpx.Response:
    """POST a recording, whose content is what is said in it. Lists become several fields with brackets."""
    parts: Parts = [("model", (None, fields.pop("model", server.deployment.name)))]
    for name, value in fields.items():
        each = value if isinstance(value, list) else [value]
        parts += [(f"{name}[]" if isinstance(value, list) else name, (None, str(one))) for one in each]
    parts.append(("file", ("a.wav", said.encode(), "audio/wav")))
    return await server.client.post(f"/v1/audio/{path}", files=parts)


def events_in(response: httpx.Response) -> list[Any]:
    """The data of the events of a stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


# transcriptions

WITH_FILE: Parts = [("model", (None, "whisper")), ("file", ("a", b"x"))]


@pytest.mark.parametrize(
    ("source", "endpoints"),
    [
        (WHISPER, ["transcriptions", "translations"]),
        (SENTENCES, ["transcriptions"]),
        (DICTATION, ["transcriptions"]),
        (SPEECH, ["speech"]),
        (RADIO, ["speech"]),
        (PAINTER, ["images"]),
        (STUDIO, ["images", "image_edits"]),
        (RETOUCH, ["image_edits"]),
        (JUDGE, ["moderations"]),
        (JUDGE_OF_ONE, ["moderations"]),
    ],
)
async def test_endpoints_of_media(serve: Serve, source: str, endpoints: list[str]) -> None:
    async with serve(source) as server:
        (model,) = (await server.client.get("/v1/models")).json()["data"]
        assert model["endpoints"] == endpoints


async def test_transcription(whisper: LiveServer, official: Official) -> None:
    answer = (await transcribe(whisper, temperature="0.5")).json()
    check("CreateTranscriptionResponseJson", answer)
    assert answer == {"text": "one two transcribe 0.5 .wav", "usage": {"type": "duration", "seconds": 2.0}}
    client = official(whisper)
    said = await client.audio.transcriptions.create(model="whisper", file=("b.mp3", b"hello"), prompt=">")
    assert said.text == ">hello transcribe 0.0 .mp3"
    assert await client.audio.transcriptions.create(model="whisper", file=b"x", response_format="text")
    counted = await client.audio.transcriptions.create(model="whisper", file=("b.mp3", b"hello"), prompt="tokens")
    assert counted.usage is not None
    assert counted.usage.model_dump(exclude_none=True) == {
        "type": "tokens", "input_tokens": 7, "output_tokens": 2, "total_tokens": 9
    }  # fmt: skip


async def test_transcription_with_the_blocking_client(whisper: LiveServer, tmp_path: Path) -> None:
    recording = tmp_path / "c.flac"
    recording.write_bytes(b"good day")

    def ask() -> tuple[str, Any]:
        with blocking(whisper) as client, recording.open("rb") as file:
            said = client.audio.transcriptions.create(model="whisper", file=file)
            timed = client.audio.transcriptions.create(
                model="whisper",
                file=recording,
                response_format="verbose_json",
                timestamp_granularities=["word", "segment"],
            )
        return said.text, timed

    text, timed = await asyncio.to_thread(ask)
    assert text == "good day transcribe 0.0 .flac"
    assert [word.word for word in timed.words] == ["good", "day"]
    assert [(each.id, each.start, each.text) for each in timed.segments] == [(0, 0.0, "good"), (1, 1.0, "day")]
    assert (timed.language, timed.duration) == ("english", 2.0)


async def test_times_of_a_transcript(whisper: LiveServer) -> None:
    answer = (await transcribe(whisper, response_format="verbose_json", language="en")).json()
    check("CreateTranscriptionResponseVerboseJson", answer)
    assert (answer["language"], len(answer["segments"]), "words" in answer) == ("en", 2, False)
    asked: dict[str, Any] = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    answer = (await transcribe(whisper, **asked)).json()
    check("CreateTranscriptionResponseVerboseJson", answer)
    assert ("segments" in answer, answer["words"][1]) == (False, {"word": "two", "start": 1.0, "end": 1.5})


async def test_subtitles(whisper: LiveServer, sentences: LiveServer) -> None:
    for server, end in ((whisper, "500"), (sentences, "000")):
        second = "00:00:01" if server is whisper else "00:00:02"
        first = "00:00:00" if server is whisper else "00:00:01"
        response = await transcribe(server, response_format="srt")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        assert response.text == (
            f"1\n00:00:00,000 --> {first},{end}\none\n\n2\n00:00:01,000 --> {second},{end}\ntwo\n\n"
        )
        response = await transcribe(server, response_format="vtt")
        assert response.text.startswith(f"WEBVTT\n\n00:00:00.000 --> {first}.{end}\none\n\n")


async def test_text_alone(dictation: LiveServer, sentences: LiveServer) -> None:
    for server, said in ((dictation, "one two "), (sentences, "one two")):
        response = await transcribe(server, response_format="text")
        assert (response.text, response.headers["content-type"]) == (said, "text/plain; charset=utf-8")


async def test_speakers(whisper: LiveServer) -> None:
    answer = (await transcribe(whisper, response_format="diarized_json")).json()
    check("CreateTranscriptionResponseDiarizedJson", answer)
    assert [(each["id"], each["speaker"]) for each in answer["segments"]] == [("seg_0", "A"), ("seg_1", "B")]
    first, second, done = events_in(await transcribe(whisper, response_format="diarized_json", stream="true"))
    assert [each["type"] for each in (first, second, done)] == ["transcript.text.segment"] * 2 + [
        "transcript.text.done"
    ]
    for each in (first, second, done):
        check("CreateTranscriptionResponseStreamEvent", each)


@pytest.mark.parametrize(
    ("name", "deltas"),
    [("dictation", ["one ", "two "]), ("sentences", ["one", " two"]), ("whisper", ["one two transcribe 0.0 .wav"])],
)
async def test_transcript_as_a_stream(
    servers: dict[str, LiveServer], official: Official, name: str, deltas: list[str]
) -> None:
    server = servers[name]
    *said, done = events_in(await transcribe(server, stream="true"))
    for each in (*said, done):
        check("CreateTranscriptionResponseStreamEvent", each)
    assert [each["delta"] for each in said] == deltas
    assert (done["type"], done["text"]) == ("transcript.text.done", "".join(deltas))
    stream = await official(server).audio.transcriptions.create(model=name, file=("a.wav", b"one two"), stream=True)
    assert [each.type async for each in stream] == ["transcript.text.delta"] * len(deltas) + ["transcript.text.done"]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of the client
async def test_translation(whisper: LiveServer, dictation: LiveServer, official: Official) -> None:
    translated = await official(whisper).audio.translations.create(model="whisper", file=("a.wav", b"eins"))
    assert translated.text == "eins translate 0.0 .wav"
    answer = (await transcribe(whisper, path="translations", response_format="verbose_json")).json()
    check("CreateTranslationResponseVerboseJson", answer)
    assert answer["task"] == "translate"
    check("CreateTranslationResponseJson", (await transcribe(whisper, path="translations")).json())
    refused = await transcribe(dictation, path="translations")
    await assert_refused(refused, 404, "model", "unsupported_model", "no input 'task'")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "srt"}, "response_format", "unsupported_parameter"),
        ({"response_format": "verbose_json"}, "response_format", "unsupported_parameter"),
        ({"response_format": "wav"}, "response_format", "invalid_input"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities", "invalid_input"),
        ({"timestamp_granularities": ["page"]}, "timestamp_granularities", "invalid_input"),
        ({"stream": "perhaps"}, "stream", "invalid_input"),
        ({"model": ""}, "model", "invalid_input"),
    ],
)
async def test_transcriptions_that_are_refused(
    dictation: LiveServer, fields: dict[str, Any], param: str, code: str
) -> None:
    await assert_refused(await transcribe(dictation, **fields), 400, param, code, "")


async def test_values_of_a_form_are_checked(whisper: LiveServer) -> None:
    refused = await transcribe(whisper, temperature="2")
    await assert_refused(refused, 400, "temperature", "invalid_input", "temperature: 2 is greater than the maximum")
    refused = await transcribe(whisper, temperature="hot")
    await assert_refused(refused, 400, "temperature", "invalid_input", "is not of type")
    refused = await transcribe(whisper, response_format="verbose_json", stream="true")
    await assert_refused(refused, 400, "stream", "unsupported_parameter", "comes as a whole")
    answer = await transcribe(whisper, keywords=["gear"], chunking_strategy="auto")
    assert answer.headers["x-geartrain-ignored"] == "keywords, chunking_strategy"


@pytest.mark.parametrize(
    ("parts", "status", "param", "said"),
    [
        ([("model", (None, "whisper"))], 400, "file", "'file' is missing"),
        ([("file", ("a", b"x"))], 400, "model", "'model' is missing"),
        ([("model", (None, "whisper")), ("file", (None, "x"))], 400, "file", "has to be a file"),
        ([("model", (None, "whisper")), *[("file", ("a", b"x"))] * 2], 400, "file", "more than 1 file"),
        ([("model", (None, "whisper")), ("model", (None, "whisper")), ("file", ("a", b"x"))], 400, "model", ""),
        ([("model", (None, "nobody")), ("file", ("a", b"x"))], 404, "model", "does not exist"),
        ([("file", ("a", b"x")), ("model", (None, "nobody"))], 404, "model", "does not exist"),
        (
            [("model", (None, "whisper")), ("temperature", (None, "[" * 9000)), ("file", ("a", b"x"))],
            400,
            "temperature",
            "",
        ),
        ([("model", (None, "whisper"))] + [(f"p{n}", (None, "x")) for n in range(128)], 413, None, "128 parts"),
        ([("model", (None, "whisper")), ("prompt", (None, "x" * 1_048_577))], 413, None, "1048576 bytes"),
    ],
)
async def test_forms_that_are_refused(
    whisper: LiveServer, parts: Parts, status: int, param: str | None, said: str
) -> None:
    response = await whisper.client.post("/v1/audio/transcriptions", files=parts)
    assert response.status_code == status, response.text
    check("ErrorResponse", response.json())
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


async def test_bodies_that_are_no_forms(whisper: LiveServer) -> None:
    path = "/v1/audio/transcriptions"
    response = await whisper.client.post(path, json={"model": "whisper"})
    await assert_refused(response, 415, None, "unsupported_media_type", "multipart/form-data")
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        response = await whisper.client.post(path, content=b"no form", headers={"content-type": content_type})
        await assert_refused(response, 400, None, "unparsable", "multipart/form-data")


async def test_model_may_stand_behind_the_file(whisper: LiveServer) -> None:
    parts: Parts = [("file", ("a.wav", b"late")), ("model", (None, "whisper"))]
    response = await whisper.client.post("/v1/audio/transcriptions", files=parts)
    assert response.json()["text"] == "late transcribe 0.0 .wav"


async def test_recording_that_is_too_large(serve: Serve) -> None:
    async with serve(WHISPER, max_download_bytes=1000) as server:
        response = await transcribe(server, "x" * 1001)
        await assert_refused(response, 413, None, "too_large", "--max-download-size")
        assert _files_of(server) == []


def _files_of(server: LiveServer) -> list[str]:
    """The files of requests that are on the disk now."""
    root = server.app.outbound._workspace._root
    return [] if root is None else [name for _, _, names in os.walk(root) for name in names]


async def test_recordings_are_gone_when_their_requests_are(serve: Serve, gates: Gates) -> None:
    async with serve(SENTENCES) as server:
        gate = gates["gate"].path
        asking = asyncio.ensure_future(transcribe(server, f"wait {gate}", stream="true"))
        await eventually(lambda: len(_files_of(server)) == 1)
        await eventually(lambda: bool(server.predictions.live))
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()
        assert (await transcribe(server)).status_code == 200
        refused = await transcribe(server, model="nobody")
        assert refused.status_code == 404
        await eventually(lambda: _files_of(server) == [])


async def test_run_that_fails(whisper: LiveServer, sentences: LiveServer, gates: Gates, official: Official) -> None:
    for stream in ("false", "true"):
        response = await transcribe(whisper, "fail", stream=stream)
        await assert_refused(response, 500, None, "run_failed", "no speech in it")
        assert response.headers["x-should-retry"] == "false"
    said = f"wait {gates['gate'].path}".encode()
    client = official(sentences)
    events = await client.audio.transcriptions.create(model="sentences", file=("a.wav", said), stream=True)
    assert (await anext(events)).type == "transcript.text.delta"
    gates["gate"].open()
    with pytest.raises(openai.APIError, match="it went wrong later"):
        await anext(events)


async def test_recordings_wait_in_the_queue_and_are_refused_when_it_is_full(serve: Serve, gates: Gates) -> None:
    async with serve(SENTENCES, inference_queue=1) as server:
        first = asyncio.ensure_future(transcribe(server, f"wait {gates['gate'].path}"))
        await eventually(lambda: len(server.predictions.live) == 1)
        second = asyncio.ensure_future(transcribe(server))
        await eventually(lambda: len(server.predictions.live) == 2)
        refused = await transcribe(server)
        await assert_refused(refused, 429, None, "queue_full", "")
        assert int(refused.headers["retry-after"]) >= 1
        await eventually(lambda: len(_files_of(server)) == 2)
        gates["gate"].open()
        assert (await first).status_code == 500
        assert (await second).json()["text"] == "one two"


async def test_transcription_that_takes_too_long(serve: Serve, gates: Gates) -> None:
    async with serve(SENTENCES, limits=Limits(run_timeout=0.2)) as server:
        response = await transcribe(server, f"wait {gates['gate'].path}")
        await assert_refused(response, 504, None, "timeout", "")
        assert response.headers["x-should-retry"] == "false"
        await eventually(lambda: _files_of(server) == [])


async def test_answer_names_its_prediction(whisper: LiveServer) -> None:
    response = await transcribe(whisper)
    assert response.headers["x-prediction-id"] == whisper.newest().id


# speech


async def speak(server: LiveServer, text: str = "hello", **body: Any) -> httpx.Response:
    return await server.client.post("/v1/audio/speech", json={"model": server.deployment.name, "input": text, **body})


async def test_speech(voice: LiveServer, official: Official) -> None:
    response = await speak(voice, voice="ben", speed=2, instructions="softly")
    assert (response.content, response.headers["content-type"]) == (b"ben 2.0: hello", "audio/wav")
    assert response.headers["x-geartrain-ignored"] == "instructions"
    client = official(voice)
    said = await client.audio.speech.create(model="voice", input="hello", voice="ben", response_format="wav")
    assert said.content == b"ben 1.0: hello"
    custom: Any = {"id": "voice_1"}
    assert (await client.audio.speech.create(model="voice", input="a", voice=custom)).content == b"voice_1 1.0: a"
    assert len((await speak(voice, "long", voice="x")).content) == 1_100_000


async def test_speech_with_the_blocking_client(voice: LiveServer, tmp_path: Path) -> None:
    def ask() -> bytes:
        with (
            blocking(voice) as client,
            client.audio.speech.with_streaming_response.create(model="voice", input="hi", voice="ben") as said,
        ):
            said.stream_to_file(tmp_path / "said.wav")
        return (tmp_path / "said.wav").read_bytes()

    assert await asyncio.to_thread(ask) == b"ben 1.0: hi"


async def test_speech_in_pieces(radio: LiveServer, official: Official) -> None:
    async with official(radio).audio.speech.with_streaming_response.create(
        model="radio", input="one two three", voice="any", response_format="pcm"
    ) as said:
        assert said.headers["content-type"] == "application/octet-stream"
        assert b"".join([piece async for piece in said.iter_bytes()]) == b"onetwothree"


@pytest.mark.parametrize(("name", "pieces"), [("voice", [b"anna 1.0: a b"]), ("radio", [b"a", b"b"])])
async def test_speech_as_events(voice: LiveServer, radio: LiveServer, name: str, pieces: list[bytes]) -> None:
    server = voice if name == "voice" else radio
    *said, done = events_in(await speak(server, "a b", stream_format="sse"))
    for each in (*said, done):
        check("CreateSpeechResponseStreamEvent", each)
    assert [b64decode(each["audio"]) for each in said] == pieces
    used = 3 if name == "voice" else 0
    assert done["usage"] == {"input_tokens": used, "output_tokens": 0, "total_tokens": used}


async def test_formats_of_speech(voice: LiveServer, serve: Serve) -> None:
    refused = await speak(voice, response_format="mp3")
    await assert_refused(refused, 400, "response_format", "unsupported_parameter", "audio/wav; ask for wav")
    for kind, media_type in (("mp3", "audio/mpeg"), ("flac", "audio/flac"), ("ogg", "audio/ogg")):
        assert (await speak(voice, kind=kind)).headers["content-type"] == media_type
    async with serve(CODECS) as server:
        response = await speak(server, response_format="opus")
        assert (response.content, response.headers["content-type"]) == (b"opus hello", "audio/ogg")
        assert (await speak(server)).content == b"mp3 hello"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"]}, "input"),
        ({"voice": {"name": "x"}}, "voice"),
        ({"voice": 5}, "voice"),
        ({"speed": 9}, "speed"),
        ({"response_format": "midi"}, "response_format"),
        ({"stream_format": "radio"}, "stream_format"),
    ],
)
async def test_speech_that_is_refused(voice: LiveServer, body: dict[str, Any], param: str) -> None:
    response = await voice.client.post("/v1/audio/speech", json={"model": "voice", "input": "a", **body})
    assert response.status_code == 400, response.text
    check("ErrorResponse", response.json())
    assert response.json()["error"]["param"] == param


async def test_speech_that_fails(voice: LiveServer, radio: LiveServer, gates: Gates) -> None:
    for server in (voice, radio):
        for stream_format in ("audio", "sse"):
            response = await speak(server, "fail", stream_format=stream_format)
            await assert_refused(response, 500, None, "run_failed", "no voice today")
    asking = asyncio.ensure_future(speak(radio, f"one {gates['events'].path}", stream_format="sse"))
    gates["events"].open()
    first, error = events_in(await asking)
    assert (first["type"], error["error"]["code"]) == ("speech.audio.delta", "run_failed")


async def test_sound_that_breaks_off_is_noticed(radio: LiveServer, gates: Gates) -> None:
    """A failure in the middle of sound has no place in it: the body is not whole, and a client is told so."""
    body = {"model": "radio", "input": f"one {gates['sound'].path}"}
    async with radio.client.stream("POST", "/v1/audio/speech", json=body) as response:
        pieces = response.aiter_bytes()
        assert await anext(pieces) == b"one"
        gates["sound"].open()
        with pytest.raises(httpx.TransportError):
            await anext(pieces)
    assert (await speak(radio, "still there")).content == b"stillthere"


async def test_client_that_leaves_ends_its_speech(serve: Serve, gates: Gates) -> None:
    async with serve(RADIO) as server:
        asking = asyncio.ensure_future(speak(server, f"one {gates['gate'].path}"))
        await eventually(lambda: bool(server.predictions.live))
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()


# images


async def draw(server: LiveServer, prompt: str = "a cat", **body: Any) -> httpx.Response:
    return await server.client.post(
        "/v1/images/generations", json={"model": server.deployment.name, "prompt": prompt, **body}
    )


async def edit(server: LiveServer, images: list[str], prompt: str = "a cat", **fields: Any) -> httpx.Response:
    """POST images to be changed, as a form; a `mask` is a file."""
    mask = fields.pop("mask", None)
    parts: Parts = [("model", (None, server.deployment.name)), ("prompt", (None, prompt))]
    parts += [(name, (None, str(value))) for name, value in fields.items()]
    parts += [("image[]", (f"{number}.png", each.encode())) for number, each in enumerate(images)]
    parts += [] if mask is None else [("mask", ("mask.png", mask.encode()))]
    return await server.client.post("/v1/images/edits", files=parts)


def drawn(response: httpx.Response) -> list[str]:
    """The contents of the images of an answer."""
    assert response.status_code == 200, response.text
    check("ImagesResponse", response.json())
    return [b64decode(each["b64_json"]).decode() for each in response.json()["data"]]


async def test_images_of_parallel_runs(painter: LiveServer, official: Official) -> None:
    response = await draw(painter, n=3, seed=7, size="128x256", style="vivid", quality="high")
    assert drawn(response) == [f"a cat 128x256 vivid {seed}" for seed in (7, 8, 9)]
    assert response.headers["x-geartrain-ignored"] == "quality"
    assert response.json()["output_format"] == "png"
    assert response.json()["usage"]["input_tokens"] == 3
    assert drawn(await draw(painter, size="auto", n=None)) == ["a cat 64x64  0"]
    made = await official(painter).images.generate(
        model="painter", prompt="a dog", n=2, size="256x256", response_format="b64_json"
    )
    assert made.data is not None
    assert [b64decode(each.b64_json or "") for each in made.data] == [b"a dog 256x256  0"] * 2


async def test_images_of_one_run(studio: LiveServer) -> None:
    response = await draw(studio, n=2, size="1024x1024", output_format="png")
    assert drawn(response) == ["a cat 1024x1024 - 0", "a cat 1024x1024 - 1"]
    assert response.json()["output_format"] == "png"


async def test_images_with_the_blocking_client(studio: LiveServer) -> None:
    def ask() -> list[bytes]:
        with blocking(studio) as client:
            image: Any = [("a.png", b"one"), ("b.png", b"two")]
            edited = client.images.edit(model="studio", prompt="join", image=image, mask=("m.png", b"mask"), n=2)
        return [b64decode(each.b64_json or "") for each in edited.data or ()]

    assert await asyncio.to_thread(ask) == [b"join auto one two mask 0", b"join auto one two mask 1"]


async def test_edits(studio: LiveServer, retouch: LiveServer, official: Official) -> None:
    assert drawn(await edit(studio, ["x"], size="512x512")) == ["a cat 512x512 x - 0"]
    response = await edit(retouch, ["x"], n=3, seed=4)
    assert drawn(response) == [f"a cat x {seed}" for seed in (4, 5, 6)]
    assert response.json()["output_format"] == "jpeg"
    edited = await official(retouch).images.edit(model="retouch", prompt="b", image=("a.png", b"y"))
    assert edited.data is not None
    assert b64decode(edited.data[0].b64_json or "") == b"b y 0"
    await eventually(lambda: _files_of(retouch) == [])


async def test_edits_of_images_by_their_urls(studio: LiveServer, retouch: LiveServer) -> None:
    def url(text: str) -> dict[str, str]:
        return {"image_url": f"data:image/png;base64,{b64encode(text.encode()).decode()}"}

    path, body = "/v1/images/edits", {"prompt": "join", "images": [url("one"), url("two")], "mask": url("mask")}
    response = await studio.client.post(path, json={"model": "studio", **body})
    assert drawn(response) == ["join auto one two mask 0"]
    response = await retouch.client.post(path, json={"model": "retouch", "prompt": "x", "images": [url("one")], "n": 2})
    assert drawn(response) == ["x one 0", "x one 0"]
    for images, param, code in (
        ([], "images", "invalid_input"),
        ([url("a"), url("b")], "images", "invalid_input"),
        ([{"file_id": "f"}], "images[0].file_id", "unsupported_parameter"),
        ([{"image_url": "/etc/passwd"}], "images[0].image_url", "invalid_input"),
    ):
        response = await retouch.client.post(path, json={"model": "retouch", "prompt": "x", "images": images})
        await assert_refused(response, 400, param, code, "")


async def test_large_image_does_not_hold_the_loop(retouch: LiveServer) -> None:
    """It goes to the disk a piece at a time: 16 MB hold it for about 0.01 s."""
    with LoopProbe() as probe:
        assert (await edit(retouch, ["A" * 16_000_000], "fail")).status_code == 500
    assert probe.longest < 0.1


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_input"),
        ({"n": 0}, "n", "invalid_input"),
        ({"n": 11}, "n", "invalid_input"),
        ({"size": "large"}, "size", "invalid_input"),
        ({"size": "0x5"}, "size", "invalid_input"),
        ({"size": "1024x64"}, "size", "invalid_input"),
        ({"response_format": "png"}, "response_format", "invalid_input"),
        ({"response_format": "url"}, "response_format", "unsupported_parameter"),
        ({"stream": True}, "stream", "unsupported_parameter"),
    ],
)
async def test_images_that_are_refused(painter: LiveServer, body: dict[str, Any], param: str, code: str) -> None:
    await assert_refused(await draw(painter, **body), 400, param, code, "")


async def test_edits_that_are_refused(painter: LiveServer, retouch: LiveServer, studio: LiveServer) -> None:
    await assert_refused(await edit(painter, ["x"]), 400, "model", "unsupported_model", "edits no images")
    await assert_refused(await draw(retouch), 400, "model", "unsupported_model", "/v1/images/edits")
    await assert_refused(await edit(retouch, []), 400, "image", "invalid_input", "missing")
    await assert_refused(await edit(retouch, ["a", "b"]), 400, "image", "invalid_input", "one image")
    await assert_refused(await edit(studio, ["a"] * 17), 400, "image", "invalid_input", "more than 16 files")
    await assert_refused(await edit(retouch, ["a"], mask="m"), 400, "mask", "unsupported_parameter", "mask")
    await assert_refused(await edit(retouch, ["a"], n="many"), 400, "n", "invalid_input", "")
    response = await retouch.client.post("/v1/images/edits", content=b"x", headers={"content-type": "text/plain"})
    await assert_refused(response, 415, None, "unsupported_media_type", "multipart/form-data")
    await eventually(lambda: _files_of(retouch) == [])


async def test_images_that_fail(painter: LiveServer, retouch: LiveServer) -> None:
    """The first run that fails ends the others."""
    await assert_refused(await draw(painter, "fail", n=4, seed=5), 500, None, "run_failed", "no paint left")
    await assert_refused(await edit(retouch, ["a"], "fail", n=4), 500, None, "run_failed", "no paint left")
    await eventually(lambda: not painter.predictions.live and not retouch.predictions.live)
    await eventually(lambda: _files_of(retouch) == [])


async def test_images_at_urls(serve: Serve) -> None:
    async with receiving() as receiver, serve(PAINTER, upload_url=receiver.url("/up")) as server:
        response = await draw(server, n=2, response_format="url")
        check("ImagesResponse", response.json())
        urls = [each["url"] for each in response.json()["data"]]
        assert all(url.startswith(receiver.url("/up")) for url in urls)
        assert len(urls) == 2
        assert drawn(await draw(server)) == ["a cat 64x64  0"]  # contents do not go there


async def test_client_that_leaves_ends_its_images(serve: Serve, gates: Gates) -> None:
    async with serve(PAINTER) as server:
        asking = asyncio.ensure_future(draw(server, f"wait {gates['gate'].path}", n=3))
        await eventually(lambda: len(server.predictions.live) == 3)
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()


# moderations


async def judge_texts(server: LiveServer, given: Any, **body: Any) -> httpx.Response:
    return await server.client.post("/v1/moderations", json={"model": server.deployment.name, "input": given, **body})


async def test_moderations(judge: LiveServer, official: Official) -> None:
    response = await judge_texts(judge, ["hit me", "a flower"], user="me")
    check("CreateModerationResponse", response.json())
    assert response.headers["x-geartrain-ignored"] == "user"
    first, second = response.json()["results"]
    assert (first["flagged"], second["flagged"]) == (True, False)
    assert [name for name, is_on in first["categories"].items() if is_on] == ["violence"]
    scores = first["category_scores"]
    assert (scores["violence"], scores["hate/threatening"], scores["spam"], scores["sexual"]) == (0.7, 0.69, 0, 0)
    judged = await official(judge).moderations.create(model="judge", input="hit")
    assert (judged.results[0].flagged, judged.results[0].categories.violence) == (True, True)
    assert judged.results[0].category_scores.hate_threatening == 0.69


async def test_moderations_of_a_model_that_takes_one_text(serve: Serve) -> None:
    async with serve(JUDGE_OF_ONE) as server:
        response = await judge_texts(server, ["a" * number for number in range(100)])
        check("CreateModerationResponse", response.json())
        results = response.json()["results"]
        assert [each["category_scores"]["sexual/minors"] for each in results] == [n / 100 for n in range(100)]
        assert all(each["categories"]["self-harm"] for each in results)


@pytest.mark.parametrize(
    ("given", "status", "param", "code"),
    [
        (None, 400, "input", "invalid_input"),
        ([], 400, "input", "invalid_input"),
        ([5], 400, "input", "invalid_input"),
        ([{"type": "text", "text": "a"}], 400, "input", "unsupported_parameter"),
        (["x"] * 2049, 400, "input", "invalid_input"),
        (["few", "more"], 500, None, "run_failed"),
    ],
)
async def test_moderations_that_are_refused(
    judge: LiveServer, given: Any, status: int, param: str | None, code: str
) -> None:
    await assert_refused(await judge_texts(judge, given), status, param, code, "")


async def test_endpoints_of_media_that_a_model_has_not(servers: dict[str, LiveServer], judge: LiveServer) -> None:
    whisper = servers["whisper"]
    for response in (
        await transcribe(judge),
        await speak(whisper),
        await draw(whisper),
        await edit(whisper, ["x"]),
        await judge_texts(whisper, "a"),
    ):
        await assert_refused(response, 400, "model", "unsupported_model", "The model has no")
