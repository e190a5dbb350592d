"""The client's side of a connection over HTTP/1.1, to a receiver of webhooks or another server of a cluster.

One request follows the other. A body comes in pieces, no faster than it is read. Heads and framing have limits, since
the other side may be hostile; the caller limits the time.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

import httptools

MAX_HEAD: Final = 64 * 1024  # bytes of the header fields of an answer
_MAX_FRAMING: Final = 2 * MAX_HEAD  # bytes without a piece of a body: httptools keeps an unfinished field in memory
_PIECE: Final = 256 * 1024  # bytes of a request that are written at once: more would hold the loop
_HELD: Final = 256 * 1024  # bytes of a body beyond which no more is read from the socket
_INFORMATIONAL: Final = 200  # statuses below it come before the answer


class PeerError(Exception):
    """The other side has not answered, or not to the end. The text is a clause."""


class PeerConnection(asyncio.Protocol):
    """One connection; the answer at hand has come as far as its attributes say."""

    def __init__(self, on_lost: Callable[[PeerConnection], None]) -> None:
        """`on_lost` is called when the connection is gone."""
        self.is_open = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.transport: asyncio.Transport
        self._on_lost = on_lost
        self._parser: httptools.HttpResponseParser
        self._head_size = 0
        self._framing = 0  # bytes since the request, or since the last piece of the body
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._is_complete = True
        self._is_kept = False  # the connection can be used again
        self._is_sent = False  # the request at hand
        self._is_paused = False  # the other side does not read as fast as it is written to
        self._changed = asyncio.Event()

    # calls of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Read what comes of the answer; what comes without a request ends the connection."""
        if self._is_complete:
            self.close()
            return
        self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, OverflowError):
            self.close()
        if self._framing > _MAX_FRAMING and not self._is_complete:
            self.close()
        self._changed.set()

    def pause_writing(self) -> None:
        """Note that the other side does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that it reads again."""
        self._is_paused = False
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        """Note that nothing more comes."""
        self.is_open = False
        with suppress(AttributeError):  # without a request there is none
            del self._parser  # it refers to this connection: a cycle
        self._changed.set()
        self._on_lost(self)

    # calls of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD:
            raise OverflowError
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the status."""
        status = self._parser.get_status_code()
        if status < _INFORMATIONAL:
            self.headers = []
        else:
            self.status = status

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._framing = 0
        self._pieces.append(body)
        self._held += len(body)
        if self._held > _HELD:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self.status:
            self._is_complete = True
            self._is_kept = self._parser.should_keep_alive()

    # requests

    async def ask(self, *request: bytes) -> None:
        """Send the pieces of a request, and wait for the head of its answer; raise `PeerError` if none comes."""
        self.status, self.headers, self._head_size, self._framing = 0, [], 0, 0
        self._is_complete = self._is_kept = self._is_sent = False
        self._parser = httptools.HttpResponseParser(self)
        if sum(map(len, request)) <= _PIECE:
            self.transport.writelines(request)
            self._is_sent = True
        else:
            await self._send_large(request)
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """Return the next piece of the body, `b""` at its end; raise `PeerError` if it breaks off."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        piece = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        self._pieces.clear()
        if self._held > _HELD and self.is_open:
            self.transport.resume_reading()
        self._held = 0
        return piece

    @property
    def is_read(self) -> bool:
        """True if the answer at hand has been read to its end."""
        return self._is_complete and not self._pieces

    @property
    def is_reusable(self) -> bool:
        """True if the answer at hand has been read to its end, and another request may follow."""
        return self.is_open and self._is_kept and self._is_sent and self.is_read

    def close(self) -> None:
        """End the connection: the other side takes that as a client that has left."""
        self.is_open = False
        self.transport.abort()

    async def _send_large(self, request: Sequence[bytes]) -> None:
        """Send a request as fast as it is read; leave it at that once there is an answer."""
        for data in request:
            for begin in range(0, len(data), _PIECE):
                while self._is_paused and not self.status:
                    await self._wait()
                if self.status:
                    return
                self.transport.write(data[begin : begin + _PIECE])
        self._is_sent = True

    async def _wait(self) -> None:
        if not self.is_open:
            raise PeerError("it has ended the connection")
        self._changed.clear()
        await self._changed.wait()


def tls_context() -> ssl.SSLContext:
    """Make a context that trusts certifi's certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR name.

    Takes 20 ms and 1 MB.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and not folder:
        import certifi

        file = certifi.where()
    return ssl.create_default_context(cafile=file or None, capath=None if file else folder)
