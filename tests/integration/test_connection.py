"""The express lane and the ASGI road give the same answers, in order, on one connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from geartrain.transport.http.connection import IdleSweep
from geartrain.transport.http.lanes import EXPRESS_LIMIT
from tests.integration.conftest import LiveServer, Serve

ECHO = """
    class Runner:
        def run(self, s: str = "") -> str:
            return s
"""


def post(text: str, *, version: str = "1.1", more: str = "", size: int = 0) -> bytes:
    body = json.dumps({"input": {"s": text + "x" * size}})
    head = f"POST /predictions HTTP/{version}\r\nHost: h\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


HEALTH = b"GET /health-check HTTP/1.1\r\nHost: h\r\n\r\n"


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


async def exchange(server: LiveServer, *requests: bytes) -> list[tuple[int, dict[str, str], Any]]:
    """Send all requests in one piece on one connection; return their answers."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"".join(requests))
        async with asyncio.timeout(10):
            return [await read_answer(reader) for _ in requests]
    finally:
        writer.close()
        await writer.wait_closed()


async def test_pipelined_requests_of_both_kinds_are_answered_in_order(serve: Serve) -> None:
    async with serve(ECHO) as server:
        respond = post("async", more="Prefer: wait=5\r\n")
        answers = await exchange(server, post("a"), HEALTH, post("b"), respond, HEALTH, post("c"))
        outputs = [body.get("output", body["status"]) for _, _, body in answers]
        assert outputs == ["a", "READY", "b", "async", "READY", "c"]
        assert {status for status, _, _ in answers} == {200}


async def test_a_body_that_comes_in_pieces(serve: Serve) -> None:
    async with serve(ECHO) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        request = post("in pieces")
        for index in range(len(request)):
            writer.write(request[index : index + 1])
            await writer.drain()
        assert (await read_answer(reader))[2]["output"] == "in pieces"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("size", [EXPRESS_LIMIT - 100, EXPRESS_LIMIT + 100, 3_000_000])
async def test_bodies_around_the_limit_of_the_lane(serve: Serve, size: int) -> None:
    async with serve(ECHO) as server:
        status, _, body = (await exchange(server, post("", size=size)))[0]
        assert (status, len(body["output"])) == (200, size)


@pytest.mark.parametrize(("version", "more"), [("1.1", "Connection: close\r\n"), ("1.0", "")])
async def test_a_client_that_wants_the_connection_closed(serve: Serve, version: str, more: str) -> None:
    async with serve(ECHO) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post("last", version=version, more=more))
        _, headers, body = await read_answer(reader)
        assert (body["output"], headers["connection"]) == ("last", "close")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_an_error_on_the_lane_leaves_the_connection_usable(serve: Serve) -> None:
    async with serve(ECHO) as server:
        broken = (
            b"POST /predictions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{bad"
        )
        answers = await exchange(server, broken, post("fine"))
        assert [status for status, _, _ in answers] == [400, 200]


class _Connection:
    """Stands for a connection."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def timeout_keep_alive_handler(self) -> None:
        self.closed.set_result(None)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    sweep = IdleSweep(0.02)
    idle, busy = _Connection(), _Connection()
    sweep.add(idle)  # type: ignore[arg-type]
    sweep.add(busy)  # type: ignore[arg-type]
    sweep.remove(busy)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await idle.closed
    assert not busy.closed.done()
