"""Connections to the other servers of a cluster, kept for the next request."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from geartrain.outbound.connection import PeerConnection, PeerError

_KEPT: Final = 64  # connections to one server that wait for a request
_CONNECT_WITHIN: Final = 2.0  # seconds


class PeerPool:
    """Opens connections and keeps those that are whole."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        """`tls`: of connections over TLS; None for plain ones."""
        self._tls = tls
        self._idle: dict[str, list[PeerConnection]] = {}
        self._open: dict[PeerConnection, str] = {}  # and the address of its server

    def kept(self, address: str) -> PeerConnection | None:
        """Return a connection that waits for a request, None if there is none. The server may be about to end it."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def connect(self, address: str) -> PeerConnection:
        """Return a new connection; raise `PeerError` if the server cannot be reached."""
        host, port = split_address(address)
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: PeerConnection(self._forget),
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=host if self._tls is not None else None,
                )
        except TimeoutError:
            raise PeerError(f"it has not been reached within {_CONNECT_WITHIN:g} s") from None
        except OSError as error:  # those of TLS are, too
            raise PeerError(str(error.strerror or error)) from error
        self._open[connection] = address
        return connection

    def give_back(self, connection: PeerConnection) -> None:
        """Keep a connection whose answer has been read, or end it."""
        address = self._open.get(connection)
        if address is None:
            return
        idle = self._idle.setdefault(address, [])
        if connection.is_reusable and len(idle) < _KEPT:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._open):
            connection.close()
        self._idle.clear()

    def _forget(self, connection: PeerConnection) -> None:
        address = self._open.pop(connection, "")
        idle = self._idle.get(address)
        if idle is None:
            return
        if connection in idle:
            idle.remove(connection)
        if not idle:
            del self._idle[address]


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`, or `[HOST]:PORT`; raise ValueError for anything else."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname or parts.port is None or parts.path or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{address!r} is no HOST:PORT")
    return parts.hostname, parts.port
