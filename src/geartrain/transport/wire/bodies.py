"""Bodies of requests on their way in: where one ends, and where its bytes go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol, cast

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.chunks import ChunkReader
from geartrain.transport.wire.exchange import NOWHERE, UNKNOWN_LENGTH, Accepted, Body, BodyMemory, ClientGoneError
from geartrain.transport.wire.heads import WireError

_PLACED: Final = 65_536  # bytes; a body of more is received where it is to stay, if it can be
_SCRATCH: Final = 262_144  # bytes
_WANTED: Final = 262_144  # bytes that may wait for the reader of a body in parts


class BufferBudget:
    """Counts the bytes of the bodies of all connections, and says when there is no room for more."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes; 0 disables it."""
        self.limit = limit
        self.used = 0
        self._waiters: dict[object, Callable[[], None]] = {}  # in the order in which they came

    @property
    def is_spent(self) -> bool:
        """True if no more may be read."""
        return bool(self.limit) and self.used > self.limit

    def check(self, length: int) -> None:
        """Raise `WireError` for a body that could never be held."""
        if self.limit and length > self.limit:
            text = f"The request body is larger than the {self.limit} bytes that all bodies together may take."
            raise WireError(HTTPStatus.SERVICE_UNAVAILABLE, f"{text} The server's --max-buffered-size sets it.")

    def take(self, size: int) -> None:
        """Count bytes that have been received."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Count bytes that are no longer held, and let connections that wait for room read on."""
        self.used -= size
        while self._waiters and not self.is_spent:
            waiter = next(iter(self._waiters))
            self._waiters.pop(waiter)()

    def wait(self, waiter: object, resume: Callable[[], None]) -> None:
        """Call `resume` when there is room again."""
        self._waiters[waiter] = resume

    def leave(self, waiter: object) -> None:
        """Wait no longer."""
        self._waiters.pop(waiter, None)


class Framing(Protocol):
    """End of a body."""

    @property
    def is_complete(self) -> bool:
        """True if all of it has come."""

    def feed(self, data: bytes) -> tuple[Sequence[bytes], int]:
        """Take what has come; return the pieces of the body in it, and how many of its bytes belong to the body."""


class LengthFraming:
    """A body whose length has been announced."""

    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def is_complete(self) -> bool:
        """True if all of it has come."""
        return not self._left

    def skip(self, size: int) -> None:
        """Note that so many bytes have been taken by another way."""
        self._left -= size

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Take what has come, up to the length."""
        piece = data if len(data) <= self._left else data[: self._left]
        self._left -= len(piece)
        return [piece], len(piece)


def framing(length: int, max_trailer_size: int) -> Framing:
    """Create the framing of a body of this length, `UNKNOWN_LENGTH` being that of one in chunks."""
    return ChunkReader(max_trailer_size) if length == UNKNOWN_LENGTH else LengthFraming(length)


class WholeBody:
    """Gathers a body, whose bytes it counts."""

    __slots__ = ("_first", "_grown", "size")

    def __init__(self) -> None:
        self.size = 0
        self._first = b""
        self._grown = bytearray()  # it grows in place: pieces that are joined in the end would need twice the memory

    def take(self, pieces: Sequence[Buffer]) -> None:
        """Append to it."""
        for piece in pieces:
            if not self.size and len(pieces) == 1:
                self._first = bytes(piece)
            else:
                if not self._grown:
                    self._grown += self._first
                    self._first = b""
                self._grown += piece
            self.size += len(piece)

    def whole(self) -> Body:
        """Return it, complete."""
        return self._grown or self._first


class PlacedBody:
    """Gathers a body of known length where it is to stay."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: memoryview) -> None:
        """`memory` is as long as the body."""
        self._memory = memory
        self.size = 0

    def take(self, pieces: Sequence[Buffer]) -> None:
        """Append to it."""
        for piece in pieces:
            end = self.size + len(piece)
            self._memory[self.size : end] = piece
            self.size = end

    @property
    def room(self) -> memoryview:
        """Memory for the rest of the body."""
        return self._memory[self.size :]

    def grow(self, size: int) -> None:
        """Note that so many bytes have been written to its room."""
        self.size += size

    def whole(self) -> Body:
        """Return it, complete: a view, as its exchange has asked for one (`Accepted.contents_at`)."""
        return cast("Body", self._memory)


class NoPlace:
    """Stands where no body has a place to stay."""

    room: Final = memoryview(b"")


NO_PLACE: Final = NoPlace()


class Places:
    """The places of large bodies, of all connections."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.scratch = memoryview(bytearray(_SCRATCH))  # for what is read before it is known where it belongs

    def find(self, accepted: Accepted, length: int) -> PlacedBody | NoPlace:
        """Return a place for a body of this length, if it is to have one and there is one."""
        if length <= _PLACED or accepted.contents_at == NOWHERE:
            return NO_PLACE
        memory = self.memory.take(length, accepted.contents_at)
        return NO_PLACE if memory is None else PlacedBody(memory)


def _do_nothing() -> None:
    """Stand in for `resume` once there is nothing left to read."""


class PartsBody:
    """A body that a handler reads in pieces. See `BodyReader`."""

    def __init__(self, limit: int, resume: Callable[[], None]) -> None:
        """`limit` in bytes. `resume` is called when the connection may go on reading."""
        self._limit = limit
        self._resume = resume
        self._pieces: deque[Buffer] = deque()
        self._waiting = 0  # bytes in `_pieces`
        self._size = 0
        self._is_whole = False
        self._is_broken = False
        self._arrival = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """True if the reader has to take something before more is received."""
        return self._waiting >= _WANTED

    @property
    def _is_too_large(self) -> bool:
        return 0 < self._limit < self._size

    async def read(self) -> bytes:
        """Return the next piece, `b""` at the end."""
        return bytes(await self.read_piece())

    async def read_piece(self) -> Buffer:
        """Read a piece in the form in which it has come."""
        while not (self._pieces or self._is_whole or self._is_broken or self._is_too_large):
            self._arrival.clear()
            await self._arrival.wait()
        if self._is_broken:
            raise ClientGoneError
        if self._is_too_large:
            raise too_large(self._limit)
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        was_full = self.is_full
        self._waiting -= len(piece)
        if was_full and not self.is_full:
            self._resume()
        return piece

    def take(self, pieces: Sequence[Buffer]) -> None:
        """Append to it. What is beyond the limit is dropped, since the reader is told of it."""
        for piece in pieces:
            self._size += len(piece)
            if piece and not self._is_too_large:
                self._pieces.append(piece)
                self._waiting += len(piece)
        self._arrival.set()

    def complete(self) -> None:
        """Note that all of it has come."""
        self._is_whole = True
        self._arrival.set()

    def break_off(self) -> None:
        """Note that the rest will never come."""
        self._is_broken = True
        self._resume = _do_nothing  # the connection's, which refers to this body
        self._pieces.clear()
        self._arrival.set()


def too_large(limit: int) -> GeartrainError:
    """Say that a body is larger than `limit` bytes."""
    msg = f"The request body is larger than the limit of {limit} bytes. The server's --max-body-size sets it."
    return GeartrainError(Code.TOO_LARGE, msg)
