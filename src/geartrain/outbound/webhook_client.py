"""Requests of webhooks over HTTP/1.1, one for each call, over connections that are kept for a few seconds.

It stands on `connection.py` and not on httpx, whose import takes 200 ms and 6 MB of memory.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote, unquote, urlsplit

from geartrain.domain.predictions.tracing import NO_TRACER, current_outgoing
from geartrain.outbound.client_span import TRACE_FIELDS, ClientSpan
from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.connection import PeerConnection, PeerError, tls_context

if TYPE_CHECKING:
    from geartrain.outbound.policy import UrlPolicy

_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 3.0  # until an idle connection is closed: web servers close theirs after 5 s or more
_READ: Final = 1 << 16  # bytes read at most of an answer's body, which is not needed
_READ_SECONDS: Final = 1.0
_PORTS: Final = {"http": 80, "https": 443}
# The printable characters of ASCII that a URL may have as they are: those that browsers leave alone.
_IN_QUERY: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"#<>')
_IN_PATH: Final = "".join(character for character in _IN_QUERY if character not in "?`{}")
_LONE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Target(NamedTuple):
    """A URL as a request needs it: `host` in ASCII, `path` with the query, `basic` for the user in the URL, or ""."""

    scheme: str
    host: str
    port: int
    path: str
    basic: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL that has no fault (`urls.target_fault`). Raises UnicodeError for a name that cannot be."""
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), parts.hostname or ""
        if not host.isascii():
            import idna  # late: it is large

            host = idna.encode(host).decode("ascii")
        path = quote(_LONE_PERCENT.sub("%25", parts.path or "/"), safe=_IN_PATH)
        if parts.query:
            path += "?" + quote(_LONE_PERCENT.sub("%25", parts.query), safe=_IN_QUERY)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        basic = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user or password else ""
        return cls(scheme, host, parts.port or _PORTS[scheme], path, basic)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port, which connections are kept for."""
        return self[:3]

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one, as the field `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class WebhookRequest(NamedTuple):
    """A request. Its head has the fields that HTTP itself needs besides `headers`."""

    method: str
    target: Target
    headers: Sequence[tuple[str, str]]
    body: bytes


class Reply(NamedTuple):
    """An answer without its body; `location` is None if it has none."""

    status: int
    location: str | None


class WebhookClient:
    """Sends requests, each over a connection of its own at a time, to addresses that the policy admits.

    The name of a target is looked up once, and the connection goes to the very address that passed; over TLS its
    certificate is checked against the name. Proxies of the environment are not used, and no cookie is kept.
    """

    def __init__(self, policy: UrlPolicy) -> None:
        self._policy = policy
        self._open: dict[PeerConnection, tuple[str, str, int]] = {}
        self._idle: dict[tuple[str, str, int], dict[PeerConnection, asyncio.TimerHandle]] = {}
        self._tls: ssl.SSLContext | None = None
        self._making_tls = asyncio.Lock()

    async def send(self, request: WebhookRequest) -> Reply:
        """Send a request and read its answer.

        Raises `PeerError` or OSError: there is none. Raises AddressRefusedError: the policy refuses the target.
        """
        outgoing = current_outgoing()
        if outgoing.tracer is NO_TRACER:
            return await self._send(request)
        target = request.target
        url = f"{target.scheme}://{target.authority}{target.path.partition('?')[0]}"
        span = ClientSpan(outgoing, request.method, url=url, host=target.host, port=target.port)
        others = [(name, value) for name, value in request.headers if name.lower() not in TRACE_FIELDS]
        try:
            reply = await self._send(request._replace(headers=(*others, *span.headers)))
        except BaseException as error:
            span.fail(error)
            raise
        span.end(reply.status)
        return reply

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self._open):
            connection.close()

    async def _send(self, request: WebhookRequest) -> Reply:
        connection = self._take(request.target) or await self._connect(request.target)
        try:
            await connection.ask(_head(request), request.body)
            status, fields = connection.status, connection.headers
            location = next((value.decode("latin-1") for name, value in fields if name == b"location"), None)
            await _read_rest(connection)
        finally:
            self._keep(connection)
        return Reply(status, location)

    async def _connect(self, target: Target) -> PeerConnection:
        """Connect to the first admitted address that answers; all of them share the time."""
        loop = asyncio.get_running_loop()
        tls = await self._context() if target.scheme == "https" else None
        ends = loop.time() + _CONNECT_SECONDS
        async with asyncio.timeout_at(ends):
            addresses = self._policy.admit(target.host, await _resolve(target))
        failure: Exception = OSError(f"{target.host} has no address")
        for index, address in enumerate(addresses):
            share = max(ends - loop.time(), 0.0) / (len(addresses) - index)
            try:
                async with asyncio.timeout(share):
                    _, connection = await loop.create_connection(
                        lambda: PeerConnection(self._forget),
                        address,
                        target.port,
                        ssl=tls,
                        server_hostname=None if tls is None else target.host,
                    )
            except OSError as error:  # those of TLS and of time are, too
                failure = error
            else:
                if connection.is_open:  # it may be lost already
                    self._open[connection] = target.origin
                return connection
        try:
            raise failure
        finally:
            del failure  # it refers to this frame: a cycle

    async def _context(self) -> ssl.SSLContext:
        async with self._making_tls:
            if self._tls is None:
                self._tls = await off_loop(tls_context)
            return self._tls

    def _take(self, target: Target) -> PeerConnection | None:
        """Return a kept connection, None if there is none. The receiver may be about to close it."""
        idle = self._idle.get(target.origin)
        while idle:
            connection, timer = idle.popitem()
            timer.cancel()
            if connection.is_open:
                return connection
        return None

    def _keep(self, connection: PeerConnection) -> None:
        """Keep a connection for the next request, or close it if it cannot have one."""
        origin = self._open.get(connection)
        if origin is not None and connection.is_reusable:
            timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, connection.close)
            self._idle.setdefault(origin, {})[connection] = timer
        else:
            connection.close()

    def _forget(self, connection: PeerConnection) -> None:
        origin = self._open.pop(connection, None)
        idle = None if origin is None else self._idle.get(origin)
        if origin is None or idle is None:
            return
        timer = idle.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if not idle:
            del self._idle[origin]


async def _resolve(target: Target) -> list[str]:
    """Return the numeric addresses of a target, in the order to try them."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OSError(f"the name {target.host} cannot be resolved") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _head(request: WebhookRequest) -> bytes:
    lines = [f"{request.method} {request.target.path} HTTP/1.1", f"Host: {request.target.authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if request.body:
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _read_rest(connection: PeerConnection) -> None:
    """Read the body of a short answer, so that its connection can serve again; no more depends on it."""
    with suppress(TimeoutError, PeerError):
        async with asyncio.timeout(_READ_SECONDS):
            size = 0
            while size <= _READ and (piece := await connection.read()):
                size += len(piece)
