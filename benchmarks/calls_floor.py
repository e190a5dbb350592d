"""The least that a call of a model by a model does here: two child processes behind geartrain's own wire, and no work.

`python benchmarks/calls_floor.py PORT`. `/v2/models/echo/infer` sends the body to one child over a Unix socket pair,
which gives it back. `/v2/models/caller/infer` sends it to the other one, which has the parent pass it on to the first,
and gives back what comes of that. Nothing is parsed, checked, counted or converted: each message is one read and one
write. For one client at a time; all of them sleep until something comes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import uvloop

from geartrain.transport.wire.exchange import Accepted, Answer, Body, Exchange, Head, Responder
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import WireServer

_CHUNK = 65_536
_LARGEST = 16_384  # bytes: each message is one read


def echo(sock: socket.socket) -> None:
    """Give back what comes, until the parent is gone."""
    while data := sock.recv(_CHUNK):
        sock.sendall(data)


def call(sock: socket.socket) -> None:
    """Pass on what comes, and give back what is answered, until the parent is gone."""
    while data := sock.recv(_CHUNK):
        sock.sendall(data)  # the call
        sock.sendall(sock.recv(_CHUNK))


def start(child: Callable[[socket.socket], None]) -> socket.socket:
    """Start a child, and return the parent's end of its socket."""
    ours, its = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        child(its)
        os._exit(0)
    its.close()
    return ours


class Child(asyncio.Protocol):
    """The parent's end: gives what comes to the function that waits for it."""

    def __init__(self) -> None:
        self._then: Callable[[bytes], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Become usable."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass on an answer, or a call."""
        self._then(data)

    def ask(self, data: bytes, then: Callable[[bytes], None]) -> None:
        """Send something, and call `then` with what comes next."""
        self._then = then
        self._transport.write(data)


class _Single:
    def __init__(self, responder: Responder, child: Child) -> None:
        self._responder = responder
        self._child = child

    def receive(self, body: Body) -> None:
        self._child.ask(bytes(body), self._respond)

    def abandon(self) -> None:
        """Nothing can be stopped."""

    def _respond(self, data: bytes) -> None:
        self._responder.respond(Answer(HTTPStatus.OK, (data,)))


class _Nested(_Single):
    def __init__(self, responder: Responder, child: Child, callee: Child) -> None:
        super().__init__(responder, child)
        self._callee = callee

    def receive(self, body: Body) -> None:
        self._child.ask(bytes(body), self._call)

    def _call(self, data: bytes) -> None:
        self._callee.ask(data, self._answer)

    def _answer(self, data: bytes) -> None:
        self._child.ask(data, self._respond)


class _Models:
    def __init__(self, caller: Child, callee: Child) -> None:
        self._caller = caller
        self._callee = callee

    def begin(self, head: Head) -> Accepted | Answer:
        if not head.length:
            return Answer(HTTPStatus.OK)
        new = self._nested if b"/caller/" in head.path else self._single
        return Accepted(new, _LARGEST, lambda _size: Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE))

    def _single(self, responder: Responder) -> Exchange:
        return _Single(responder, self._callee)

    def _nested(self, responder: Responder) -> Exchange:
        return _Nested(responder, self._caller, self._callee)


async def _serve(port: int, sockets: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    caller, callee = [(await loop.create_unix_connection(Child, sock=sock))[1] for sock in sockets]
    server = WireServer(_Models(caller, callee), WireLimits())
    server.listen(socket.create_server(("127.0.0.1", port), backlog=2048))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), [start(call), start(echo)]))
