"""A connection to a server, with one request at a time: HTTP/1.1 without the comforts, so that it costs little.

What a client computes for each request is taken from the server where both are on one machine, and from the clock in
any case. A client library such as httpx takes several times as long for a request as a server with a small model.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import httptools

from geartrain.authoring import __version__

_FINAL: Final = 200  # the first status that is not followed by another answer
_LONGEST_TOKEN: Final = 64  # bytes of what a pattern of tokens matches
_PORTS: Final = {"http": 80, "https": 443}


class Listener(Protocol):
    """Hears what becomes of requests. Either call is made once for each request."""

    def answered(self, connection: Connection, status: int, content: bytes) -> None:
        """Take the answer; the connection has room for the next request, unless `is_open` is false."""

    def broken(self, connection: Connection, reason: str) -> None:
        """Hear that there will be no answer."""


class Connection(asyncio.Protocol):
    """One connection. `due` is for its user: the time of the request, by `time.perf_counter()`.

    With a pattern in `token`, `first` is the time of the first piece of the answer that has it; 0 before that.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.due = self.first = 0.0
        self.token: re.Pattern[bytes] | None = None
        self.is_busy = False
        self.is_open = False
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._content: list[bytes] = []
        self._tail = b""  # of the piece before, where a token may begin

    def send(self, request: bytes) -> None:
        """Send a whole request, with its head."""
        self.is_busy = True
        self.first, self._tail = 0.0, b""
        assert self._transport is not None  # noqa: S101 - it was connected
        self._transport.write(request)

    def close(self) -> None:
        """Let it go; the listener hears nothing more."""
        self.is_busy = self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until it is gone, after `close`: until then the server counts its client as present."""
        await asyncio.shield(self._lost)

    def fail(self, reason: str) -> None:
        """Let it go; the listener hears why."""
        was_busy, self.is_busy = self.is_busy, False
        self.close()
        if was_busy:
            self.listener.broken(self, reason)

    # calls of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = transport  # type: ignore[assignment] # it is one of a stream
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Take a piece of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Hear of the end."""
        if not self._lost.done():
            self._lost.set_result(None)
        self.fail(str(error) if error else "the server has closed the connection before the answer was complete")

    # calls of the parser

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._content.append(body)
        if self.token is not None and not self.first:
            seen = self._tail + body
            if self.token.search(seen):
                self.first = time.perf_counter()
            self._tail = seen[-_LONGEST_TOKEN:]

    def on_message_complete(self) -> None:
        """Pass the answer on."""
        status = self._parser.get_status_code()
        if status < _FINAL or not self.is_busy:
            return
        content = self._content[0] if len(self._content) == 1 else b"".join(self._content)
        self._content.clear()
        self.is_busy = False
        if not self._parser.should_keep_alive():
            self.close()
        self.listener.answered(self, status, content)


class Target(NamedTuple):
    """A server. `prefix` is the path that its URL has, without a slash at the end; `head` are lines of every head."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    head: bytes

    async def connect(self, listener: Listener, *, timeout: float) -> Connection:  # noqa: ASYNC109 - of the handshake
        """Return a connection. Raises `OSError`, including `TimeoutError`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(listener), self.host, self.port, ssl=self.tls
            )
        return connection

    def request(self, method: str, path: str, *, headers: dict[str, str], content: bytes) -> bytes:
        """Return a whole request."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        line = f"{method} {self.prefix}{path} HTTP/1.1\r\n"
        return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (
            line.encode("latin-1"),
            self.head,
            lines.encode("latin-1"),
            len(content),
            content,
        )


def target_of(url: str, *, key: str | None, verify: bool | str) -> Target:
    """Return the server at a URL. `key` and `verify` as of `geartrain.Client`. Raises `ValueError`, with a sentence."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no URL of a server; write for example http://127.0.0.1:5000")
    port = parts.port or _PORTS[parts.scheme]
    head = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: geartrain-bench/{__version__}\r\n"
    if key is not None:
        if not key.isascii() or not key.isprintable():
            raise ValueError("the key has characters that no key has; give it as `geartrain keys new` has printed it")
        head += f"Authorization: Bearer {key}\r\n"
    return Target(
        parts.hostname,
        port,
        _context(verify) if parts.scheme == "https" else None,
        parts.path.rstrip("/"),
        head.encode("latin-1"),
    )


def _context(verify: bool | str) -> ssl.SSLContext:  # noqa: FBT001 - as of `Client`
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
