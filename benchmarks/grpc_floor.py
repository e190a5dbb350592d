"""What gRPC costs on geartrain's own wire: a server that gives back the bytes of any call, unread.

It has neither a model nor a worker, so no server of a model that stands on this wire can be faster. Called with the
ports of HTTP, where it says that it is there, and of gRPC.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from http import HTTPStatus

import uvloop

from geartrain.transport.wire.exchange import Accepted, Answer, Body, Exchange, Head, Responder
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import WireServer

_CONTENT_TYPE = ((b"content-type", b"application/grpc"),)
_DONE = ((b"grpc-status", b"0"),)
_LARGEST = 2**30


class _Echo:
    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def receive(self, body: Body) -> None:
        self._responder.respond(Answer(HTTPStatus.OK, (body,), _CONTENT_TYPE, _DONE))

    def abandon(self) -> None:
        """Nothing runs."""


def _new_exchange(responder: Responder) -> Exchange:
    return _Echo(responder)


def _refuse(_size: int) -> Answer:
    return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class _Everything:
    def begin(self, head: Head) -> Accepted | Answer:
        if head.has_trailers:
            return Accepted(_new_exchange, _LARGEST, _refuse)
        return Answer(HTTPStatus.OK)


async def _serve(*ports: int) -> None:
    server = WireServer(_Everything(), WireLimits())
    for port in ports:
        server.listen(socket.create_server(("127.0.0.1", port), backlog=2048))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
