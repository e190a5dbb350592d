"""A server of HTTP: its sockets, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from geartrain.transport.wire.acceptor import Acceptor
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Handler, Records, keep_nothing
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.registry import Connections
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
    ) -> None:
        """`on_tick` is called at least once a second while the server runs."""
        self._context = WireContext(handler, limits, asyncio.get_running_loop(), records=records)
        self._connections = Connections(self._context)
        self._acceptors: list[Acceptor] = []
        self._sweep = Sweep(self._context, self._connections, on_tick)

    def listen(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a listening socket, which is the server's from now on."""
        timeout = self._context.limits.head_timeout
        self._acceptors.append(Acceptor(listener, self._connections, tls=tls, handshake_timeout=timeout))

    def forget_heads(self) -> None:
        """Show every head to the handler again: it may decide otherwise now."""
        self._context.heads.clear()

    def close(self) -> None:
        """Accept no connection and no request any more. Answers that are owed are still given."""
        self._context.is_draining = True
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()
        for connection in self._connections:
            connection.drain()

    async def drained(self) -> None:
        """Wait until every connection is gone."""
        await self._connections.drained()

    def disconnect(self) -> None:
        """End all connections at once."""
        for connection in self._connections:
            connection.transport.abort()

    def stop(self) -> None:
        """End what is left."""
        self.close()
        self.disconnect()
        self._sweep.stop()
