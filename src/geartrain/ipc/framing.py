"""Frames on the wire between parent and worker: a 4-byte big-endian length, then that many bytes.

Fed, not awaited: give the reader whatever bytes came, take out whole frames.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER_SIZE: Final = 4
_header: Final = struct.Struct(">I").pack
_size_at: Final = struct.Struct(">I").unpack_from
MAX_FRAME: Final = 8 * 1024 * 1024  # bytes; above the 6 MiB inline limit and the 4 MiB limit of a log line
INLINE_LIMIT: Final = 6 * 1024 * 1024  # bytes of JSON; what is larger travels in a file (container runtime)


class FrameError(ValueError):
    """The peer announced a frame beyond the limit: the stream cannot be trusted any further."""


def frame(payload: bytes) -> bytes:
    """Return the payload with its header; raise `FrameError` beyond `MAX_FRAME`."""
    size = len(payload)
    if size > MAX_FRAME:
        msg = f"a frame of {size} bytes is larger than the limit of {MAX_FRAME}"
        raise FrameError(msg)
    return _header(size) + payload


class FrameReader:
    """Cuts a byte stream into frames."""

    __slots__ = ("_buffer", "_needed")

    def __init__(self) -> None:
        self._buffer = bytearray()  # the beginning of a frame
        self._needed = HEADER_SIZE  # bytes that the buffer must hold for another step

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the frames that are now whole; raise `FrameError` on an oversized one."""
        buffer = self._buffer
        if not buffer and int.from_bytes(data[:HEADER_SIZE], "big") == len(data) - HEADER_SIZE <= MAX_FRAME:
            return [data[HEADER_SIZE:]]  # one whole frame, as most calls and their ends are
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return []
            data = bytes(buffer)
            buffer.clear()
        frames = []
        start, length = 0, len(data)
        self._needed = HEADER_SIZE
        while length - start >= HEADER_SIZE:
            (size,) = _size_at(data, start)
            begin = start + HEADER_SIZE
            end = begin + size
            if end > length:
                if size > MAX_FRAME:
                    msg = f"a frame of {size} bytes is larger than the limit of {MAX_FRAME}"
                    raise FrameError(msg)
                self._needed = HEADER_SIZE + size
                break
            frames.append(data[begin:end])
            start = end
        if start < length:
            buffer += data[start:]
        return frames

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame that are held."""
        return len(self._buffer)
