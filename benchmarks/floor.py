"""The least that usual parts do with a worker process: a bare ASGI app on uvicorn, and one hop to a child and back.

`python benchmarks/floor.py PORT SLOTS`. It parses and checks nothing; each request's body goes over a Unix socket
pair to the child, which sends a fixed answer. With one slot the child blocks on its socket, as a worker of a plain
`run()` does; with more it serves all of them from one event loop, as a worker of an async `run()` does. uvicorn is
one of the development packages; geartrain itself has an HTTP connection of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import uvicorn
import uvloop

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ANSWER = (
    b'{"id":"pred_00000000000000000000000000","input":{"s":"hello"},"logs":"","output":"hello","status":"succeeded"}'
)
READY = b'{"status":"READY"}'


def block(slot: socket.socket) -> None:
    """Answer one request at a time, until the parent is gone."""
    while slot.recv(65536):
        slot.sendall(ANSWER)


class Answerer(asyncio.Protocol):
    """Answers each request on the child's event loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _data: bytes) -> None:
        """Answer; requests are small, so one read is one request."""
        self._transport.write(ANSWER)

    def connection_lost(self, _error: Exception | None) -> None:
        """End with the parent."""
        os._exit(0)


async def multiplex(slots: list[socket.socket]) -> None:
    """Answer on every slot until the parent is gone."""
    loop = asyncio.get_running_loop()
    for slot in slots:
        await loop.create_unix_connection(Answerer, sock=slot)
    await asyncio.Event().wait()


class Slot(asyncio.Protocol):
    """The parent's end of a slot; hands itself back to `idle` when the answer is there."""

    def __init__(self, idle: list[Slot]) -> None:
        self._idle = idle
        self._answer: asyncio.Future[bytes]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Become usable."""
        self._transport = cast("asyncio.Transport", transport)
        self._idle.append(self)

    def data_received(self, data: bytes) -> None:
        """Hand the answer to the request that waits for it."""
        self._idle.append(self)
        self._answer.set_result(data)

    def ask(self, body: bytes) -> asyncio.Future[bytes]:
        """Send one request to the child."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(body)
        return self._answer


class App:
    """The ASGI application."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._idle: list[Slot] = []

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Answer any POST through the child, anything else with READY."""
        await self._connect()
        body = (await receive()).get("body", b"")
        if not body:
            await self._respond(send, 200, READY)
        elif not self._idle:
            await self._respond(send, 409, b"")
        else:
            await self._respond(send, 200, await self._idle.pop().ask(body))

    async def _connect(self) -> None:
        while self._sockets:
            slot = self._sockets.pop()
            await asyncio.get_running_loop().create_unix_connection(lambda: Slot(self._idle), sock=slot)

    @staticmethod
    async def _respond(send: Send, status: int, body: bytes) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Fork the child, then serve."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    pairs = [socket.socketpair() for _ in range(count)]
    if os.fork() == 0:
        for parent, _ in pairs:
            parent.close()
        slots = [child for _, child in pairs]
        if count == 1:
            block(slots[0])
        else:
            uvloop.run(multiplex(slots))
        os._exit(0)
    for _, child in pairs:
        child.close()
    uvicorn.run(
        App([parent for parent, _ in pairs]),
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="httptools",
        loop="uvloop",
        proxy_headers=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
