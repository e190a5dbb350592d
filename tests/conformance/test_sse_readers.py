"""Who reads a stream: several at once, late ones, slow ones, and those who leave. Observed Cog, sections 12 and 14."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from geartrain.domain.predictions.lifecycle import Status
from geartrain.service.models.deployment import Limits
from geartrain.service.readers import DEFAULT_BACKLOG, EventReader
from geartrain.transport.cog import streams
from tests.support.clients import asyncio_client
from tests.support.cluster import ready
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, readers, write_model
from tests.support.sse import (
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

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.one_server(reason="readers are counted within the server that runs the prediction"),
]

EVENT_STREAM = {"accept": "text/event-stream"}
TRUNCATED = "SSE stream replay truncated; events were dropped"
LAGGED = "SSE stream lagged; events were dropped"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SYNC, limits=Limits(stream_grace=0.0)) as server:
        yield server


# Several readers


async def test_put_joins_with_a_full_replay(server: LiveServer, gates: Gates) -> None:
    script: list[list[Any]] = [["print", "a"], ["yield", 0], ["metric", "m", 1], wait(gates), ["yield", 1]]
    async with stream(server, *script, put="j1") as first:
        begun = await first.until("metric")
        async with stream(server, put="j1") as second:  # its input is not looked at
            assert await second.until("metric") == begun
            gates["gate"].open()
            end = await first.rest()
            assert await second.rest() == end
    assert [name for name, _ in end] == ["output", "completed"]
    assert outputs(begun + end) == [0, 1]


async def test_joining_does_not_look_at_the_input(server: LiveServer, gates: Gates) -> None:
    async with stream(server, wait(gates), put="j2") as first, connection(server.url) as wire:
        assert (await first.next())[0] == "start"
        second = await ask(wire, {"script": 5, "unknown": True}, put="j2")
        gates["gate"].open()
        assert [name for name, _ in await second.rest()] == ["start", "completed"]


async def test_put_without_accept_tells_how_a_stream_stands(server: LiveServer, gates: Gates) -> None:
    async with stream(server, ["yield", 0], wait(gates), put="j3") as opened:
        await opened.until("output")
        response = await server.client.put("/predictions/j3", json={})
        assert (response.status_code, response.json()["status"]) == (202, "processing")
        assert response.json()["output"] == [0]
        gates["gate"].open()
        await opened.rest()


@pytest.mark.parametrize("prefer", ["", "respond-async"], ids=["sync", "async"])
async def test_stream_of_a_prediction_made_otherwise(server: LiveServer, gates: Gates, prefer: str) -> None:
    body = {"id": f"j4{prefer}", "input": {"script": [["yield", 0], wait(gates), ["yield", 1]]}}
    made = asyncio.ensure_future(server.client.post("/predictions", json=body, headers={"prefer": prefer}))
    await eventually(lambda: server.predictions.find(f"j4{prefer}") is not None)
    async with stream(server, put=f"j4{prefer}") as opened:
        assert outputs(await opened.until("output")) == [0]
        gates["gate"].open()
        assert [name for name, _ in await opened.rest()] == ["output", "completed"]
    assert (await made).status_code == (202 if prefer else 200)


async def test_a7_put_of_a_finished_id_streams_the_kept_prediction(server: LiveServer) -> None:
    assert outputs(await events(server, ["yield", 1], put="again")) == [1]
    assert outputs(await events(server, ["yield", 2], put="again")) == [1]


async def test_many_readers_see_the_same(server: LiveServer, gates: Gates) -> None:
    async with stream(server, ["yield", 0], wait(gates), ["many", 500, "x"], put="m1") as first:
        begun = await first.until("output")

        async def read() -> list[Event]:
            return await events(server, put="m1")

        reading = [asyncio.ensure_future(read()) for _ in range(20)]
        prediction = server.newest()
        await eventually(lambda: readers(prediction) == 21)
        gates["gate"].open()
        whole = begun + await first.rest()
        assert await asyncio.gather(*reading) == [whole] * 20
    assert outputs(whole) == [0] + ["x"] * 500


async def test_there_is_a_limit_to_readers(server: LiveServer, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    assert streams.MAX_READERS == 1024
    monkeypatch.setattr(streams, "MAX_READERS", 2)
    async with stream(server, wait(gates), put="l1") as first:
        async with stream(server, put="l1") as second:
            await second.next()
            response = await server.client.put("/predictions/l1", json={}, headers=EVENT_STREAM)
            assert response.status_code == 429
            assert response.json()["error"] == "Too many stream subscribers"
        await eventually(lambda: readers(server.newest()) == 1)
        async with stream(server, put="l1") as second:  # there is room again
            gates["gate"].open()
            assert [name for name, _ in await second.rest()] == ["start", "completed"]
        await first.rest()


# The history


async def late(server: LiveServer, gates: Gates, count: int) -> list[Event]:
    """What a reader sees that comes when `start` and `count` outputs have been."""
    name = f"h{count}"
    async with stream(server, ["many", count, "x"], wait(gates), ["yield", "end"], put=name) as first:
        await eventually(lambda: server.newest().log.next_index == count + 1)
        async with stream(server, put=name) as second:
            gates["gate"].open()
            seen = await second.rest()
        assert outputs(await first.rest()) == ["x"] * count + ["end"]  # it was there from the beginning
    return seen


async def test_replay_of_all_that_the_history_holds(server: LiveServer, gates: Gates) -> None:
    seen = await late(server, gates, 1023)
    assert outputs(seen) == ["x"] * 1023 + ["end"]
    assert (seen[0][0], seen[-1][0]) == ("start", "completed")


async def test_replay_that_overflows(server: LiveServer, gates: Gates) -> None:
    assert await late(server, gates, 1200) == [("error", {"error": TRUNCATED, "skipped": 177})]


@pytest.mark.parametrize(("capacity", "count", "skipped"), [(5, 4, None), (5, 5, 1), (3000, 2500, None)])
async def test_history_of_another_size(
    serve: Serve, gates: Gates, capacity: int, count: int, skipped: int | None
) -> None:
    async with serve(SYNC, stream_history=capacity) as server:
        seen = await late(server, gates, count)
    if skipped is None:
        assert outputs(seen) == ["x"] * count + ["end"]
    else:
        assert seen == [("error", {"error": TRUNCATED, "skipped": skipped})]


async def test_no_history(serve: Serve, gates: Gates) -> None:
    async with serve(SYNC, stream_history=0) as server:
        seen = await late(server, gates, 30)
        assert [name for name, _ in seen] == ["output", "completed"]
        assert seen[0] == ("output", {"chunk": "end", "index": 30})
        for _ in range(20):  # who creates it sees it all, however quick it is
            assert outputs(await events(server, ["many", 50, "x"])) == ["x"] * 50


@pytest.mark.parametrize(
    ("variable", "replayed"), [("20", 20), ("0", 0), ("-1", 1024), ("many", 1024), ("", 1024)], ids=str
)
async def test_capacity_variable(
    tmp_path: Path, server_process: Callable[..., ServerProcess], gates: Gates, variable: str, replayed: int
) -> None:
    folder = write_model(tmp_path, SYNC)
    server = server_process(str(folder), env={"COG_STREAM_HISTORY_CAPACITY": variable})
    url = ready(server)
    assert any("COG_STREAM_HISTORY_CAPACITY" in str(line) for line in server.lines) == (variable in {"-1", "many"})
    script = [["many", 1100, "x"], ["print", "done"], wait(gates)]
    async with asyncio_client(url, timeout=20) as client:
        asked = {"id": "v", "input": {"script": script}}
        assert (await client.post("/predictions", json=asked, headers={"prefer": "respond-async"})).status_code == 202
        while "done" not in (await client.get("/predictions/v")).json()["logs"]:
            pass
        async with client.stream("PUT", "/predictions/v", json={}, headers=EVENT_STREAM) as response:
            gates["gate"].open()
            first, *_ = parse(await response.aread())
    events = 1102  # start, outputs, log
    if replayed:
        assert first == ("error", {"error": TRUNCATED, "skipped": events - replayed})
    else:
        assert first[0] == "completed"


# Slow readers, and those who leave


LONG: list[Any] = ["many", 30_000, "x" * 2_000]  # one batch of what it gives is more than all buffers on the way hold
WAVE = 10_000  # events, fewer than a reader may lie behind: however fast the model is, who reads keeps up


async def flooded(server: LiveServer, gates: Gates) -> tuple[socket.socket, list[Event]]:
    """Have a reader that is stuck, and one that is not, follow many events; return the one and what the other saw."""
    waves = [f"wave{number}" for number in range(FLOOD // WAVE)]
    script = [step for wave in waves for step in (wait(gates, wave), ["many", WAVE, "x" * 200])]
    async with stream(server, *script, put="flood") as opened:
        await opened.next()
        stuck = await stuck_reader(server.url, request({}, put="flood"))
        prediction = server.newest()
        await eventually(lambda: readers(prediction) == 2)
        listening = [getattr(listener, "__self__", None) for listener in prediction.log._listeners]
        followers = [each for each in listening if isinstance(each, EventReader)]
        assert len(followers) == 2
        fast: list[Event] = []
        for wave in waves:
            gates[wave].open()
            fast += [await opened.next() for _ in range(WAVE)]
        fast += await opened.rest()
        for reader in followers:
            assert len(reader._pending) <= DEFAULT_BACKLOG
    return stuck, fast


async def read_all(client: socket.socket) -> bytes:
    """Read a chunked answer to its end, late but at last."""

    def read() -> bytes:
        client.settimeout(20)
        latest = time.monotonic() + 30  # for all of it: comments that keep the connection alive come for ever
        text = bytearray()
        while not text.endswith(b"\r\n0\r\n\r\n"):
            piece = client.recv(1 << 20)
            assert time.monotonic() < latest, (len(text), bytes(text[-1000:]))
            assert piece, bytes(text[-1000:])
            text += piece
        return bytes(text)

    text = await asyncio.to_thread(read)
    client.close()
    body = text.partition(b"\r\n\r\n")[2]
    events = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        events += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return events


async def test_slow_reader_stalls_nobody_and_is_sent_away(server: LiveServer, gates: Gates) -> None:
    stuck, fast = await flooded(server, gates)
    assert len(outputs(fast)) == FLOOD
    assert fast[-1][1]["status"] == "succeeded"
    *begun, (name, error) = parse(await read_all(stuck))
    assert name == "error"
    assert error["error"] == LAGGED
    assert list(error) == ["error", "skipped"]
    assert begun[0][0] == "start"
    assert outputs(begun) == ["x" * 200] * (len(begun) - 1)  # no gap before the end
    assert len(begun) + error["skipped"] == FLOOD + 2


async def test_prediction_outlives_its_only_reader_that_was_too_slow(server: LiveServer, gates: Gates) -> None:
    script = [LONG, wait(gates), ["yield", "end"]]
    stuck = await stuck_reader(server.url, request({"script": script}, put="lag"))
    await eventually(lambda: server.predictions.find("lag") is not None)
    prediction = server.newest()
    await eventually(lambda: prediction.log.next_index == LONG[1] + 1)
    assert parse(await read_all(stuck))[-1][0] == "error"
    gates["gate"].open()
    await server.ended("lag")
    assert prediction.status is Status.SUCCEEDED


async def test_slow_reader_that_leaves(server: LiveServer, gates: Gates) -> None:
    script = [LONG, wait(gates)]
    stuck = await stuck_reader(server.url, request({"script": script}, id="gone"))
    await eventually(lambda: server.predictions.find("gone") is not None)
    prediction = server.newest()
    await eventually(lambda: prediction.log.next_index == LONG[1] + 1)
    stuck.close()
    await eventually(lambda: prediction.is_terminal)
    assert prediction.status is Status.CANCELED


async def test_last_reader_leaves_a_stream_made_by_post(server: LiveServer, gates: Gates) -> None:
    async with stream(server, ["yield", 0], wait(gates)) as opened:
        await opened.until("output")
        prediction = server.newest()
    await eventually(lambda: prediction.is_terminal)
    assert prediction.status is Status.CANCELED
    await idle(server)


@pytest.mark.parametrize("stays", [0, 1], ids=["creator", "joiner"])
async def test_one_of_two_readers_leaves(server: LiveServer, gates: Gates, stays: int) -> None:
    async with connection(server.url) as one, connection(server.url) as other:
        script = [["yield", 0], wait(gates), ["yield", 1], wait(gates, "last")]
        first = await ask(one, {"script": script}, id=f"d2{stays}")  # one made by PUT would go on without readers
        await first.until("output")
        second = await ask(other, {}, put=f"d2{stays}")
        await second.until("output")
        prediction = server.newest()
        (other, one)[stays].hang_up()
        await eventually(lambda: readers(prediction) == 1)
        gates["gate"].open()
        reader: EventStream = (first, second)[stays]
        assert await reader.next() == ("output", {"chunk": 1, "index": 1})
        (one, other)[stays].hang_up()  # now it is the last one
        await eventually(lambda: prediction.is_terminal)
        assert prediction.status is Status.CANCELED


async def test_a1_stream_made_by_put_goes_on_without_readers(server: LiveServer, gates: Gates) -> None:
    script: list[list[Any]] = [["yield", 0], wait(gates), ["yield", 1]]
    async with stream(server, *script, put="a1") as opened:
        begun = await opened.until("output")
        prediction = server.newest()
    await eventually(lambda: not readers(prediction))
    async with stream(server, put="a1") as again:
        assert await again.until("output") == begun  # from the beginning
    await eventually(lambda: not readers(prediction))
    gates["gate"].open()
    await server.ended("a1")
    assert prediction.status is Status.SUCCEEDED
    assert outputs(await events(server, put="a1")) == [0, 1]


async def test_a1_stream_made_by_post_waits_for_a_reader_to_come_back(serve: Serve, gates: Gates) -> None:
    async with serve(SYNC, limits=Limits(stream_grace=60.0)) as server:
        async with stream(server, ["yield", 0], wait(gates), ["yield", 1], id="p") as opened:
            await opened.until("output")
            prediction = server.newest()
        await eventually(lambda: not readers(prediction))
        async with stream(server, put="p") as again:
            await again.until("output")
            gates["gate"].open()
            assert (await again.rest())[-1][1]["status"] == "succeeded"


async def test_a1_stream_made_by_post_is_canceled_after_its_grace(serve: Serve, gates: Gates) -> None:
    async with serve(SYNC, limits=Limits(stream_grace=0.5)) as server:
        async with stream(server, ["yield", 0], wait(gates)) as opened:
            await opened.until("output")
            prediction = server.newest()
        await eventually(lambda: not readers(prediction))
        left = time.time()
        await eventually(lambda: prediction.is_terminal)
        assert prediction.status is Status.CANCELED
        assert (prediction.completed_at or 0) - left > 0.3


async def test_a8_creator_that_leaves_does_not_cancel_what_others_read(server: LiveServer, gates: Gates) -> None:
    async with connection(server.url) as wire:
        body = msgspec.json.encode({"id": "a8", "input": {"script": [["yield", 0], wait(gates), ["yield", 1]]}})
        await wire.send(
            b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        await eventually(lambda: server.predictions.find("a8") is not None)
        async with stream(server, put="a8") as joined:
            await joined.until("output")
            wire.hang_up()
            async with connection(server.url) as later:  # the server has read the end of the first connection
                assert (await later.ask(b"GET /predictions/a8 HTTP/1.1\r\nhost: t\r\n\r\n")).status == 200
            gates["gate"].open()
            assert (await joined.rest())[-1][1]["status"] == "succeeded"


async def test_reader_leaves_a_prediction_that_was_not_made_for_it(server: LiveServer, gates: Gates) -> None:
    await server.start({"script": [["yield", 0], wait(gates), ["yield", 1]]}, id="d3")
    async with stream(server, put="d3") as opened:
        await opened.until("output")
    prediction = server.newest()
    await eventually(lambda: not readers(prediction))
    gates["gate"].open()
    await eventually(lambda: prediction.is_terminal)
    assert prediction.status is Status.SUCCEEDED


@pytest.mark.slow
@pytest.mark.own_wire(reason="events come faster than a host takes them, and a slow reader is sent away")
async def test_cancel_in_the_midst_of_a_burst(server: LiveServer) -> None:
    for turn in range(6):
        async with stream(server, ["many", 1_000_000, "x"], id=f"burst-{turn}") as opened:
            seen = await opened.until("output")
            await server.client.post(f"/predictions/burst-{turn}/cancel")
            seen += await opened.rest()
        assert seen[-1][1]["status"] == "canceled"
        assert outputs(seen) == seen[-1][1]["output"]  # all that was given has come, in order
    assert outputs(await events(server, ["many", 100, "x"])) == ["x"] * 100


async def test_reader_that_leaves_before_the_head(server: LiveServer, gates: Gates) -> None:
    for turn in range(5):
        stuck = await stuck_reader(server.url, request({"script": [wait(gates)]}, id=f"early-{turn}"))
        stuck.close()
        await eventually(lambda: server.newest().id == f"early-{turn}")  # noqa: B023 - called at once
        await eventually(lambda: server.newest().is_terminal)
        await idle(server)
