"""The REST and Cog APIs over HTTP/2: whole predictions, streams, bodies of every size, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from geartrain.service.models.deployment import Limits
from geartrain.transport.access.guard import SCOPES
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from tests.support import modes
from tests.support.attacks import ECHO, MANY, STREAMING, body, runs
from tests.support.http2 import (
    LARGEST_WINDOW,
    Answer,
    Http2Client,
    Kind,
    data,
    headers,
    http2,
    reset,
    settings,
    window_update,
)
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model

StartProcess = Callable[..., ServerProcess]
MIB = 1024**2
ACCEPT_EVENTS = ("accept", "text/event-stream")
JSON = ("content-type", "application/json")


def error_of(answer: Answer) -> str:
    """The sentence of an answer that refuses."""
    said = answer.json()["error"]
    assert isinstance(said, str)
    assert said
    return said


@contextlib.asynccontextmanager
async def serving(
    serve: Serve, model: str = ECHO, own: Mapping[int, int] | None = None, **options: object
) -> AsyncIterator[tuple[LiveServer, Http2Client]]:
    """A server that runs 64 predictions at once, and a client of it."""
    async with serve(model, cog_yaml=MANY, **options) as server, http2(server.url, own) as client:
        yield server, client


async def start(client: Http2Client, text: str, *, gate: str = "go", size: int = 0) -> int:
    """Ask for a prediction that waits for a gate; return its stream."""
    content = body(text, gate=gate, size=size)
    stream = await client.begin("POST", "/predictions", JSON)
    await client.upload(stream, content)
    return stream


# whole answers


async def test_a_whole_prediction(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        for text in ("one", "two", "three"):
            answer = await client.ask("POST", "/predictions", body(text))
            assert answer.status == 200
            assert answer.json()["output"] == text
            assert answer.headers["content-length"] == str(len(answer.body))
            assert answer.trailers == {}


async def test_a_prediction_without_a_length(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        stream = await client.begin("POST", "/predictions", JSON)
        content = body("in pieces")
        for index in range(len(content)):
            await client.upload(stream, content[index : index + 1], end=index == len(content) - 1)
        assert (await client.answer(stream)).json()["output"] == "in pieces"


async def test_an_empty_frame_ends_a_body(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("then nothing"), end=False)
        await client.send(data(stream), data(stream, end=True))
        assert (await client.answer(stream)).json()["output"] == "then nothing"


@pytest.mark.parametrize("path", ["/nothing", "/predictions/unknown", "/v2/models/unknown"])
async def test_what_is_not_there(serve: Serve, path: str) -> None:
    async with serving(serve) as (_, client):
        assert (await client.ask("GET", path)).status == 404
        assert (await client.ask("POST", "/predictions", body("after"))).status == 200


async def test_a_method_that_a_path_has_not(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        answer = await client.ask("DELETE", "/predictions")
        assert answer.status == 405
        assert "POST" in answer.headers["allow"]


async def test_an_answer_to_head_has_no_body(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        by_get = await client.ask("GET", "/openapi.json")
        by_head = await client.ask("HEAD", "/openapi.json")
        assert (by_get.status, by_head.status) == (200, 200)
        assert by_head.headers["content-length"] == by_get.headers["content-length"] == str(len(by_get.body))
        assert by_head.body == b""


async def test_inference_over_rest(serve: Serve) -> None:
    tensor = {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["over rest"]}
    async with serving(serve) as (_, client):
        content = json.dumps({"id": "7", "inputs": [tensor]}).encode()
        answer = await client.ask("POST", "/v2/models/model/infer", content)
        assert answer.status == 200
        assert (answer.json()["id"], answer.json()["outputs"][0]["data"]) == ("7", ["over rest"])


async def test_a_prediction_in_the_background(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        answer = await client.ask("PUT", "/predictions/mine", body("x", gate="go"), ("prefer", "respond-async"))
        assert (answer.status, answer.json()["id"]) == (202, "mine")
        assert (await client.ask("POST", "/predictions/mine/cancel")).status == 200
        assert (await server.ended("mine")).status == "canceled"


async def test_trailers_of_a_request_change_nothing(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("before trailers"), end=False)
        block = client.encoder.encode([("content-length", "3"), ("x-checksum", "abc"), ("authorization", "no")])
        await client.send(headers(stream, block))
        assert (await client.answer(stream)).json()["output"] == "before trailers"


async def test_a_client_that_waits_for_100(serve: Serve) -> None:
    """It is told to go on, or simply gets its answer once the body is there."""
    async with serving(serve) as (_, client):
        content = body("expected")
        stream = await client.begin(
            "POST", "/predictions", JSON, ("expect", "100-continue"), ("content-length", str(len(content)))
        )
        await client.upload(stream, content)
        assert (await client.answer(stream)).json()["output"] == "expected"


async def test_cookies_in_pieces_and_fields_given_twice(serve: Serve) -> None:
    fields = (("cookie", "a=1"), ("cookie", "b=2"), ("x-a", "1"), ("x-a", "2"))
    async with serving(serve) as (_, client):
        assert (await client.ask("GET", "/health-check", None, *fields)).status == 200


# several at once


async def test_answers_come_as_they_are_ready(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        held = await start(client, "held")
        answer = await client.ask("POST", "/predictions", body("quick"))
        assert answer.json()["output"] == "quick"
        assert not client.answers[held].is_over
        server.open_gate()
        assert (await client.answer(held)).json()["output"] == "held"


async def test_sixty_predictions_at_once_have_each_their_own_answer(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        streams = {await start(client, str(number)): number for number in range(60)}
        await eventually(lambda: len(runs(server)) == 60)
        server.open_gate()
        for stream, number in streams.items():
            assert (await client.answer(stream)).json()["output"] == str(number)


async def test_a_large_answer_holds_up_nobody(serve: Serve) -> None:
    """The client takes nothing of it, and asks for other things meanwhile."""
    async with serving(serve) as (_, client):
        client.gives_credit = False
        large = await client.begin("POST", "/predictions", JSON)
        await client.upload(large, body("", size=4 * MIB))
        await client.until(lambda: client.answers[large].window == 0)
        client.credit(0, MIB)
        for number in range(20):
            small = await client.ask("POST", "/predictions", body(str(number)))
            assert small.json()["output"] == str(number)
        assert len(client.answers[large].body) == 65_535
        client.gives_credit = True
        client.credit(0, 4 * MIB)
        client.credit(large, 5 * MIB)
        assert len((await client.answer(large)).json()["output"]) == 4 * MIB


# streams


def events_of(answer: Answer) -> int:
    return bytes(answer.body).count(b"event: output")


async def test_events_come_as_they_happen(serve: Serve) -> None:
    async with serving(serve, STREAMING) as (server, client):
        stream = await client.begin("POST", "/predictions", JSON, ACCEPT_EVENTS)
        await client.upload(stream, body("e", pieces=3, gate="go"))
        answer = client.answers[stream]
        await client.until(lambda: events_of(answer) == 1)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert not answer.is_over
        server.open_gate()
        assert events_of(await client.answer(stream)) == 3
        assert b"event: completed" in answer.body


async def test_a_client_that_reads_its_events_late_gets_them_all(serve: Serve) -> None:
    async with serving(serve, STREAMING) as (_, client):
        client.gives_credit = False
        stream = await client.begin("POST", "/predictions", JSON, ACCEPT_EVENTS)
        await client.upload(stream, body("e", pieces=50, size=100_000))
        answer = client.answers[stream]
        await client.until(lambda: answer.window == 0)
        client.credit(0, MIB)
        assert (await client.ask("GET", "/health-check")).status == 200
        assert len(answer.body) == 65_535
        client.gives_credit = True
        client.credit(0, 8 * MIB)
        client.credit(stream, 8 * MIB)
        assert events_of(await client.answer(stream)) == 50


# bodies and windows


async def test_a_body_of_8_mebibytes_goes_both_ways(serve: Serve) -> None:
    own: dict[int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_WINDOW, SettingCodes.MAX_FRAME_SIZE: 2**24 - 1}
    async with serving(serve, own=own) as (_, client):
        client.credit(0, LARGEST_WINDOW - 65_535)
        text = "0123456789abcdef" * (8 * MIB // 16)
        answer = await client.ask("POST", "/predictions", body(text))
        assert answer.json()["output"] == text


@pytest.mark.parametrize(("window", "size"), [(1, 300), (7, 3000), (1000, 300_000)])
async def test_a_client_with_a_small_window(serve: Serve, window: int, size: int) -> None:
    async with serving(serve, own={SettingCodes.INITIAL_WINDOW_SIZE: window}) as (_, client):
        answer = await client.ask("POST", "/predictions", body("s", size=size))
        assert len(answer.json()["output"]) == size + 1


async def test_a_window_that_settings_change_on_the_way(serve: Serve) -> None:
    """First to nothing, while an answer is held: its window is below zero until enough has been given back."""
    async with serving(serve) as (_, client):
        client.gives_credit = False
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("", size=200_000))
        answer = client.answers[stream]
        await client.until(lambda: answer.window == 0)
        client.credit(0, MIB)
        await client.send(settings({SettingCodes.INITIAL_WINDOW_SIZE: 0}))
        await client.next(Kind.SETTINGS)
        client.credit(stream, 65_535 + 100)  # of which all but 100 make good what settings took
        answer.window = 100
        await client.until(lambda: answer.window == 0)
        assert len(answer.body) == 65_535 + 100
        client.credit(stream, MIB)
        assert len((await client.answer(stream)).json()["output"]) == 200_000


async def test_an_answer_that_no_window_lets_go_waits_for_settings(serve: Serve) -> None:
    async with serving(serve, own={SettingCodes.INITIAL_WINDOW_SIZE: 0}) as (_, client):
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("at last"))
        answer = client.answers[stream]
        await client.until(lambda: answer.status == 200)
        assert answer.body == b""
        await client.send(settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000}))
        answer.window = 1000
        assert (await client.answer(stream)).json()["output"] == "at last"


async def test_windows_of_the_server_are_given_back_for_bodies_that_nobody_wants(serve: Serve) -> None:
    """Refused, ended by the client, or without a route: together more than the window of the connection."""
    async with serving(serve, max_body_bytes=2 * MIB) as (_, client):
        piece = b" " * MIB
        for number in range(40):
            stream = await client.begin("POST", ("/predictions", "/nothing", "/predictions")[number % 3], JSON)
            await client.upload(stream, piece, end=number % 3 != 2)
            if number % 3 == 2:
                await client.send(reset(stream))
        assert (await client.ask("POST", "/predictions", body("still open"))).json()["output"] == "still open"


async def test_an_announced_body_that_is_too_large(serve: Serve) -> None:
    async with serving(serve, max_body_bytes=1000) as (server, client):
        stream = await client.begin("POST", "/predictions", JSON, ("content-length", "1001"))
        await client.until(lambda: client.answers[stream].is_over or client.answers[stream].status > 0)
        answer = client.answers[stream]
        await client.until(lambda: answer.is_whole)
        assert answer.status == 413
        assert error_of(answer)
        assert runs(server) == []
        assert (await client.ask("POST", "/predictions", body("small"))).status == 200


async def test_a_body_that_grows_too_large(serve: Serve) -> None:
    """The rest of it is not waited for: the client is told to stop, with an answer that is whole."""
    async with serving(serve, max_body_bytes=1000) as (server, client):
        stream = await client.begin("POST", "/predictions", JSON)
        answer = client.answers[stream]
        await client.upload(stream, b" " * 5000, end=False)
        await client.until(lambda: answer.is_whole)
        assert answer.status == 413
        await client.until(lambda: answer.reset is not None)
        assert answer.reset in {ErrorCodes.NO_ERROR, ErrorCodes.CANCEL}
        assert runs(server) == []
        assert (await client.ask("POST", "/predictions", body("small"))).status == 200


# clients that leave


async def test_a_reset_cancels_the_prediction(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        stream = await start(client, "left")
        await eventually(lambda: len(runs(server)) == 1)
        await client.send(reset(stream))
        await eventually(lambda: server.newest().is_terminal)
        assert server.newest().status == "canceled"
        assert (await client.ask("POST", "/predictions", body("next"))).json()["output"] == "next"


async def test_a_reset_cancels_a_stream_of_events(serve: Serve) -> None:
    async with serving(serve, STREAMING, limits=Limits(stream_grace=0.0)) as (server, client):
        stream = await client.begin("POST", "/predictions", JSON, ACCEPT_EVENTS)
        await client.upload(stream, body("e", pieces=10**9, size=1000))
        await client.until(lambda: events_of(client.answers[stream]) > 5)
        await client.send(reset(stream))
        await eventually(lambda: server.newest().is_terminal)
        assert server.newest().status == "canceled"


async def test_a_connection_that_breaks_cancels_all_its_predictions(serve: Serve) -> None:
    async with serve(ECHO, cog_yaml=MANY) as server:
        async with http2(server.url) as client:
            for number in range(8):
                await start(client, str(number))
            await eventually(lambda: len(runs(server)) == 8)
        await eventually(lambda: all(each.is_terminal for each in server._admitted.values()))
        assert {each.status for each in server._admitted.values()} == {"canceled"}
        await eventually(lambda: server.workers.permits.idle == server.workers.permits.size)


async def test_a_reset_in_the_middle_of_a_body_starts_nothing(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        content = body("never")
        for cut in range(len(content)):
            stream = await client.begin("POST", "/predictions", JSON, ("content-length", str(len(content))))
            await client.upload(stream, content[:cut], end=False)
            await client.send(reset(stream))
        assert (await client.ask("POST", "/predictions", body("only"))).json()["output"] == "only"
        assert len(runs(server)) == 1


async def test_a_client_that_says_goodbye_gets_what_it_is_owed(serve: Serve) -> None:
    async with serving(serve) as (server, client):
        held = await start(client, "owed")
        await client.send(b"\0\0\x08\x07\0\0\0\0\0" + bytes(8))
        await eventually(lambda: len(runs(server)) == 1)
        server.open_gate()
        assert (await client.answer(held)).json()["output"] == "owed"


# keys


async def test_keys_are_asked_for_on_every_stream(serve: Serve, tmp_path: Path) -> None:
    given = modes.current().credentials
    key = new_key() if given is None else given.key
    path = tmp_path / "keys"
    add_key(path, Key("mine", tuple(SCOPES), digest_of(key)))
    async with serving(serve, access=AccessOptions(keys=path)) as (_, client):
        for number in range(3):
            stream = client.open()
            await client.send(headers(stream, client.block("GET", "/openapi.json", authorized=False)))
            refused = await client.answer(stream)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            field = ("authorization", f"Bearer {key}")
            stream = client.open()
            await client.send(headers(stream, client.block("GET", f"/openapi.json?{number}", field, authorized=False)))
            assert (await client.answer(stream)).status == 200


async def test_a_name_that_the_server_has_not(server_process: StartProcess, tmp_path: Path) -> None:
    process = server_process(str(write_model(tmp_path / "model", ECHO)))
    url = process.wait_for("listening")["url"]
    async with http2(url) as client:
        assert (await client.ask("GET", "/health-check", None, (":authority", "evil.example"))).status == 403
        assert (await client.ask("GET", "/health-check", None, (":authority", "localhost:1"))).status == 200


# the end of the server


async def test_every_answer_that_is_owed_is_given_at_the_end(server_process: StartProcess, tmp_path: Path) -> None:
    """GOAWAY comes twice (section 6.8): first to say that it ends, then with the last stream that is answered."""
    folder = write_model(tmp_path / "model", ECHO, MANY)
    process = server_process(str(folder))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    async with http2(url) as client, http2(url) as idle:
        held = [await start(client, str(number), gate=str(folder / "go")) for number in range(20)]
        assert (await client.ask("POST", "/predictions", body("first"))).json()["output"] == "first"
        process.popen.send_signal(signal.SIGTERM)
        last = max(client.answers)
        first_goaway = await client.next(Kind.GOAWAY)
        assert first_goaway.code is ErrorCodes.NO_ERROR
        assert first_goaway.last_stream in {LARGEST_WINDOW, last}
        await client.until(lambda: client.goaway is not None and client.goaway.last_stream == last)
        assert client.goaway is not None
        assert client.goaway.code is ErrorCodes.NO_ERROR
        farewell = await idle.to_end()
        assert farewell is not None
        assert farewell.code is ErrorCodes.NO_ERROR
        assert not any(client.answers[stream].is_over for stream in held)
        (folder / "go").touch()
        for number, stream in enumerate(held):
            assert (await client.answer(stream)).json()["output"] == str(number)
        await client.to_end()
    assert await asyncio.to_thread(process.popen.wait, 40) == 0


async def test_a_stream_behind_the_last_one_is_not_answered(server_process: StartProcess, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", ECHO, MANY)
    process = server_process(str(folder))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    async with http2(url) as client:
        held = await start(client, "held", gate=str(folder / "go"))
        assert (await client.ask("POST", "/predictions", body("first"))).status == 200
        process.popen.send_signal(signal.SIGTERM)
        last = max(client.answers)
        await client.until(lambda: client.goaway is not None and client.goaway.last_stream == last)
        late = await client.begin("GET", "/health-check", end=True)
        (folder / "go").touch()
        assert (await client.answer(held)).json()["output"] == "held"
        await client.to_end()
        assert client.answers[late].status == 0
        assert client.answers[late].reset in {None, ErrorCodes.REFUSED_STREAM}
    assert await asyncio.to_thread(process.popen.wait, 40) == 0


async def test_a_client_may_be_silent_about_windows_it_does_not_need(serve: Serve) -> None:
    """Credit for a stream that is over, and for none at all, is no mistake."""
    async with serving(serve) as (_, client):
        answer = await client.ask("POST", "/predictions", body("done"))
        assert answer.status == 200
        await client.send(window_update(1, 1000), reset(1), window_update(0, 1))
        assert (await client.ask("POST", "/predictions", body("next"))).status == 200
