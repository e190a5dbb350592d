"""Decompression that never makes more than a piece at a time, however small the bytes it was made from."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_PIECE = 1 << 20  # bytes given at a time at most
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # zlib's number for "tell by the header"
_GZIP_MAGIC = b"\x1f\x8b"


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
