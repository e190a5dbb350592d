"""Clients that leave, at any moment: nothing is started for them, nothing is kept, and no line of the log tells."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import pytest

from tests.support.attacks import (
    ECHO,
    HEALTH,
    MANY,
    STREAMING,
    Peer,
    body,
    framed,
    handled,
    in_chunks,
    peer,
    post,
    request,
    runs,
)
from tests.support.servers import LiveServer, Serve, eventually

STREAM = request("POST", "/predictions", "Accept: text/event-stream", content=body("s", pieces=3, size=1000))
CONTENT = body("in chunks")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """All that is logged above debug, by whomever."""
    caplog.set_level(logging.INFO)
    return caplog.records


async def leave(client: Peer, how: str) -> None:
    if how == "reset":
        client.abort()
    elif how == "half":
        client.writer.write_eof()
    else:
        client.writer.close()


async def settled(server: LiveServer) -> None:
    await eventually(lambda: all(each.is_terminal for each in server._admitted.values()))
    await eventually(lambda: server.workers.permits.idle == server.workers.permits.size)
    await handled(server.url)


@pytest.mark.parametrize("how", ["reset", "close", "half"])
async def test_a10_leaving_at_every_byte_of_a_request(serve: Serve, told: list[logging.LogRecord], how: str) -> None:
    data = in_chunks(b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(CONTENT), CONTENT))
    async with serve(ECHO, cog_yaml=MANY) as server:
        told.clear()
        for cut in range(0, len(data) + 1, 3):
            async with peer(server.url) as client:
                await client.send(data[:cut])
                if cut % 2:
                    await handled(server.url)
                await leave(client, how)
        await settled(server)
        assert [record.getMessage() for record in told] == []


async def test_a10_ordinary_departures(serve: Serve, told: list[logging.LogRecord]) -> None:
    """Requests of all kinds, one or several, whole or cut; answers read or not, or a bit of them."""
    chance = random.Random(10)  # noqa: S311
    kinds = [
        post("x"), post("large", size=300_000), HEALTH, request("GET", "/nothing"), request("GET", "/openapi.json"),
        in_chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)), b"garbage\r\n\r\n",
        framed(b"Content-Length: 99999999999\r\n", b"x" * 1000), post("expected", "Expect: 100-continue"),
        framed(b"Content-Length: 4\r\n", b"{bad"),
    ]  # fmt: skip

    async def client(server: LiveServer) -> None:
        data = b"".join(chance.choices(kinds, k=chance.randint(1, 4)))
        async with peer(server.url, small=chance.random() < 0.5) as each:
            await each.send(data[: chance.randint(1, len(data))] if chance.random() < 0.3 else data)
            if chance.random() < 0.4:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(each.reader.read(chance.choice((1, 100, 100_000))), 0.3)
            await leave(each, chance.choice(("reset", "close")))

    async with serve(ECHO, cog_yaml=MANY) as server:
        told.clear()
        for _ in range(10):
            await asyncio.gather(*(client(server) for _ in range(16)))
        await settled(server)
        assert [record.getMessage() for record in told] == []
        assert (await server.predict({"s": "still here"}))["output"] == "still here"


async def test_a10_leaving_in_the_middle_of_a_stream(serve: Serve, told: list[logging.LogRecord]) -> None:
    endless = request("POST", "/predictions", "Accept: text/event-stream", content=body("s", pieces=10**9, size=1000))
    async with serve(STREAMING, cog_yaml=MANY) as server:
        told.clear()
        for number in range(40):
            async with peer(server.url) as client:
                await client.send(endless)
                await client.begins(1 + 500 * (number % 7))
                await leave(client, ("reset", "close")[number % 2])
        await settled(server)
        assert {each.status for each in server._admitted.values()} == {"canceled"}
        assert [record.getMessage() for record in told] == []


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a10_nothing_is_started_for_a_client_that_has_left(serve: Serve, how: str) -> None:
    """Three requests, one behind the other; the client leaves while the first runs."""
    async with serve(ECHO) as server:
        async with peer(server.url) as client:
            await client.send(post("first", gate="go") + post("second") + STREAM + post("third"))
            await eventually(lambda: len(runs(server)) == 1)
            await handled(server.url)
            await leave(client, how)
        server.open_gate()
        await settled(server)
        await handled(server.url)
        assert len(runs(server)) == 1
        assert (await server.predict({"s": "next"}))["output"] == "next"


async def test_a10_a_client_that_leaves_cancels_what_runs_for_it(serve: Serve, told: list[logging.LogRecord]) -> None:
    async with serve(ECHO, cog_yaml=MANY) as server:
        told.clear()
        async with peer(server.url) as client:
            await client.send(post("first", gate="never"))
            await eventually(lambda: len(runs(server)) == 1)
        await settled(server)
        assert server.newest().status == "canceled"
        assert [record.getMessage() for record in told] == []


async def test_errors_of_clients_are_not_logged(serve: Serve, told: list[logging.LogRecord]) -> None:
    """Whatever they send, there is no line above `info`."""
    chance = random.Random(11)  # noqa: S311
    async with serve(ECHO, cog_yaml=MANY) as server:
        told.clear()
        for _ in range(100):
            data = bytearray(post() + HEALTH)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            async with peer(server.url) as client:
                await client.send(bytes(data))
                await handled(server.url)
        await settled(server)
        assert [record.getMessage() for record in told if record.levelno > logging.INFO] == []
