"""A server of HTTP: its sockets, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable

from geartrain.transport.wire.acceptor import Acceptor
from geartrain.transport.wire.connection import Connection
from geartrain.transport.wire.context import NO_MEMORY, WireContext
from geartrain.transport.wire.exchange import BodyMemory, Handler, Records, keep_nothing
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.registry import Connections, Served
from geartrain.transport.wire.timeouts import Sweep


class WireServer:
    """Serves a handler on sockets, on the running loop."""

    def __init__(
        self,
        handler: Handler,
        limits: WireLimits,
        *,
        records: Records = keep_nothing,
        on_tick: Callable[[], None] = lambda: None,
        memory: BodyMemory = NO_MEMORY,
    ) -> None:
        """`on_tick` is called at least once a second while the server runs.

        `memory` is for large bodies, and is closed with the server.
        """
        self._context = WireContext(handler, limits, asyncio.get_running_loop(), records=records, memory=memory)
        self._connections = Connections(self._context)
        self._on_tick = on_tick
        self._acceptors: list[Acceptor] = []
        self._sweep = Sweep(self._context, self._connections, self._tick)

    def listen(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a listening socket, which is the server's from now on."""
        timeout = self._context.limits.head_timeout
        self._acceptors.append(Acceptor(listener, self._connections, tls=tls, handshake_timeout=timeout))

    def forget_heads(self) -> None:
        """Show every head to the handler again: it may decide otherwise now."""
        self._context.heads.clear()

    def leave(self) -> None:
        """Serve on, and let clients go elsewhere: every connection ends with its next answer, new ones too.

        Over HTTP/1.1 the answer says so. Over HTTP/2 the client is told at once, and new connections with the next look
        of the sweep; a request that it sends before it has heard of that is answered.
        """
        self._context.is_draining = True
        for connection in self._connections:
            if not isinstance(connection, Connection):
                connection.drain()

    def close(self) -> None:
        """Accept no connection any more, and no request on those that are there.

        Requests that have come are answered, be they read already or not.
        """
        context = self._context
        if context.is_closed:
            return
        context.is_closed = context.is_draining = True
        context.limits = context.limits.at_the_end()
        present = tuple(self._connections)
        for acceptor in self._acceptors:
            acceptor.close()
        # The first turn of the loop ends with reading what has come, so that the second knows who is idle.
        context.loop.call_soon(context.loop.call_soon, self._drain, present)

    def _drain(self, connections: Iterable[Served]) -> None:
        for connection in connections:
            connection.drain()

    async def drained(self) -> None:
        """Wait until every connection is gone."""
        await self._connections.drained()

    def disconnect(self) -> None:
        """End all connections at once. To be called after `close`."""
        for acceptor in self._acceptors:
            acceptor.stop()
        for connection in self._connections:
            connection.transport.abort()

    def stop(self) -> None:
        """End what is left."""
        self.close()
        self.disconnect()
        self._sweep.stop()
        self._context.places.memory.close()

    def _tick(self) -> None:
        self._context.places.memory.tidy()
        self._on_tick()
