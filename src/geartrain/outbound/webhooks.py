"""Sender of webhooks: accepted targets, limits for each receiver, redirects, time limits, retries."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote, unquote, urljoin, urlsplit

from geartrain.domain.predictions.tracing import current_outgoing
from geartrain.outbound.client_span import TRACE_FIELDS, ClientSpan
from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.connection import PeerConnection, PeerError, tls_context
from geartrain.outbound.policy import AddressRefusedError, target_fault
from geartrain.outbound.retries import Retries, clear_frames, retry

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Webhook
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
_SECONDS: Final = 30.0  # for one try, redirects included; observed Cog, section 13
_MOST_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REPEATED: Final = frozenset({307, 308})  # with their method and body; the others become a GET
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_EACH: Final = 16  # requests to one receiver at once
_TOGETHER: Final = 256  # requests to all of them
_LAST_RETRIES: Final = Retries(tries=100, first_pause=0.1, longest_pause=1.0, jitter=0.1, seconds=60.0)


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


class WebhookReply(NamedTuple):
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

    async def send(self, request: WebhookRequest) -> WebhookReply:
        """Send a request and read its answer.

        Raises `PeerError` or OSError: there is none. Raises AddressRefusedError: the policy refuses the target.
        """
        outgoing = current_outgoing()
        if outgoing is None:
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

    async def _send(self, request: WebhookRequest) -> WebhookReply:
        connection = self._take(request.target) or await self._connect(request.target)
        try:
            await connection.ask(_head(request), request.body)
            status, fields = connection.status, connection.headers
            location = next((value.decode("latin-1") for name, value in fields if name == b"location"), None)
            await _read_rest(connection)
        finally:
            self._keep(connection)
        return WebhookReply(status, location)

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


class _Limit:
    __slots__ = ("free", "users")

    def __init__(self, width: int) -> None:
        self.free = asyncio.Semaphore(width)
        self.users = 0


class HostLimits:
    """A limit for each receiver, and one for all together; waiting requests are let in by turn."""

    def __init__(self, *, each: int, together: int) -> None:
        self._each = each
        self._together = asyncio.Semaphore(together)
        self._limits: dict[str, _Limit] = {}

    @asynccontextmanager
    async def enter(self, receiver: str) -> AsyncIterator[None]:
        """Wait until a request to `receiver` may begin, and count it during the block."""
        limit = self._limits.get(receiver)
        if limit is None:
            limit = self._limits[receiver] = _Limit(self._each)
        limit.users += 1
        try:
            async with limit.free, self._together:
                yield
        finally:
            limit.users -= 1
            if not limit.users:
                del self._limits[receiver]


class _RefusedError(Exception):
    def __init__(self, status: int) -> None:
        phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
        super().__init__(f"the receiver answered {status}{phrase}")
        self.status = status


class _RedirectsError(Exception):
    """The receiver redirects to nowhere, or too often."""


_PASSING = (OSError, PeerError)  # a time that is over is an OSError
_FAILURES = (*_PASSING, _RefusedError, _RedirectsError, AddressRefusedError, UnicodeError)


class WebhookSender:
    """Sends the webhooks of all predictions.

    The targets are clients' URLs, so every connection, also of a redirect, goes to an address that `policy` has passed.
    `token` is sent as `Authorization: Bearer …` to each of them, but not to where another host redirects to.
    """

    def __init__(
        self, policy: UrlPolicy, *, user_agent: str, token: str | None = None, retries: Retries | None = None
    ) -> None:
        self._policy = policy
        self._headers = (("content-type", "application/json"), ("accept", "*/*"), ("user-agent", user_agent))
        self._authorization = f"Bearer {token}" if token else ""
        self._retries = retries or Retries()
        self._limits = HostLimits(each=_EACH, together=_TOGETHER)
        self._client = WebhookClient(policy)
        self._ending = asyncio.Event()  # of the server

    def fault(self, url: str) -> str | None:
        """Return the fault of a target that shows without a connection, as a sentence; None if it is good."""
        return target_fault(url, self._policy)

    async def send(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> str | None:
        """Try once; return why it did not arrive, None if it did. `body` is asked for when its turn has come."""
        try:
            await self._try(webhook, body)
        except _FAILURES as failure:
            clear_frames(failure)
            return _reason(failure)
        return None

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        """Try until it has arrived, or there is no hope of it; return why it did not arrive, None if it did.

        What may pass is tried again: a connection that fails, a receiver that takes too long, 429, 500, 502, 503, 504.
        """

        async def whole() -> bytes:
            return body

        async def work() -> None:
            await self._try(webhook, whole)

        try:
            try:
                await retry(work, self._has_time_for, self._retries, sleep=self._pause)
            except _FAILURES as failure:
                if not (self._ending.is_set() and _passes(failure)):
                    raise
                await retry(work, _passes, _LAST_RETRIES)
        except _FAILURES as failure:
            return _reason(failure)
        return None

    def end_pauses(self) -> None:
        """End the pauses, because the server is about to stop: try again at once, and pause no longer than a second."""
        self._ending.set()

    async def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _has_time_for(self, error: Exception) -> bool:
        """True if another try is worth its pause, which may be long."""
        return not self._ending.is_set() and _passes(error)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the server ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _try(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> None:
        receiver = urlsplit(webhook.url).netloc.rpartition("@")[2].lower()
        async with self._limits.enter(receiver), asyncio.timeout(_SECONDS):
            method, url, content = "POST", webhook.url, await body()
            authorization, target = self._authorization, Target.of(url)
            for _ in range(_MOST_REDIRECTS + 1):
                authorization = target.basic or authorization
                own = (("authorization", authorization),) if authorization else ()
                headers = (*self._headers, *own, *webhook.trace)
                reply = await self._client.send(WebhookRequest(method, target, headers, content))
                if reply.location is None or reply.status not in _REDIRECTS:
                    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
                        raise _RefusedError(reply.status)
                    return
                url = self._redirected(url, reply.location)
                before, target = target, Target.of(url)
                if not _is_same_receiver(before, target):
                    authorization = ""
                if reply.status not in _REPEATED:
                    method, content = "GET", b""
        raise _RedirectsError(f"there are more than {_MOST_REDIRECTS} redirects")

    def _redirected(self, url: str, location: str) -> str:
        """Return the URL that `location` stands for in an answer from `url`."""
        with contextlib.suppress(ValueError):  # brackets that hold no address
            found = urljoin(url, location)
            if target_fault(found, self._policy) is None:
                return found
        raise _RedirectsError("the receiver redirects to a URL that is not accepted")


def _is_same_receiver(before: Target, after: Target) -> bool:
    """Return True for the same origin, or the same host over TLS now."""
    secured = ("https", before.host, 443) if before.origin == ("http", before.host, 80) else before.origin
    return after.origin in {before.origin, secured}


def _passes(error: Exception) -> bool:
    """True if a failure may pass if the webhook is sent again."""
    return error.status in _TRY_AGAIN if isinstance(error, _RefusedError) else isinstance(error, _PASSING)


def _reason(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return "the receiver took too long"
    if isinstance(failure, PeerError):
        return f"the receiver has not answered: {failure}"
    if isinstance(failure, OSError):
        return f"the receiver cannot be reached: {failure.strerror or failure}"
    return str(failure) or type(failure).__name__
