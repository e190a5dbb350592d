"""The direct path and ASGI give the same answers, in order, on one connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from geartrain.transport.http.connection import Connection, IdleSweep
from geartrain.transport.http.handlers import DIRECT_LIMIT
from geartrain.transport.http.head_cache import HeadCache, KnownHead
from tests.support.servers import LiveServer, Serve
from tests.support.wire import connection

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


@pytest.mark.parametrize("size", [DIRECT_LIMIT - 100, DIRECT_LIMIT + 100, 3_000_000])
async def test_bodies_around_the_limit_of_the_direct_path(serve: Serve, size: int) -> None:
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


async def test_an_error_on_the_direct_path_leaves_the_connection_usable(serve: Serve) -> None:
    async with serve(ECHO) as server:
        broken = (
            b"POST /predictions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{bad"
        )
        answers = await exchange(server, broken, post("fine"))
        assert [status for status, _, _ in answers] == [400, 200]


async def test_heads_that_come_again_are_known_and_all_else_is_parsed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever follows a known head on its connection: another body, another length, half of one, two, or nonsense."""
    served: list[bytes] = []
    original = Connection._serve_known

    def note(self: Connection, known: KnownHead, body: bytes) -> None:
        served.append(body)
        original(self, known, body)

    monkeypatch.setattr(Connection, "_serve_known", note)
    async with serve(ECHO) as server, connection(server.url) as line:

        async def ask(*pieces: bytes) -> Any:
            for piece in pieces[:-1]:
                await line.send(piece)
                await asyncio.sleep(0)
            return (await line.ask(pieces[-1])).json()["output"]

        assert await ask(post("one")) == "one"
        assert served == []
        assert await ask(post("two")) == "two"
        assert len(served) == 1
        assert await ask(post("longer")) == "longer"
        assert await ask(post("other")) == "other"
        assert await ask(post("six")) == "six"
        assert len(served) == 2
        request = post("cut")
        assert await ask(request[:-5], request[-5:]) == "cut"
        assert await ask(post("a") + post("b")) == "a"
        assert (await line.answer()).json()["output"] == "b"
        served.clear()
        assert (await line.ask(HEALTH)).json()["status"] == "READY"
        assert await ask(post("end")) == "end"
        assert len(served) == 1
        assert (await line.ask(post("x").replace(b'{"input', b"{!input"))).status == 400
        await line.send(post("abc")[:60] + b"\0\r\n\r\n")
        assert (await line.answer()).status == 400
        assert await line.at_end()
        assert len(served) == 1


async def test_a_known_head_of_a_connection_that_closes_is_none(serve: Serve) -> None:
    async with serve(ECHO) as server:
        for _ in range(2):
            async with connection(server.url) as line:
                answer = await line.ask(post("last", more="Connection: close\r\n"))
                assert answer.headers["connection"] == "close"
                assert await line.at_end()


async def test_a_known_head_finds_the_model_of_now(serve: Serve) -> None:
    """Also one that is busy, and one that is gone: the head is known, not the answer."""
    async with serve(ECHO) as server, connection(server.url) as line:
        for _ in range(2):
            assert (await line.ask(post("one"))).status == 200
        permit = server.workers.permits.acquire()
        assert permit is not None
        assert (await line.ask(post("two"))).status == 409
        server.workers.permits.release(permit)
        server.deployment.executions.is_closed = True
        assert (await line.ask(post("two"))).status == 503


def test_heads_are_kept_within_bounds() -> None:
    heads = HeadCache()
    new_exchange: Any = object()
    head = b"POST /%d HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
    for number in range(2000):
        heads.learn(head % number + b"{}", KnownHead(new_exchange, 2))
    assert len(heads._known) <= 512
    assert heads.find(head % 1999 + b"[]") == (KnownHead(new_exchange, 2), b"[]")
    assert heads.find(head % 1999 + b"[] ") is None
    assert heads.find(head % 1999) is None
    assert heads.find(b"") is None
    heads.learn(b"POST / HTTP/1.1\r\nx: " + b"y" * 3000 + b"\r\n\r\n{}", KnownHead(new_exchange, 2))
    assert max(map(len, heads._known)) < 2049
    heads.learn(b"POST /two HTTP/1.1\r\n\r\n{}POST", KnownHead(new_exchange, 2))
    assert heads.find(b"POST /two HTTP/1.1\r\n\r\n{}") is None


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
