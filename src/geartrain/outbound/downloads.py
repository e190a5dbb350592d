"""One file by HTTP: redirects, sizes, time limits, compression, and a sentence for everything that can go wrong.

Imports httpx, so it is itself imported only when the first URL is met.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, cast

import httpcore
import httpx

from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.files import DownloadError, innermost
from geartrain.outbound.network import CONNECT_SECONDS, close
from geartrain.outbound.policy import AddressRefusedError

if TYPE_CHECKING:
    from geartrain.outbound.files import Allowance

_PIECE = 1 << 20  # bytes given at a time at most
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # zlib's number for "tell by the header"
_GZIP_MAGIC = b"\x1f\x8b"
OnBytes = Callable[[int, int | None], None]
"""Told the bytes of a file that have come, and of how many; None while that is not known, the same at the end."""

_MOST_REDIRECTS = 10
_WRITE = 1 << 20  # bytes written at a time
_SLOWEST = 1 << 16  # bytes/s: slower than this, a file of the largest size is given up

# Failures of the network in a download, and the end of the sentence about each; the first that fits is taken.
_SENTENCES: tuple[tuple[type[Exception], str], ...] = (
    (httpcore.ConnectTimeout, "no connection could be made within {connect:g} s"),
    (httpcore.TimeoutException, "the server was silent for {silence:g} s"),
    (TimeoutError, "the download took too long"),
    (httpcore.ConnectError, "the connection failed: {beneath}"),
    (httpcore.NetworkError, "the connection broke: {beneath}"),
    (httpcore.ProtocolError, "the server broke off, or broke the protocol: {error}"),
    (httpcore.UnsupportedProtocol, "it redirects to a URL that is neither http: nor https:"),
    (httpx.InvalidURL, "the URL is malformed: {error}"),
    (httpx.HTTPError, "{error}"),
    (zlib.error, "its compressed content is damaged"),
)
_NETWORK_ERRORS = tuple(kind for kind, _ in _SENTENCES)


class Plain:
    """Bytes that are not compressed."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """`data` itself."""
        yield data

    def end(self) -> None:
        """Nothing can be missing."""


class Inflater:
    """gzip (also of several members) and zlib streams."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bytes that `data` completes, in pieces of at most 1 MiB.

        Raises zlib.error: the stream is damaged.
        """
        self._fed = self._fed or bool(data)
        while data:
            if self._stream.eof:
                if not data.startswith(_GZIP_MAGIC):
                    return  # padding after the last member, which gzip itself ignores as well
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            yield from self._member(data)
            data = self._stream.unused_data

    def end(self) -> None:
        """Say that all has been fed.

        Raises zlib.error: the stream is cut short.
        """
        if self._fed and not self._stream.eof:
            raise zlib.error("the compressed stream is cut short")

    def _member(self, data: bytes) -> Iterator[bytes]:
        while True:
            decoded = self._stream.decompress(data, _PIECE)
            if decoded:
                yield decoded
            data = self._stream.unconsumed_tail
            if not data and len(decoded) < _PIECE:
                return


def decoder_for(content_encoding: str) -> Plain | Inflater | None:
    """The decoder for the value of a Content-Encoding header; None for an encoding that is not known."""
    match content_encoding.strip().lower():
        case "" | "identity":
            return Plain()
        case "gzip" | "x-gzip" | "deflate":
            return Inflater()
        case _:
            return None


async def download(
    client: httpx.AsyncClient, url: str, file: BinaryIO, *, allowance: Allowance, on_bytes: OnBytes | None = None
) -> None:
    """Write what `url` leads to into `file`, and tell `on_bytes` how far it has come.

    Raises DownloadError: with the reason, as the end of a sentence.
    """
    longest = CONNECT_SECONDS + allowance.each / _SLOWEST
    try:
        async with asyncio.timeout(longest), _opened(client, url) as response:
            await _save(response, file, allowance, on_bytes=on_bytes)
    except AddressRefusedError as refusal:
        raise DownloadError(str(refusal)) from refusal
    except _NETWORK_ERRORS as error:
        raise DownloadError(_reason(error, silence=client.timeout.read)) from error


@asynccontextmanager
async def _opened(client: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """The answer at the end of the redirects, its body not yet read."""
    request = client.build_request("GET", url)
    for _ in range(_MOST_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        try:
            if response.next_request is None:
                yield response
                return
            request = response.next_request
        finally:
            await close(response)
    raise DownloadError(f"there are more than {_MOST_REDIRECTS} redirects")


async def _save(response: httpx.Response, file: BinaryIO, allowance: Allowance, *, on_bytes: OnBytes | None) -> None:
    if not response.is_success:
        raise DownloadError(f"the server answered {_status_text(response.status_code)}")
    encoding = response.headers.get("content-encoding", "")
    decoder = decoder_for(encoding)
    if decoder is None:
        raise DownloadError(f"the server sent the content encoding {encoding!r}, which is not supported")
    announced = response.headers.get("content-length", "")
    if announced.isdecimal():
        allowance.foresee(int(announced))
    total = int(announced) if announced.isdecimal() and isinstance(decoder, Plain) else None
    size = 0
    waiting = bytearray()
    async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as pieces:
        async for piece in pieces:
            for decoded in decoder.feed(piece):
                size = allowance.take(size, len(decoded))
                waiting += decoded
                if on_bytes is not None:
                    on_bytes(size, total)
                if len(waiting) >= _WRITE:
                    await off_loop(file.write, waiting)
                    waiting = bytearray()
    decoder.end()
    await off_loop(file.write, waiting)
    if on_bytes is not None:
        on_bytes(size, size)


def _status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _reason(error: Exception, *, silence: float | None) -> str:
    """The end of a sentence that begins with what could not be fetched."""
    sentence = next(text for kind, text in _SENTENCES if isinstance(error, kind))
    return sentence.format(error=error, beneath=innermost(error), silence=silence, connect=CONNECT_SECONDS)
