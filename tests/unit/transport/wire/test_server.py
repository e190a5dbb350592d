"""A server on a real socket: how it begins and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest

from geartrain.transport.wire.http1 import ConnectionState
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import WireServer
from tests.support.servers import PATIENCE, eventually
from tests.unit.transport.wire.parts import NotedExchange, NotingHandler, get, post, said


class Announced(NotingHandler):
    """Tells when a request runs."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    def _new(self, kind: Any, responder: Any) -> NotedExchange:
        self.began.set()
        return super()._new(kind, responder)


class Served:
    """A server and its address."""

    def __init__(self, limits: WireLimits | None = None) -> None:
        self.handler = Announced()
        self.server = WireServer(self.handler, limits or WireLimits())
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.server.listen(listener)

        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self._writers.append(writer)
        return reader, writer

    async def connection_in(self, state: ConnectionState) -> None:
        """Wait until a connection is in this state."""
        await eventually(lambda: any(each.state is state for each in self.server._connections))

    async def stop(self) -> None:
        self.server.stop()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self.server.drained()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.stop()


async def test_the_end_waits_for_the_answers_that_are_owed(served: Served) -> None:
    busy, busy_writer = await served.connect()
    idle, idle_writer = await served.connect()
    busy_writer.write(post("/run", b"1"))
    idle_writer.write(get("/"))
    await idle.readuntil(b'"now"')
    await served.handler.began.wait()
    served.server.close()
    assert await idle.read() == b"", "nothing is owed to it"
    with pytest.raises(ConnectionRefusedError):
        await served.connect()
    draining = asyncio.ensure_future(served.server.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    served.handler.exchanges[0].responder.respond(said("owed", HTTPStatus.OK))
    answer = await busy.read()
    assert answer.endswith(b'"owed"')
    assert b"connection: close" in answer
    await draining


async def test_clients_of_a_server_that_is_about_to_end_are_sent_elsewhere(served: Served) -> None:
    busy, busy_writer = await served.connect()
    busy_writer.write(post("/run", b"1"))
    idle, idle_writer = await served.connect()
    await served.handler.began.wait()
    served.server.leave()
    served.handler.exchanges[0].responder.respond(said("owed", HTTPStatus.OK))
    idle_writer.write(get("/"))
    late, late_writer = await served.connect()
    late_writer.write(get("/"))
    for reader in (busy, idle, late):
        answer = await reader.read()  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer


async def test_requests_that_have_been_sent_before_the_end_are_answered(served: Served) -> None:
    """The server has read none of them, and has not even accepted the last connection."""
    known, writer = await served.connect()
    writer.write(get("/"))
    await known.readuntil(b'"now"')
    with socket.create_connection(served.address) as late:
        writer.write(get("/"))
        late.sendall(get("/"))
        served.server.close()
        assert b'"now"' in await known.read()
        late.setblocking(False)
        answer = b""
        while more := await asyncio.get_running_loop().sock_recv(late, 65_536):
            answer += more
        assert b'"now"' in answer
        await served.server.drained()


async def test_a_request_whose_body_is_still_coming_is_answered(served: Served) -> None:
    reader, writer = await served.connect()
    request = post("/echo", b"123")
    writer.write(request[:-1])
    await served.connection_in(ConnectionState.BODY)
    served.server.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writer.write(request[-1:])
    answer = await reader.read()
    assert answer.endswith(b"123")
    assert b"connection: close" in answer
    await served.server.drained()


async def test_clients_that_send_nothing_do_not_hold_up_the_end(served: Served) -> None:
    half, writer = await served.connect()
    writer.write(post("/echo", b"123")[:-1])
    await served.connection_in(ConnectionState.BODY)
    with socket.create_connection(served.address):  # nothing comes of it, and it is accepted at the end
        served.server.close()
        async with asyncio.timeout(PATIENCE):
            assert b"408" in await half.read()
            writer.close()
            await served.server.drained()


async def test_disconnect_abandons_what_runs(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(post("/run", b"1"))
    await served.handler.began.wait()
    served.server.close()
    served.server.disconnect()
    await served.server.drained()
    assert served.handler.exchanges[0].abandoned == 1
    assert await reader.read() == b""


async def test_heads_are_forgotten(served: Served) -> None:
    reader, writer = await served.connect()
    shown = []
    for _ in range(2):
        for _ in range(2):
            writer.write(post("/echo", b"1"))
            await reader.readuntil(b"\r\n\r\n1")
            shown.append(len(served.handler.heads))
        served.server.forget_heads()
    assert shown == [1, 1, 2, 2]


async def test_the_limit_of_one_client_holds_for_a_crowd() -> None:
    async with asyncio.timeout(40):
        served = Served(WireLimits(max_connections_per_client=3))
        clients = await asyncio.gather(*(served.connect() for _ in range(10)))
        for _, writer in clients:
            writer.write(get("/", "connection: close"))
        answers = await asyncio.gather(*(reader.read() for reader, _ in clients))
        statuses = sorted(answer.split(b" ", 2)[1] for answer in answers)
        assert statuses == [b"200"] * 3 + [b"503"] * 7
        await served.stop()
