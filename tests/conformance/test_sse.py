"""Cog's HTTP API, "Streaming predictions with server-sent events"; observed Cog, section 14."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from geartrain.domain.predictions.lifecycle import Status
from geartrain.service.models.deployment import Limits
from geartrain.transport.cog.api import CogOptions
from tests.support.clients import asyncio_client
from tests.support.cluster import ready
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model
from tests.support.sse import (
    ASYNC,
    FLOOD,
    SYNC,
    Event,
    EventStream,
    ask,
    events,
    idle,
    outputs,
    parse,
    request,
    stream,
    stuck_reader,
    wait,
)
from tests.support.wire import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENT_STREAM = {"accept": "text/event-stream"}
TRUNCATED = "SSE stream replay truncated; events were dropped"
LAGGED = "SSE stream lagged; events were dropped"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SYNC) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def concurrent(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ASYNC, name="concurrent") as server:
        yield server


# What a stream looks like


async def test_stream_as_observed(server: LiveServer) -> None:
    script: list[list[Any]] = [["print", "yielding 0"], ["yield", "c0"], ["metric", "cnt", 2, "incr"]]
    async with stream(server, *script, id="s1") as opened:
        await opened.rest()
    start, log, output, metric, completed, end = opened.text.split(b"\n\n")
    assert start == b'event: start\ndata: {"id":"s1","status":"processing"}'
    assert log == rb"event: log" + b"\n" + rb'data: {"data":"yielding 0\n","source":"stdout"}'
    assert output == b'event: output\ndata: {"chunk":"c0","index":0}'
    assert metric == b'event: metric\ndata: {"mode":"increment","name":"cnt","value":2}'
    assert completed.startswith(b"event: completed\ndata: {")
    assert end == b""
    assert not re.search(rb"^(id|retry):|\r", opened.text, re.MULTILINE)


async def test_head_of_a_stream(server: LiveServer) -> None:
    async with stream(server) as opened:
        assert opened.headers["content-type"] == "text/event-stream"
        assert opened.headers["cache-control"] == "no-cache"
        assert opened.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in opened.headers
        await opened.rest()


async def test_start_is_first_and_completed_is_last(server: LiveServer) -> None:
    seen = await events(server, ["print", "a"], ["yield", 1], ["warn", "b"], ["metric", "m", 1], ["yield", 2])
    assert [name for name, _ in seen] == ["start", "log", "output", "log", "metric", "output", "completed"]
    assert seen[0][1]["id"] == seen[-1][1]["id"]


async def test_stream_of_nothing(server: LiveServer) -> None:
    start, completed = await events(server)
    assert start[0] == "start"
    assert (completed[1]["status"], completed[1]["output"]) == ("succeeded", [])


async def test_completed_is_the_final_prediction(server: LiveServer) -> None:
    *_, (_, final) = await events(server, ["print", "a"], ["yield", "c0"], ["yield", "c1"], ["metric", "m", 7], id="f1")
    assert (final["id"], final["status"], final["output"]) == ("f1", "succeeded", ["c0", "c1"])
    assert final["logs"] == "a\n"
    assert final["metrics"] == {"m": 7, "predict_time": pytest.approx(0, abs=5)}
    shown = (await server.client.get("/predictions/f1")).json()
    assert final == shown


async def test_chunks_of_every_kind(server: LiveServer) -> None:
    values: list[Any] = [1, 0.5, True, None, "héé\n\n🙂", [1, [2]], {"b": {"d": 1, "c": 2}, "a": []}, ""]
    seen = await events(server, *[["yield", value] for value in values])
    assert outputs(seen) == values
    assert seen[-1][1]["output"] == values


async def test_large_chunks(server: LiveServer) -> None:
    text = "x" * 3_000_000
    seen = await events(server, ["yield", text], ["yield", text * 3], ["yield", "end"])
    assert outputs(seen) == [text, text * 3, "end"]  # the second one is too large for the inner wire


@pytest.mark.parametrize(("step", "source"), [("print", "stdout"), ("warn", "stderr")])
async def test_source_of_a_log(server: LiveServer, step: str, source: str) -> None:
    seen = await events(server, [step, 'a "line"\nand one'])
    logs = [data for name, data in seen if name == "log"]
    assert {log["source"] for log in logs} == {source}
    assert "".join(log["data"] for log in logs) == 'a "line"\nand one\n'


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["m", 1], {"mode": "replace", "name": "m", "value": 1}),
        (["m", "text", "replace"], {"mode": "replace", "name": "m", "value": "text"}),
        (["m", 2, "incr"], {"mode": "increment", "name": "m", "value": 2}),
        (["m", "x", "append"], {"mode": "append", "name": "m", "value": "x"}),
        (["a.b.c", 3], {"mode": "replace", "name": "a.b.c", "value": 3}),
    ],
)
async def test_metric(server: LiveServer, given: list[Any], shown: dict[str, Any]) -> None:
    _, metric, _ = await events(server, ["metric", *given])
    assert metric == ("metric", shown)


async def test_value_of_a_metric_is_the_one_given(server: LiveServer) -> None:
    seen = await events(server, *[["metric", "n", 2, "incr"]] * 3, *[["metric", "l", "x", "append"]] * 2)
    assert [data["value"] for name, data in seen if name == "metric"] == [2, 2, 2, "x", "x"]
    assert {key: seen[-1][1]["metrics"][key] for key in "nl"} == {"n": 6, "l": ["x", "x"]}


async def test_failed(server: LiveServer) -> None:
    seen = await events(server, ["print", "a"], ["yield", "c0"], ["raise", "midstream"])
    name, final = seen[-1]
    assert name == "completed"
    assert (final["status"], final["error"], final["output"]) == ("failed", "ValueError: midstream", ["c0"])
    assert final["logs"].startswith("a\n")
    assert "predict_time" in final["metrics"]
    logs = "".join(data["data"] for name, data in seen if name == "log")
    assert final["logs"] == logs
    assert "Traceback" in logs


async def test_failed_without_output(server: LiveServer) -> None:
    *_, (_, final) = await events(server, ["raise", "at once"])
    assert final["status"] == "failed"
    assert "output" not in final


async def test_canceled(server: LiveServer, gates: Gates) -> None:
    async with stream(server, ["print", "a"], ["yield", "c0"], wait(gates), ["yield", "c1"], id="c1") as opened:
        await opened.until("output")
        response = await server.client.post("/predictions/c1/cancel")
        assert (response.status_code, response.json()) == (200, {})
        [(name, final)] = await opened.rest()
    assert name == "completed"
    assert (final["status"], final["output"], final["logs"]) == ("canceled", ["c0"], "a\n")
    assert "error" not in final


async def test_crash_of_the_worker(serve: Serve) -> None:
    async with serve(SYNC) as server:
        seen = await events(server, ["yield", "c0"], ["exit"])
        assert [name for name, _ in seen] == ["start", "output", "completed"]
        assert (seen[-1][1]["status"], seen[-1][1]["output"]) == ("failed", ["c0"])


async def test_value_of_a_function_that_is_no_generator(serve: Serve) -> None:
    source = """
        from geartrain import streaming

        @streaming
        def run(text: str = "") -> str:
            print("here")
            return text
    """
    async with serve(source) as server, connection(server.url) as wire:
        seen = await (await ask(wire, {"text": "all of it"})).rest()
        assert [name for name, _ in seen] == ["start", "log", "output", "completed"]
        assert outputs(seen) == ["all of it"]
        assert seen[-1][1]["output"] == "all of it"


async def test_d29_files_and_values_in_one_stream(server: LiveServer) -> None:
    seen = await events(server, ["yield", "a"], ["file", "one"], ["print", "after it"], ["yield", 3], ["file", "two"])
    assert [name for name, _ in seen] == ["start", "output", "output", "log", "output", "output", "completed"]
    chunks = outputs(seen)  # in order, each with an index of its own
    assert chunks == ["a", "data:text/plain;base64,b25l", 3, "data:text/plain;base64,dHdv"]
    assert seen[-1][1]["output"] == chunks


# As it happens


async def test_each_chunk_leaves_at_once(server: LiveServer, gates: Gates) -> None:
    first, second, third = (wait(gates, name) for name in "012")
    script: list[list[Any]] = [["yield", 0], first, ["yield", 1], second, ["print", "x"], third]
    async with stream(server, *script) as opened:
        assert await opened.next() == ("start", {"id": server.newest().id, "status": "processing"})
        assert await opened.next() == ("output", {"chunk": 0, "index": 0})
        gates["0"].open()
        assert await opened.next() == ("output", {"chunk": 1, "index": 1})
        gates["1"].open()
        assert await opened.next() == ("log", {"data": "x\n", "source": "stdout"})
        gates["2"].open()
        assert [name for name, _ in await opened.rest()] == ["completed"]


async def test_d6_async_generator_is_streamed_as_it_yields(concurrent: LiveServer, gates: Gates) -> None:
    async with stream(concurrent, ["yield", 0], wait(gates, "0"), ["yield", 1], wait(gates, "1")) as opened:
        assert [name for name, _ in await opened.until("output")] == ["start", "output"]
        gates["0"].open()
        assert await opened.next() == ("output", {"chunk": 1, "index": 1})
        gates["1"].open()
        [(_, final)] = await opened.rest()
        assert final["output"] == [0, 1]


async def test_d6_async_generator_that_fails(serve: Serve) -> None:
    source = """
        from typing import AsyncIterator
        from geartrain import streaming

        @streaming
        async def run(script: list[int] = []) -> AsyncIterator[int]:
            yield 1
            raise RuntimeError("midstream")
    """
    async with serve(source) as server:
        seen = await events(server)
        assert [name for name, _ in seen] == ["start", "output", "log", "completed"]
        assert (seen[-1][1]["status"], seen[-1][1]["error"]) == ("failed", "RuntimeError: midstream")


async def test_comment_on_a_quiet_stream(serve: Serve, gates: Gates) -> None:
    async with serve(SYNC, quiet=0.05) as server, stream(server, wait(gates), ["yield", 1]) as opened:
        assert await opened.until("") == [
            ("start", {"id": server.newest().id, "status": "processing"}),
            ("", "keep-alive"),
        ]
        assert opened.text.endswith(b"\n\n: keep-alive\n\n")
        assert await opened.next() == ("", "keep-alive")
        gates["gate"].open()
        seen = [event for event in await opened.rest() if event[0]]
        assert [name for name, _ in seen] == ["output", "completed"]


async def test_comment_comes_after_fifteen_seconds() -> None:
    assert CogOptions().quiet == 15.0


# What asks for a stream, and what does not


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("text/event-stream;q=0.5", True),
        ("text/event-stream; charset=utf-8", True),
        ("application/json, text/event-stream", True),
        ("application/json;q=0.5,text/event-stream", True),
        ("text/event-stream,*/*;q=0.1", True),
        ("application/json,text/event-stream;q=0.1,*/*", False),
        ("text/event-stream;q=0", False),
        ("*/*", False),
        ("text/*", False),
        ("TEXT/EVENT-STREAM", True),
        ("Text/Event-Stream;Q=1.0", True),
        ("text/event-streams", False),
        ("application/json", False),
        ("", False),
    ],
)
async def test_a11_accept_is_a_list_with_weights(server: LiveServer, accept: str, streams: bool) -> None:
    response = await server.client.post("/predictions", json={}, headers={"accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"] == ("text/event-stream" if streams else "application/json")


async def test_without_accept_the_answer_is_json(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        answer = await wire.post("/predictions", b"{}", "content-type: application/json")
        assert answer.json()["status"] == "succeeded"


async def test_stream_wins_over_prefer(server: LiveServer) -> None:
    response = await server.client.post("/predictions", json={}, headers={**EVENT_STREAM, "prefer": "respond-async"})
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
    assert [name for name, _ in parse(response.content)] == ["start", "completed"]


async def test_put_creates_a_stream(server: LiveServer) -> None:
    seen = await events(server, ["yield", 1], put="p1")
    assert seen[0] == ("start", {"id": "p1", "status": "processing"})
    assert (seen[-1][1]["id"], seen[-1][1]["output"]) == ("p1", [1])


async def test_model_that_does_not_stream(serve: Serve) -> None:
    source = """
        from typing import Iterator

        def run() -> Iterator[str]:
            yield "a"
    """
    async with serve(source) as server:
        for method, path in (("POST", "/predictions"), ("PUT", "/predictions/x")):
            response = await server.client.request(method, path, json={}, headers=EVENT_STREAM)
            assert response.status_code == 406
            assert response.headers["content-type"] == "application/json"
            assert response.json()["error"].startswith(
                "This model does not support streaming responses. Add @streaming to run() to enable SSE"
            )
        assert (await server.predict())["output"] == ["a"]  # as JSON it does


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"input":{"script":5}}', {}, 422),
        (b'{"input":{"other":5}}', {}, 422),
        (b"{", {}, 400),
        (b"text", {"content-type": "text/plain"}, 415),
    ],
    ids=["wrong type", "unknown field", "no JSON", "other media type"],
)
async def test_rejection_is_plain_json(
    server: LiveServer, content: bytes, headers: dict[str, str], status: int
) -> None:
    plain = {"content-type": "application/json", **headers}
    response = await server.client.post("/predictions", content=content, headers={**plain, **EVENT_STREAM})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    without = await server.client.post("/predictions", content=content, headers=plain)
    assert (without.status_code, without.json()) == (status, response.json())


@pytest.mark.one_server(reason="another replica has a free slot")
async def test_no_free_slot_is_plain_json(server: LiveServer, gates: Gates) -> None:
    async with stream(server, wait(gates), id="busy") as opened:
        response = await server.client.post("/predictions", json={}, headers=EVENT_STREAM)
        assert (response.status_code, response.headers["content-type"]) == (409, "application/json")
        assert response.json() == {
            "error": "At capacity - all prediction slots busy (--queue lets requests wait)",
            "status": "failed",
        }
        gates["gate"].open()
        await opened.rest()


async def test_not_ready_is_plain_json(serve: Serve) -> None:
    source = """
        from geartrain import BaseRunner, streaming

        class Runner(BaseRunner):
            def setup(self) -> None:
                raise ValueError("no weights")

            @streaming
            def run(self) -> str:
                return ""
    """
    async with serve(source, ready=False) as server:
        await eventually(lambda: server.workers.setup.completed_at is not None)
        response = await server.client.post("/predictions", json={}, headers=EVENT_STREAM)
        assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
        assert response.json()["status"] == "failed"


async def test_id_that_does_not_match_the_path(server: LiveServer) -> None:
    response = await server.client.put("/predictions/a", json={"id": "b"}, headers=EVENT_STREAM)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "id"]


@pytest.mark.parametrize(
    ("imported", "decorator"),
    [
        ("from geartrain import streaming", "@streaming"),
        ("from geartrain import streaming", "@streaming()"),
        ("import geartrain", "@geartrain.streaming"),
        ("import geartrain", "@geartrain.streaming()"),
        ("from cog import streaming", "@streaming"),
        ("from cog import streaming", "@streaming()"),
        ("import cog", "@cog.streaming"),
        ("import cog", "@cog.streaming()"),
    ],
)
async def test_forms_of_the_decorator(serve: Serve, imported: str, decorator: str) -> None:
    source = f"""
        from typing import Iterator
        {imported}

        class Runner:
            {decorator}
            def run(self) -> Iterator[str]:
                yield "a"
    """
    async with serve(source) as server:
        assert outputs(await events(server)) == ["a"]
        document = (await server.client.get("/openapi.json")).json()
        assert document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True


# Together with the rest of the server


async def test_connection_is_usable_after_a_stream(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        for turn in range(50):
            seen = await (await ask(wire, {"script": [["yield", turn]]})).rest()
            assert outputs(seen) == [turn]
            assert (seen[-1][0], seen[-1][1]["status"]) == ("completed", "succeeded")  # D1: the slot was free again
        answer = await wire.post("/predictions", b"{}", "content-type: application/json")
        assert answer.json()["status"] == "succeeded"


async def test_requests_in_a_pipeline_behind_a_stream(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        await wire.send(request({"script": [["many", 100, "a"]]}) + request({"script": [["many", 100, "b"]]}))
        for text in "ab":
            opened = EventStream(wire, await wire.head())
            assert outputs(await opened.rest()) == [text] * 100


async def test_stream_that_waits_in_the_queue(serve: Serve, gates: Gates) -> None:
    async with serve(SYNC, limits=Limits(queue=1)) as server, stream(server, wait(gates), ["yield", "first"]) as first:
        assert (await first.next())[0] == "start"
        async with stream(server, ["yield", "second"]) as second:
            assert server.newest().status is Status.STARTING
            gates["gate"].open()
            assert outputs(await first.rest()) == ["first"]
            seen = await second.rest()
            assert [name for name, _ in seen] == ["start", "output", "completed"]


async def test_who_waits_can_ask_for_the_place_in_the_queue(serve: Serve, gates: Gates) -> None:
    async def places(live: LiveServer, *ids: str) -> list[str]:
        answers = [await live.client.get(f"/predictions/{each}") for each in ids]
        return [answer.headers.get("x-queue-position", "") for answer in answers]

    async with serve(SYNC, limits=Limits(queue=2)) as server, stream(server, wait(gates)) as first:
        await first.next()
        running = server.newest().id
        async with stream(server, ["yield", "second"], id="second"), stream(server, ["yield", "third"], id="third"):
            assert await places(server, running, "second", "third") == ["", "1", "2"]
            await server.client.post("/predictions/second/cancel")
            assert await places(server, "second", "third") == ["", "1"]
            gates["gate"].open()
            assert (await first.rest())[-1][1]["status"] == "succeeded"


PARTIAL = """
    import os, select
    from collections.abc import Iterator
    from geartrain import streaming

    @streaming
    def run(script: list) -> Iterator[str]:
        for step in script[1:]:
            if step[0] == "below":
                os.write(1, b"no newline")
            else:
                print("no newline", end="")
        with open(script[0][1], "rb", buffering=0) as gate:
            select.select([gate], [], [])
        yield "end"
"""


@pytest.mark.parametrize("how", ["print", "below"])  # below: as a C library writes
async def test_a10_print_without_a_newline_reaches_the_stream_of_a_run_that_goes_on(
    serve: Serve, gates: Gates, how: str
) -> None:
    async with serve(PARTIAL) as server, stream(server, wait(gates), [how]) as opened:
        assert (await opened.until("log"))[-1] == ("log", {"data": "no newline", "source": "stdout"})
        gates["gate"].open()
        assert (await opened.rest())[-1][1]["logs"] == "no newline"


async def test_reader_leaves_a_prediction_that_waits_in_the_queue(serve: Serve, gates: Gates) -> None:
    limits = Limits(queue=1, stream_grace=0.0)
    async with serve(SYNC, limits=limits) as server, stream(server, wait(gates)) as first:
        await first.next()
        async with stream(server, ["yield", "second"]):
            waiting = server.newest()
        await eventually(lambda: waiting.is_terminal)
        assert waiting.status is Status.CANCELED
        gates["gate"].open()
        assert (await first.rest())[-1][1]["status"] == "succeeded"


@pytest.mark.slow
async def test_two_hundred_streams_at_once(concurrent: LiveServer, gates: Gates) -> None:
    async def read(number: int) -> tuple[int, list[Event]]:
        return number, await events(concurrent, wait(gates), ["many", 50, f"token {number}"], id=f"number-{number}")

    readers = [asyncio.ensure_future(read(number)) for number in range(200)]
    await eventually(lambda: not concurrent.workers.permits.idle)
    gates["gate"].open()
    for number, seen in await asyncio.gather(*readers):
        assert [name for name, _ in seen] == ["start", *["output"] * 50, "completed"]
        assert outputs(seen) == [f"token {number}"] * 50
        assert (seen[-1][1]["id"], seen[-1][1]["status"]) == (f"number-{number}", "succeeded")
    await idle(concurrent)


@pytest.mark.own_wire(reason="a proxy goes on listening")
async def test_sigterm_lets_a_stream_end(
    tmp_path: Path, server_process: Callable[..., ServerProcess], gates: Gates
) -> None:
    process = server_process(str(write_model(tmp_path, SYNC)))
    url = ready(process)
    async with connection(url) as wire:
        opened = await ask(wire, {"script": [["yield", 0], wait(gates), ["yield", 1]]})
        await opened.until("output")
        process.popen.send_signal(signal.SIGTERM)
        await eventually(lambda: _refuses(url))
        gates["gate"].open()
        assert [name for name, _ in await opened.rest()] == ["output", "completed"]
        assert await wire.at_end()
    assert await asyncio.to_thread(process.popen.wait, 20) == 0


def _refuses(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port)).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_sigterm_cancels_what_has_not_ended_within_the_grace(
    tmp_path: Path, server_process: Callable[..., ServerProcess], gates: Gates
) -> None:
    process = server_process(str(write_model(tmp_path, ASYNC)), "--shutdown-grace", "0.2")
    url = ready(process)
    body = json.dumps({"input": {"script": [["yield", 0], wait(gates)]}}).encode()
    async with connection(url) as wire, connection(url) as other:
        plain = asyncio.ensure_future(other.post("/predictions", body, "content-type: application/json"))
        opened = await ask(wire, {"script": [["yield", 0], wait(gates)]})
        await opened.until("output")
        process.popen.send_signal(signal.SIGTERM)
        [(name, final)] = await opened.rest()
        assert (name, final["status"], final["output"]) == ("completed", "canceled", [0])
        assert (await plain).json()["status"] == "canceled"
    assert await asyncio.to_thread(process.popen.wait, 10) == 0


async def test_sigterm_does_not_wait_for_a_reader_that_is_stuck(
    tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    process = server_process(str(write_model(tmp_path, SYNC)), "--shutdown-grace", "1")
    url = ready(process)
    stuck = await stuck_reader(url, request({"script": [["many", FLOOD, "x" * 200]]}, put="stuck"))
    async with asyncio_client(url) as client:
        while (await client.get("/predictions/stuck")).json().get("status") != "succeeded":
            pass
    process.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.popen.wait, 10) == 0
    stuck.close()
