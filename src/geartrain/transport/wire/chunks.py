"""Bodies in chunks (RFC 9112, section 7.1): bytes in, pieces of the body out."""

from __future__ import annotations

import re
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from geartrain.domain.state_machine import steps_to
from geartrain.transport.wire.heads import WireError
from geartrain.transport.wire.limits import MAX_FIELDS

_LONGEST_LINE: Final = 1024  # bytes of the line before a chunk: its size and its extensions, which are ignored
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_EXTENSIONS: Final = 65_536  # bytes of extensions of one body


class ChunkState(StrEnum):
    """Expected part of a chunk."""

    SIZE = "size"  # the line before a chunk
    DATA = "data"
    DATA_END = "data end"  # the line end after a chunk
    TRAILER = "trailer"  # a field after the last chunk, or the empty line that ends the body
    DONE = "done"


CHUNK_STEPS: Final[dict[ChunkState, frozenset[ChunkState]]] = {
    ChunkState.SIZE: frozenset({ChunkState.DATA, ChunkState.TRAILER}),
    ChunkState.DATA: frozenset({ChunkState.DATA_END}),
    ChunkState.DATA_END: frozenset({ChunkState.SIZE}),
    ChunkState.TRAILER: frozenset({ChunkState.TRAILER, ChunkState.DONE}),
    ChunkState.DONE: frozenset(),
}
_TO: Final = steps_to("a body in chunks", CHUNK_STEPS)


class ChunkReader:
    """Takes one body in chunks apart, in whatever pieces it comes. Extensions and trailers are checked and dropped."""

    __slots__ = ("_extensions", "_fields", "_left", "_line", "_max_trailer_size", "_trailer_size", "state")

    def __init__(self, max_trailer_size: int) -> None:
        """`max_trailer_size`: the most bytes of trailers; 0 disables the limit."""
        self.state = ChunkState.SIZE
        self._left = 0  # bytes of the chunk that are still to come
        self._line = b""  # of a line that is not complete
        self._extensions = 0  # bytes of size lines beyond their sizes
        self._trailer_size = 0
        self._fields = 0  # trailers that have come
        self._max_trailer_size = max_trailer_size

    @property
    def is_complete(self) -> bool:
        """True if the end of the body has come."""
        return self.state is ChunkState.DONE

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Take what has come; return the pieces of the body in it, and how many of its bytes belong to the body.

        Raises `WireError`.
        """
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and self.state is not ChunkState.DONE:
            if self.state is ChunkState.DATA:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._step(ChunkState.DATA_END)
                continue
            end = data.find(b"\n", at) + 1
            part = data[at : end or len(data)]
            self._line += part
            at += len(part)
            self._check_line(is_whole=bool(end))
            if end:
                line, self._line = self._line, b""
                self._read_line(line)
        return pieces, at

    def _check_line(self, *, is_whole: bool) -> None:
        size = len(self._line)
        if self.state is ChunkState.TRAILER:
            if self._max_trailer_size and self._trailer_size + size > self._max_trailer_size:
                text = f"The trailers of the body are larger than the limit of {self._max_trailer_size} bytes."
                text = f"{text} The server's --max-head-size sets it."
                raise WireError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
        elif size > _LONGEST_LINE:
            raise _bad(f"the line before a chunk is longer than {_LONGEST_LINE} bytes")
        if not is_whole and self.state is ChunkState.DATA_END and not b"\r\n".startswith(self._line):
            raise _bad("a chunk is longer than its size")

    def _read_line(self, line: bytes) -> None:
        if self.state is ChunkState.SIZE:
            found = _SIZE_LINE.fullmatch(line)
            if found is None:
                raise _bad("a chunk must begin with its size, in hexadecimal digits")
            self._extensions += len(line) - len(found[1])
            self._left = int(found[1], 16)
            self._extensions -= min(self._extensions, self._left)  # lines are paid for by the data that they carry
            if self._extensions > _EXTENSIONS:
                raise _bad(f"its chunks have more than {_EXTENSIONS} bytes of extensions and line ends")
            self._step(ChunkState.DATA if self._left else ChunkState.TRAILER)
        elif self.state is ChunkState.DATA_END:
            if line != b"\r\n":
                raise _bad("a chunk is longer than its size")
            self._step(ChunkState.SIZE)
        elif line == b"\r\n":
            self._step(ChunkState.DONE)
        else:
            self._fields += 1
            self._trailer_size += len(line)
            if self._fields > MAX_FIELDS:
                text = f"The body has more than {MAX_FIELDS} trailers."
                raise WireError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            if _TRAILER.fullmatch(line) is None:
                raise _bad("a trailer is not a header field")

    def _step(self, wanted: ChunkState) -> None:
        self.state = _TO[wanted](self.state)


def _bad(fault: str) -> WireError:
    return WireError(HTTPStatus.BAD_REQUEST, f"The body of the request is not valid: {fault}.")
