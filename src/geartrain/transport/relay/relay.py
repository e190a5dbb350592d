"""Asks another server of the cluster for a prediction, in place of a client, over connections that are kept.

A request that leaves is our own, with the few header fields of the client's that matter and without its key: this
server has checked that. It has no body. The other server answers for a prediction that it runs, and with
`NOT_HERE` for any other: so no request goes further than one hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Histogram
from geartrain.domain.principal import ANYONE, Principal
from geartrain.outbound.connection import PeerConnection, PeerError
from geartrain.transport.relay.token import (
    KEY_FIELD,
    PRINCIPAL_FIELD,
    TOKEN_FIELD,
    ClusterToken,
    write_principal,
)
from geartrain.transport.wire.exchange import Answer, Fields, Head

_KEPT: Final = 64  # connections to one server that wait for a request
_CONNECT_WITHIN: Final = 2.0  # seconds
NOT_HERE: Final = HTTPStatus.MISDIRECTED_REQUEST
"""The status of the answer that a prediction does not run in the server that was asked."""

MOST_BYTES: Final = 256 * 1024**2  # of an answer that is relayed as a whole
MOST_WAITING: Final = 256
"""Requests to one server that wait for the head of an answer; one that hangs takes no more of the descriptors."""

_DROPPED: Final = 64 * 1024  # bytes of an answer that does not matter; a longer one ends its connection
_SLOWEST: Final = 64 * 1024  # bytes in a second, of an answer that is relayed as a whole
_HEAD_WITHIN: Final = 10.0  # seconds: nothing that is relayed has to wait for a run
_PIECE_WITHIN: Final = 60.0  # seconds: a stream without events is kept alive more often
_SENT: Final = frozenset({b"accept", b"prefer", b"x-request-id", b"traceparent", b"tracestate"})
_RETURNED: Final = frozenset({b"content-type", b"cache-control", b"retry-after", b"x-queue-position"})


class RelayOutcome(StrEnum):
    """Outcome of a request that was handed over. Each has exactly one."""

    ANSWERED = "answered"  # the answer has been read to its end, whatever its status
    NOT_HERE = "not_here"  # the prediction does not run in the server that was asked
    UNREACHABLE = "unreachable"  # no answer has begun
    INCOMPLETE = "incomplete"  # the answer broke off, or was too large to be relayed
    LEFT = "left"  # the client had disconnected before the end of the answer


class RelayCounts:
    """Counts by outcome, and the seconds from the beginning of a request to the head of its answer, if one came."""

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BUCKETS.seconds) -> None:
        """`bounds`: the upper bounds of the buckets, in seconds."""
        self.outcomes: dict[str, int] = dict.fromkeys(map(str, RelayOutcome), 0)
        self.seconds = Histogram(bounds)

    def end(self, outcome: RelayOutcome) -> None:
        """Count a request that is over."""
        self.outcomes[outcome] += 1


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


class RelayedRequest(msgspec.Struct, frozen=True):
    """A request to be handed over. Attributes as of `Head`; `key` is the name of the client's key."""

    method: str
    path: bytes
    headers: Fields
    key: str = ""
    principal: Principal = ANYONE

    @classmethod
    def of(cls, head: Head, ids: Iterable[tuple[str, str]] = ()) -> Self:
        """Create the relayed form of a client's request; `ids` replace those that it has sent."""
        own = tuple((name.lower().encode(), value.encode()) for name, value in ids)
        sent = _SENT.difference(name for name, _ in own)
        headers = tuple((name, value) for name, value in head.headers if name in sent)
        method = "GET" if head.method == "HEAD" else head.method
        return cls(method, head.path, (*headers, *own), head.notes.key, head.notes.principal)


class Relay:
    """Reaches the other servers of the cluster with the token that all of them share."""

    def __init__(
        self, token: ClusterToken, pool: PeerPool, *, retry_after: int, counts: RelayCounts | None = None
    ) -> None:
        """`retry_after`: the seconds after which a client asks again whose prediction cannot be reached.

        `counts` are told of each request.
        """
        self.token = token
        self._pool = pool
        self._retry_after = retry_after
        self._counts = counts or RelayCounts()
        self._waiting: Counter[str] = Counter()  # by address

    async def open(self, address: str, request: RelayedRequest) -> RelayedAnswer:
        """Ask the server at an address; raise `OWNER_UNREACHABLE` if it gives no answer.

        A connection that the other server was about to end is followed by a new one.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        self._waiting[address] += 1
        try:
            if self._waiting[address] > MOST_WAITING:
                raise unreachable("too many requests wait for it already", retry_after=self._retry_after)
            answer = await self._open(address, request)
        except asyncio.CancelledError:
            self._counts.end(RelayOutcome.LEFT)
            raise
        except GeartrainError:
            self._counts.end(RelayOutcome.UNREACHABLE)
            raise
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        self._counts.seconds.observe(clock() - began)
        return answer

    async def _open(self, address: str, request: RelayedRequest) -> RelayedAnswer:
        data = self._encode(address, request)
        try:
            kept = self._pool.kept(address)
            if kept is not None:
                try:
                    return await self._ask(kept, data)
                except PeerError:
                    pass  # nothing that is relayed does harm the second time
            return await self._ask(await self._pool.connect(address), data)
        except (PeerError, TimeoutError, ValueError) as error:
            raise unreachable(str(error) or "it has not answered in time", retry_after=self._retry_after) from error

    async def _ask(self, connection: PeerConnection, data: bytes) -> RelayedAnswer:
        try:
            async with asyncio.timeout(_HEAD_WITHIN):
                await connection.ask(data)
            return RelayedAnswer(connection, self._pool, self._counts, retry_after=self._retry_after)
        except BaseException:
            connection.close()
            raise

    def _encode(self, address: str, request: RelayedRequest) -> bytes:
        fields = [(b"host", address.encode()), (TOKEN_FIELD, self.token.value), *request.headers]
        fields.append((PRINCIPAL_FIELD, write_principal(request.principal)))
        if request.key:
            fields.append((KEY_FIELD, request.key.encode("ascii", "replace")))
        if request.method != "GET":
            fields.append((b"content-length", b"0"))
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method.encode(), request.path, lines)

    def close(self) -> None:
        """End all connections."""
        self._pool.close()


class RelayedAnswer:
    """The answer of another server, whose body is still coming: to be read `whole`, to be dropped, or to be closed."""

    def __init__(self, connection: PeerConnection, pool: PeerPool, counts: RelayCounts, *, retry_after: int) -> None:
        """`counts` are told how it ends."""
        self.status = HTTPStatus(connection.status)
        self._headers = tuple(connection.headers)
        self._connection = connection
        self._pool = pool
        self._retry_after = retry_after
        self._counts: RelayCounts | None = counts  # None when they have been told
        self._is_broken = False

    @property
    def is_stream(self) -> bool:
        """True if it is a stream of events."""
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self._headers)

    def headers(self, *more: bytes) -> Fields:
        """Return the header fields that a client gets, those named in `more` among them."""
        return tuple((name, value) for name, value in self._headers if name in _RETURNED or name in more)

    async def read(self) -> bytes:
        """Return the next piece of the body, `b""` at its end; raise `OWNER_UNREACHABLE` if it breaks off."""
        try:
            async with asyncio.timeout(_PIECE_WITHIN):
                return await self._connection.read()
        except (PeerError, TimeoutError) as error:
            self._is_broken = True
            raise unreachable(str(error) or "it has fallen silent", retry_after=self._retry_after) from error

    async def whole(self, *more: bytes) -> Answer:
        """Return the answer with its whole body, and close it; header fields as of `headers`."""
        clock = asyncio.get_running_loop().time
        began = clock()
        parts: list[bytes] = []
        size = 0
        try:
            while piece := await self.read():
                parts.append(piece)
                size += len(piece)
                if clock() - began > _PIECE_WITHIN + size / _SLOWEST:
                    self._is_broken = True
                    raise unreachable("its answer comes too slowly", retry_after=self._retry_after)
                if size > MOST_BYTES:
                    self._is_broken = True
                    msg = (
                        f"The answer has more than {MOST_BYTES} bytes, and is not relayed: wait for the end of the run."
                    )
                    raise GeartrainError(Code.OWNER_UNREACHABLE, msg, retry_after=self._retry_after)
        finally:
            self.close()
        return Answer(self.status, tuple(parts) or (b"",), self.headers(*more))

    async def drop(self) -> None:
        """Read an answer that does not matter to its end, so that its connection is kept, unless it is long or slow."""
        size = 0
        try:
            with contextlib.suppress(TimeoutError, GeartrainError):
                async with asyncio.timeout(_HEAD_WITHIN):
                    while size <= _DROPPED and (piece := await self.read()):
                        size += len(piece)
        finally:
            self.close()

    def close(self) -> None:
        """Keep the connection if the answer has come whole; otherwise end it, as a client that leaves."""
        counts, self._counts = self._counts, None
        if counts is not None:  # the connection may serve another request by now
            counts.end(self._outcome())
            self._pool.give_back(self._connection)

    def _outcome(self) -> RelayOutcome:
        if self._is_broken:
            return RelayOutcome.INCOMPLETE
        if not self._connection.is_read:
            return RelayOutcome.LEFT
        return RelayOutcome.NOT_HERE if self.status is NOT_HERE else RelayOutcome.ANSWERED


def unreachable(reason: str, *, retry_after: int) -> GeartrainError:
    """Return the error of a server that gives no answer; `reason` is a clause."""
    msg = f"The server that has this prediction cannot be reached: {reason}. Ask again; another one takes over in time."
    return GeartrainError(Code.OWNER_UNREACHABLE, msg, retry_after=retry_after)
