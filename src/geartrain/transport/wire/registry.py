"""The open connections of a server, and whether there is room for one more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from geartrain.transport.http2.interface import ErrorCode
from geartrain.transport.wire.connection import Connection
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.heads import WireError

if TYPE_CHECKING:
    from geartrain.transport.wire.http2_connection import Http2Connection

Served: TypeAlias = "Connection | Http2Connection"

_REFUSED: Final = 256  # connections beyond the limit that are told so; further ones are closed without a word


class RefusedConnection(Connection):
    """A connection for which there is no room: its client is told so."""

    error: WireError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse whatever is asked."""
        super().connection_made(transport)
        self.refuse(self.error)


class Connections:
    """All connections that have been made, by the addresses of their clients."""

    def __init__(self, context: WireContext) -> None:
        self._context = context
        self._expected: dict[Connection, str] = {}  # connections whose transports are being made
        self._addresses: dict[Served, str] = {}
        self._clients: Counter[str] = Counter()
        self._empty = asyncio.Event()  # neither are there connections, nor are any expected
        self._empty.set()

    def __iter__(self) -> Iterator[Served]:
        return iter(tuple(self._addresses))

    def expect(self, address: str) -> Connection:
        """Return the connection of a client, whose transport will be made, or `drop` is called.

        Raises `ConnectionRefusedError` if there is not even place for a word.
        """
        connection = self._new(address)
        self._expected[connection] = address
        self._clients[address] += 1
        self._empty.clear()
        return connection

    def drop(self, connection: Connection) -> None:
        """Note that a connection which was expected could not be made.

        If the failure is noticed late, the connection was made for a moment, and has no other notice of its end.
        """
        if connection in self._expected:
            self._leave(self._expected.pop(connection))
        elif connection in self._addresses:
            connection.connection_lost(None)

    def _new(self, address: str) -> Connection:
        limits, count = self._context.limits, len(self._addresses) + len(self._expected)
        if 0 < limits.max_connections <= count:
            if count >= limits.max_connections + _REFUSED:
                raise ConnectionRefusedError
            limit = limits.max_connections
            return self._refused(f"The server has its limit of {limit} connections (--max-connections).")
        if 0 < limits.max_connections_per_client <= self._clients[address]:
            limit = limits.max_connections_per_client
            return self._refused(f"Your address has its limit of {limit} connections (--max-connections-per-client).")
        return Connection(self._context, self)

    def add(self, connection: Connection) -> None:
        """Note that a connection has been made."""
        self._addresses[connection] = self._expected.pop(connection)

    def switch(self, connection: Connection, data: bytes) -> None:
        """Go on over HTTP/2 with a connection whose client speaks it; `data` has come already."""
        from geartrain.transport.wire.http2_connection import Http2Connection  # late: most clients speak HTTP/1.1

        transport = connection.transport
        successor = Http2Connection(self._context, transport, self.remove)
        self._addresses[successor] = self._addresses.pop(connection)
        transport.set_protocol(successor)
        if isinstance(connection, RefusedConnection):
            successor.close(ErrorCode.ENHANCE_YOUR_CALM, str(connection.error))
        else:
            successor.data_received(data)

    def remove(self, connection: Served) -> None:
        """Note that a connection is gone."""
        self._leave(self._addresses.pop(connection))

    def _leave(self, address: str) -> None:
        self._clients[address] -= 1
        if not self._clients[address]:
            del self._clients[address]
            if not self._clients:
                self._empty.set()

    async def drained(self) -> None:
        """Wait until there is none."""
        await self._empty.wait()

    def _refused(self, text: str) -> Connection:
        connection = RefusedConnection(self._context, self)
        connection.error = WireError(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return connection
