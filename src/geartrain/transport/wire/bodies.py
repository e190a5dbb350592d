"""Bodies of requests on their way in: where one ends, and where its bytes go."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Final, cast

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.state_machine import steps_to
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.exchange import NOWHERE, UNKNOWN_LENGTH, Accepted, Body, BodyMemory, ClientGoneError
from geartrain.transport.wire.limits import MAX_FIELDS, WireError

_LONGEST_LINE: Final = 1024  # bytes of the line before a chunk: its size and its extensions, which are ignored
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_EXTENSIONS: Final = 65_536  # bytes of extensions of one body
PLACED: Final = 65_536  # bytes; a body of more is received where it is to stay, if it can be
_SCRATCH: Final = 262_144  # bytes
_START: Final = 65_536  # bytes in which a body has announced its length, if it does
_NO_ROOM: Final = memoryview(b"")
_WANTED: Final = 262_144  # bytes that may wait for the reader of a body in parts


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
        """Take what has come, up to the length; return that as the only piece, and its size."""
        piece = data if len(data) <= self._left else data[: self._left]
        self._left -= len(piece)
        return [piece], len(piece)


Framing = LengthFraming | ChunkReader
"""Finds the end of a body."""


def framing(length: int, max_trailer_size: int) -> Framing:
    """Create the framing of a body of this length, `UNKNOWN_LENGTH` being that of one in chunks."""
    return ChunkReader(max_trailer_size) if length == UNKNOWN_LENGTH else LengthFraming(length)


class GatheredBody:
    """A body on its way to an exchange that takes it whole, counted against the budget of all bodies.

    It grows in place: pieces that are joined in the end would need twice the memory. A body with a place to stay grows
    there, unless it becomes longer than it has said.
    """

    __slots__ = ("_announced", "_budget", "_counted", "_first", "_grown", "_memory", "accepted", "size")

    def __init__(self, accepted: Accepted, budget: BufferBudget, memory: memoryview | None = None) -> None:
        """`memory`: the place of a body of announced length, as long as that."""
        self.accepted = accepted
        self.size = 0
        self._budget = budget
        self._memory = memory
        self._first = b""
        self._grown = bytearray()
        self._counted = 0  # bytes of the budget
        self._announced = UNKNOWN_LENGTH

    @property
    def is_too_large(self) -> bool:
        """True if more has come than is accepted, or will."""
        return 0 < self.accepted.max_body < max(self.size, self._announced)

    def take(self, pieces: Sequence[Buffer]) -> None:
        """Append to it. Raises `WireError` for a body that could never be held."""
        memory, before = self._memory, self.size
        if memory is not None and before + sum(map(len, pieces)) > len(memory):
            self._grown += memory[:before]
            memory = self._memory = None
        for piece in pieces:
            if memory is not None:
                memory[self.size : self.size + len(piece)] = piece
            elif not self.size and len(pieces) == 1:
                self._first = bytes(piece)
            else:
                if not self._grown:
                    self._grown += self._first
                    self._first = b""
                self._grown += piece
            self.size += len(piece)
        self._count(self.size - before)
        if self._announced == UNKNOWN_LENGTH and self.size < _START:
            self._announced = self.accepted.announced(self._grown or self._first)
        self._budget.check(max(self.size, self._announced))

    @property
    def room(self) -> memoryview:
        """The rest of its place; empty if it has none."""
        return _NO_ROOM if self._memory is None else self._memory[self.size :]

    def grow(self, size: int) -> None:
        """Note that so many bytes have been written to its room."""
        self.size += size
        self._count(size)

    def whole(self) -> Body:
        """Return it, complete, and keep nothing of it.

        One with a place is a view, as its exchange has asked for one (`Accepted.contents_at`).
        """
        memory, self._memory = self._memory, None
        if memory is not None:
            return cast("Body", memory if self.size == len(memory) else memory[: self.size])
        whole = self._grown or self._first
        self._first, self._grown = b"", bytearray()
        return whole

    def close(self) -> None:
        """Hold nothing, and count nothing."""
        self.whole()
        counted, self._counted = self._counted, 0
        self._budget.give_back(counted)

    def _count(self, size: int) -> None:
        self._counted += size
        self._budget.take(size)


class Places:
    """The places of large bodies, of all connections."""

    def __init__(self, memory: BodyMemory | None) -> None:
        self.memory = memory
        self.scratch = memoryview(bytearray(_SCRATCH))  # for what is read before it is known where it belongs

    def find(self, accepted: Accepted, length: int) -> memoryview | None:
        """Return a place for a body of this length, if it is to have one and there is one."""
        if self.memory is None or length <= PLACED or accepted.contents_at == NOWHERE:
            return None
        return self.memory.take(length, accepted.contents_at)

    def find_by(self, accepted: Accepted, first: Buffer, length: int) -> memoryview | None:
        """Return a place like `find`, for a body that begins so; its length may be `UNKNOWN_LENGTH`."""
        if self.memory is None:
            return None
        if length == UNKNOWN_LENGTH:
            length = accepted.announced(first)
        if length <= PLACED or 0 < accepted.max_body < length:
            return None
        contents_at = accepted.contents_of(first) if accepted.contents_at == NOWHERE else accepted.contents_at
        return None if contents_at == NOWHERE else self.memory.take(length, contents_at)


def _do_nothing() -> None:
    """Stand in for `resume` once there is nothing left to read."""


class PartsBody:
    """A body that a handler reads in pieces. See `BodyReader`."""

    def __init__(self, limit: int, resume: Callable[[], None], most: int = _WANTED) -> None:
        """`limit` in bytes. `resume` is called when the connection may go on reading; `most`: bytes that may wait."""
        self._limit = limit
        self._most = most
        self._resume = resume
        self._pieces: deque[Buffer] = deque()
        self._waiting = 0  # bytes in `_pieces`
        self._size = 0
        self.is_whole = False  # all of it has come
        self._is_broken = False
        self._arrival = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """True if the reader has to take something before more is received."""
        return self._waiting >= self._most

    @property
    def _is_too_large(self) -> bool:
        return 0 < self._limit < self._size

    async def read(self) -> bytes:
        """Return the next piece, `b""` at the end."""
        return bytes(await self.read_piece())

    async def read_piece(self) -> Buffer:
        """Read a piece in the form in which it has come."""
        while not (self._pieces or self.is_whole or self._is_broken or self._is_too_large):
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
        self.is_whole = True
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


class GatheringReader:
    """Cuts the pieces of a body anew, and counts what it holds. See `MessageReader`."""

    def __init__(self, body: PartsBody, budget: BufferBudget, patience: float) -> None:
        """`patience`: seconds for which it waits until others have given back memory for bodies; 0 for no limit."""
        self._body = body
        self._budget = budget
        self._patience = patience
        self._rest: Buffer = b""  # has come, and was not asked for yet
        self._counted = 0  # bytes of the budget

    async def read(self) -> bytes:
        """Return the body so far, or the next piece. See `BodyReader`."""
        self.close()
        if self._rest:
            rest, self._rest = self._rest, b""
            return bytes(rest)
        return await self._body.read()

    async def gather(self, size: int) -> Body:
        """Return the next `size` bytes. See `MessageReader`.

        Raises `GeartrainError` (`QUEUE_FULL`) if there is no memory for them.
        """
        if self._counted:
            self.close()
        if not size:
            return b""
        rest = self._rest or await self._body.read_piece()
        if len(rest) >= size:
            self._rest = rest[size:]
            return bytes(rest[:size])
        return await self._grow(rest, size)

    def close(self) -> None:
        """Count nothing any more."""
        counted, self._counted = self._counted, 0
        if counted:
            self._budget.give_back(counted)

    async def _grow(self, first: Buffer, size: int) -> Body:
        grown = bytearray(first)
        self._rest = b""
        await self._take(len(first))
        while len(grown) < size:
            piece = await self._body.read_piece()
            if not piece:
                break
            wanted = size - len(grown)
            if len(piece) > wanted:
                piece, self._rest = piece[:wanted], piece[wanted:]
            grown += piece
            await self._take(len(piece))
        return grown

    async def _take(self, size: int) -> None:
        """Count bytes, and wait until there is room for more."""
        budget = self._budget
        budget.take(size)
        self._counted += size
        if not budget.is_spent:
            return
        room = asyncio.Event()
        try:
            async with asyncio.timeout(self._patience or None):
                while budget.is_spent:
                    room.clear()
                    budget.wait(self, room.set)
                    await room.wait()
        except TimeoutError:
            text = "The bodies of other requests take all the memory that there is for bodies."
            msg = f"{text} Try again later. The server's --max-buffered-size sets it."
            raise GeartrainError(Code.QUEUE_FULL, msg) from None
        finally:
            budget.leave(self)
