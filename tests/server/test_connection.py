"""Requests of every kind on one connection to a real server: each has its answer, in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from geartrain.transport.routing import Router
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Accepted, AcceptedInParts, Answer, Head
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
        async with asyncio.timeout(40):
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
        async with asyncio.timeout(40):
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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Head]:
    """The heads that have been shown to the routes; those that are known are not."""
    heads: list[Head] = []
    begin = Router.begin

    def note(self: Router, head: Head) -> Accepted | AcceptedInParts | Answer:
        heads.append(head)
        return begin(self, head)

    monkeypatch.setattr(Router, "begin", note)
    return heads


async def test_heads_that_come_again_are_known_and_all_else_is_parsed(serve: Serve, shown: list[Head]) -> None:
    """Whatever follows a known head on its connection: another body, another length, half of one, two, or nonsense."""
    async with serve(ECHO) as server, connection(server.url) as line:

        async def ask(*pieces: bytes) -> Any:
            for piece in pieces[:-1]:
                await line.send(piece)
            return (await line.ask(pieces[-1])).json()["output"]

        assert await ask(post("one")) == "one"
        assert len(shown) == 1
        assert await ask(post("two")) == "two"
        assert len(shown) == 1
        assert await ask(post("longer")) == "longer"
        assert await ask(post("other")) == "other"
        assert len(shown) == 3
        assert await ask(post("six")) == "six"
        request = post("cut")
        for cut in (1, 30, len(request) - 5):
            assert await ask(request[:cut], request[cut:]) == "cut"
        assert await ask(post("abc") + post("def")) == "abc"
        assert (await line.answer()).json()["output"] == "def"
        shown.clear()
        assert (await line.ask(HEALTH)).json()["status"] == "READY"
        assert await ask(post("end")) == "end"
        assert (await line.ask(post("abc").replace(b'{"input', b"{!input"))).status == 400
        assert [head.path for head in shown] == [b"/health-check"]
        await line.send(post("abc")[:60] + b"\0\r\n\r\n")
        assert (await line.answer()).status == 400
        assert await line.at_end()


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
