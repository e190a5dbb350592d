"""A server of HTTP: its sockets, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from geartrain.transport.http2.interface import ErrorCode
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import BodyMemory, Handler, Records, keep_nothing
from geartrain.transport.wire.http1 import READING_BODY, READING_HEAD, Connection, ConnectionState
from geartrain.transport.wire.limits import LAST_TIMEOUT, LINGER, WireError, WireLimits, check_body, slow_head_error
from geartrain.transport.wire.outgoing import has_sent_all, progress, reset

if TYPE_CHECKING:
    from geartrain.transport.wire.http2_connection import Http2Connection

Served: TypeAlias = "Connection | Http2Connection"

_REFUSED: Final = 256  # connections beyond the limit that are told so; further ones are closed without a word
logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # connections taken in one turn of the loop
_LAST: Final = 64  # turns of accepting at the end: more than wait in any backlog, so that clients cannot prolong it
_RETRY: Final = 0.25  # seconds after which a server without descriptors tries again
_NO_TIMEOUT: Final = 365 * 86_400.0  # seconds; None would stand for a default
_QUIET: Final = 60.0  # seconds between two log lines that say so
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORTEST: Final = 0.02  # seconds between two looks
_LONGEST: Final = 1.0
_LAST_LOOKS: Final = 1.5  # after which a connection without a request is ended, in a server that ends
_PUT_OFF: Final = 0.001  # seconds for which a look is put off that comes late


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


class Sweep:
    """Looks at all connections again and again.

    A limit is held to within two looks, which are a quarter of the shortest limit apart, at most a second.
    """

    def __init__(
        self, context: WireContext, connections: Iterable[Served], on_tick: Callable[[], None] = lambda: None
    ) -> None:
        """`on_tick` is called with each look, at least once a second."""
        self._context = context
        self._connections = connections
        self._on_tick = on_tick
        self._pause = _pause(context.limits)
        self._due = context.loop.time() + self._pause
        self._is_put_off = False
        self._timer = context.loop.call_later(self._pause, self._tick)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        context = self._context
        context.now = now = context.loop.time()
        self._is_put_off = not self._is_put_off and now - self._due > self._pause / 2
        if self._is_put_off:  # the loop was held up, and has not read yet what clients have sent meanwhile
            self._timer = context.loop.call_later(_PUT_OFF, self._tick)
            return
        context.answers.renew()
        self._due = now + self._pause
        self._timer = context.loop.call_later(self._pause, self._tick)  # first: no failure may end the looks
        for connection in tuple(self._connections):
            if isinstance(connection, Connection):
                _check(connection, context, now, pause=self._pause)
            else:
                connection.watch.check(now)
        self._on_tick()


def _pause(limits: WireLimits) -> float:
    times = (limits.head_timeout, limits.body_timeout, limits.idle_timeout, limits.send_timeout)
    shortest = min((each for each in times if each), default=4 * _LONGEST)
    return min(max(shortest / 4, _SHORTEST), _LONGEST)


def _check(connection: Connection, context: WireContext, now: float, *, pause: float) -> None:
    limits, state, age = context.limits, connection.state, now - connection.since
    if state is ConnectionState.IDLE:
        # The age is that of the last look but one at the least: what its client has sent has been read.
        if 0 < limits.idle_timeout < age or (context.is_closed and age > _LAST_LOOKS * pause):
            connection.close()
    elif state in READING_HEAD:
        if 0 < limits.head_timeout < age:
            connection.refuse(slow_head_error(limits))
    elif state in READING_BODY:
        check_body(connection, connection.reader, limits, now=now)
    elif state is ConnectionState.LINGER and age > LINGER:
        connection.close()
    elif (
        state is ConnectionState.CLOSING
        and age > LAST_TIMEOUT
        and has_sent_all(connection.transport)
        and not connection.outgoing.is_behind
    ):
        # Under TLS the client has been told of the end. It need not answer that, and one that is idle does not.
        connection.transport.abort()
    _check_sending(connection, limits, now)


def _check_sending(connection: Connection, limits: WireLimits, now: float) -> None:
    """Abort a connection whose client has taken nothing of what is unsent for too long."""
    outgoing = connection.outgoing
    outgoing.mark = progress(connection.transport, outgoing.mark, now, held=outgoing.size)
    if 0 < limits.send_timeout < now - outgoing.mark.since:
        reset(connection.transport)


class WireServer:
    """Serves a handler on sockets, on the running loop."""

    def __init__(
        self,
        handler: Handler,
        limits: WireLimits,
        *,
        records: Records = keep_nothing,
        on_tick: Callable[[], None] = lambda: None,
        memory: BodyMemory | None = None,
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
        memory = self._context.places.memory
        if memory is not None:
            memory.close()

    def _tick(self) -> None:
        memory = self._context.places.memory
        if memory is not None:
            memory.tidy()
        self._on_tick()
