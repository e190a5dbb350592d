"""Requests for text, whole and as it comes, without a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service import readers
from geartrain.transport.wire.exchange import Answer
from tests.support.responders import LIMIT, Sent, ask, body_of, send
from tests.unit.transport.open_inference.conftest import MAX_BODY, Zoo

GENERATE = "/v2/models/talk/generate"
STREAM = "/v2/models/talk/generate_stream"


def text(**members: Any) -> bytes:
    return json.dumps({"text_input": "a", **members}).encode()


def event(found: str) -> bytes:
    return b'data: {"model_name":"talk","model_version":"1","text_output":"%b"}\n\n' % found.encode()


def stream(zoo: Zoo, **members: Any) -> Sent:
    return send(zoo.router, "POST", STREAM, body=text(**members))


async def end_of(prediction: Prediction) -> None:
    async with asyncio.timeout(LIMIT):
        await readers.completion(prediction)


async def test_one_response(zoo: Zoo) -> None:
    answer = await ask(zoo.router, "POST", GENERATE, body=text(id="42"))
    assert answer.status == 200
    assert body_of(answer) == b'{"id":"42","model_name":"talk","model_version":"1","text_output":"a 0a 1"}'


async def test_one_event_for_each_output(zoo: Zoo) -> None:
    for path in (STREAM, "/v2/models/talk/versions/01/generate_stream"):
        found = await send(zoo.router, "POST", path, body=text()).responder.stream()
        assert await found.body() == event("a 0") + event("a 1")
        assert found.status == 200
        assert found.headers == {b"content-type": b"text/event-stream; charset=utf-8", b"cache-control": b"no-cache"}


async def test_events_are_written_as_they_come(zoo: Zoo) -> None:
    sent = stream(zoo, hold=True)
    assert not sent.responder.streams
    zoo.talk.steps.release()
    found = await sent.responder.stream()
    assert await found.piece(0) == event("a 0")
    assert not found.is_ended
    zoo.talk.steps.release()
    assert await found.body() == event("a 0") + event("a 1")


async def test_many_events_are_pieces_of_a_limited_size(zoo: Zoo) -> None:
    found = await stream(zoo, words=6, large=True).responder.stream()
    whole = await found.body()
    assert whole.count(b"data: ") == 6
    assert max(map(len, found.pieces)) < 2 * 65_536


async def test_stream_without_an_output(zoo: Zoo) -> None:
    found = await stream(zoo, words=0).responder.stream()
    assert (found.status, await found.body()) == (200, b"")
    assert not found.pieces


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is empty"),
        (b"{", 400, "failed to parse"),
        (b'{"text_input":"a","text_input":"b"}', 400, "member 'text_input' stands more than once"),
        (text(words=-1), 400, "words: "),
        (text(words=0, fail=True), 500, "RuntimeError: the model is lost"),
        (text() + b" " * MAX_BODY, 413, "--max-body-size"),
    ],
)
async def test_error_before_the_first_response_has_its_status(
    zoo: Zoo, path: str, body: bytes, status: int, message: str
) -> None:
    answer = await ask(zoo.router, "POST", path, body=body)
    assert (answer.status, message in json.loads(body_of(answer))["error"]) == (status, True)
    assert dict(answer.headers)[b"content-type"] == b"application/json"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_model_that_is_not_there(zoo: Zoo, path: str) -> None:
    assert (await ask(zoo.router, "POST", path.replace("talk", "nope"), body=text())).status == 404


async def test_error_after_a_response_is_the_last_event(zoo: Zoo) -> None:
    found = await stream(zoo, words=1, fail=True).responder.stream()
    assert await found.body() == event("a 0") + b'data: {"error":"RuntimeError: the model is lost"}\n\n'


async def test_compressed_request(zoo: Zoo) -> None:
    headers = ((b"content-encoding", b"gzip"),)
    answer = await ask(zoo.router, "POST", GENERATE, body=gzip.compress(text(words=1)), headers=headers)
    assert json.loads(body_of(answer))["text_output"] == "a 0"
    sent = send(zoo.router, "POST", STREAM, body=gzip.compress(text(words=1)), headers=headers)
    assert await (await sent.responder.stream()).body() == event("a 0")


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_client_that_leaves_before_the_first_response_cancels_its_run(zoo: Zoo, path: str) -> None:
    sent = send(zoo.router, "POST", path, body=text(hold=True))
    (prediction,) = zoo.live("talk")
    sent.exchange.abandon()
    await end_of(prediction)
    assert prediction.status is Status.CANCELED
    assert not sent.responder.answers
    assert not sent.responder.streams


async def test_client_that_leaves_a_stream_cancels_its_run(zoo: Zoo) -> None:
    sent = stream(zoo, hold=True)
    (prediction,) = zoo.live("talk")
    zoo.talk.steps.release()
    found = await sent.responder.stream()
    await found.piece(0)
    sent.exchange.abandon()
    await end_of(prediction)
    assert prediction.status is Status.CANCELED
    assert (found.pieces, found.is_ended) == ([event("a 0")], False)


async def test_write_that_finds_the_client_gone_cancels_the_run(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    sent = stream(zoo, hold=True)
    (prediction,) = zoo.live("talk")
    zoo.talk.steps.release()
    found = await sent.responder.stream()
    await found.piece(0)
    found.hang_up()
    zoo.talk.steps.release()
    await end_of(prediction)
    assert not found.is_ended
    assert not caplog.records


async def test_client_that_does_not_read_is_told_that_it_is_too_slow(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers.EventReader.__init__, "__kwdefaults__", {"backlog": 3})
    sent = stream(zoo, words=10, hold=True)
    (prediction,) = zoo.live("talk")
    zoo.talk.steps.release()
    found = await sent.responder.stream()
    await found.piece(0)
    found.stop_reading()
    for _ in range(9):
        zoo.talk.steps.release()
    await end_of(prediction)
    found.go_on_reading()
    last = (await found.body()).split(b"\n\n")[-2]
    assert last == b'data: {"error":"The client reads too slowly; responses were dropped."}'


async def test_bug_is_told_as_an_event(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = stream(zoo, hold=True)
    zoo.talk.steps.release()
    found = await sent.responder.stream()
    await found.piece(0)
    monkeypatch.setattr("geartrain.apis.generate.encode_response", lambda *_: 1 // 0)
    zoo.talk.steps.release()
    assert (await found.body()).endswith(b'data: {"error":"Internal server error"}\n\n')
    assert "ZeroDivisionError" in caplog.text


NAME = "n" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        {NAME: []},
        {f"{index}": [] for index in range(10_000)},
        {NAME: 10**300},
        {f"triton_{NAME}": 1},
        {"a": 1, NAME: 1, "parameters": {NAME: 2}},
    ],
)
async def test_errors_quote_little(zoo: Zoo, body: dict[str, Any]) -> None:
    answer: Answer = await ask(zoo.router, "POST", GENERATE, body=text(**body))
    assert (answer.status, len(body_of(answer)) < 500) == (400, True)


async def test_repeated_member_is_quoted_a_little(zoo: Zoo) -> None:
    body = b'{"%b":1,"%b":1}' % (NAME.encode(), NAME.encode())
    answer = await ask(zoo.router, "POST", GENERATE, body=body)
    assert (answer.status, len(body_of(answer)) < 300) == (400, True)
