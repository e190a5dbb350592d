"""Takes new connections from a listening socket, within the limits."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from typing import Final

from geartrain.transport.wire.connection import Connection
from geartrain.transport.wire.limits import LAST_TIMEOUT
from geartrain.transport.wire.registry import Connections

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # connections taken in one turn of the loop
_LAST: Final = 64  # turns of accepting at the end: more than wait in any backlog, so that clients cannot prolong it
_RETRY: Final = 0.25  # seconds after which a server without descriptors tries again
_NO_TIMEOUT: Final = 365 * 86_400.0  # seconds; None would stand for a default
_QUIET: Final = 60.0  # seconds between two log lines that say so
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts on one socket while it is open."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_timeout: float = 10.0,
    ) -> None:
        """`tls`: the context of new connections, None for plain ones. `handshake_timeout` in seconds, 0 for none."""
        self._listener = listener
        self._connections = connections
        self._tls = tls
        self._handshake_timeout = handshake_timeout or _NO_TIMEOUT
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._told_at = -_QUIET
        self._listener.setblocking(False)
        self._retry: asyncio.Handle = self._loop.call_soon(self._open)

    def close(self) -> None:
        """Accept the connections that wait, then no more, and close the socket.

        To its client a waiting connection is open, and the system would reset it. TLS handshakes have `LAST_TIMEOUT` to
        end.
        """
        for _ in range(_LAST):
            if not self._accept():
                break
        self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._retry = self._loop.call_later(LAST_TIMEOUT, self.stop)

    def stop(self) -> None:
        """Give up the connections that are being made. To be called after `close`."""
        self._retry.cancel()
        if self._tls is not None:  # a plain connection is made at once, and ended by who is told of it
            for task in self._connecting:
                task.cancel()

    def _open(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> bool:
        """Accept some connections; return whether there may be more."""
        for _ in range(_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    logger.exception("a connection could not be accepted")
                self._rest(error)
                return False
            try:
                connection = self._connections.expect(address[0] if isinstance(address, tuple) else "")
            except ConnectionRefusedError:
                client.close()
                continue
            task = self._loop.create_task(self._connect(client, connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return True

    def _rest(self, error: OSError) -> None:
        """Accept nothing for a moment: clients wait in the backlog meanwhile."""
        now = self._loop.time()
        if now - self._told_at >= _QUIET:
            self._told_at = now
            logger.warning("new connections wait: %s. Raise the limit of open files (ulimit -n).", error.strerror)
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(_RETRY, self._open)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        try:
            client.setblocking(False)
            if client.family in {socket.AF_INET, socket.AF_INET6}:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: connection, client)
            else:
                timeout = self._handshake_timeout
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=self._tls,
                    ssl_handshake_timeout=timeout,
                    ssl_shutdown_timeout=timeout,
                )
        except (OSError, ssl.SSLError) as error:  # the client has left, or speaks no TLS that is accepted
            logger.debug("a connection could not be made: %s", error)
            self._drop(client, connection)
        except asyncio.CancelledError:
            self._drop(client, connection)
            raise

    def _drop(self, client: socket.socket, connection: Connection) -> None:
        self._connections.drop(connection)
        client.close()
