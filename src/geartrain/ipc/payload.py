"""Transport of a payload's bytes: in the message, in a file, or in shared memory.

Parent and worker write and read payloads with the same two classes, so the thresholds are known here only. Small pieces
and plain JSON travel in the message. Packed pieces and long texts of inputs, between `shared_memory.WORTHWHILE` and
`shared_memory.LARGEST`, lie in the memory that both sides share for the slot, if the other side has read what was there
before. An input whose body was received in memory that the worker can open stays there (`ipc.body_memory`). What is
larger than `framing.INLINE_LIMIT`, and lies in none of them, is written to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.messages import InFile, Inline, InMemory, InputPayload, Payload, Received
from geartrain.ipc.shared_memory import LARGEST, WORTHWHILE, MemoryRegion

RegionSource = Callable[[], Sequence[MemoryRegion]]
"""Gives the regions of shared memory, made or opened at the first call; none if there are none. May raise `OSError`."""


BodySource = Callable[[Received], memoryview]
"""Gives what lies in a body. May raise `OSError`."""

_LEFT_OUT: Final = -1  # in place of an offset
_NOWHERE: Final = -1  # in place of the number of a region


def _no_body(_: Received) -> memoryview:
    msg = "a payload is said to lie in a body, and only inputs do"
    raise OSError(msg)


class PayloadWriter:
    """Writes what the other side of a slot shall read."""

    __slots__ = ("_new_file", "_regions", "_written")

    def __init__(self, regions: RegionSource, new_file: Callable[[], Path]) -> None:
        """`new_file` gives the path of a file that does not exist yet, in a folder that does."""
        self._regions = regions
        self._new_file = new_file
        self._written: Sequence[MemoryRegion] = ()  # the one that was written last

    def place(self, parts: Sequence[Buffer], *, may_share: bool, is_stale: bool = False) -> Payload | None:
        """Put one piece, given in parts, where it travels best; None if it is too large and has to go to a file.

        With `may_share` it may be left in shared memory. The other side has to be told of it then, or `withdraw` be
        called. `is_stale`: what lies there will never be read, so it may be overwritten.
        """
        size = sum(map(len, parts))
        if may_share and size > WORTHWHILE:
            if is_stale:
                self.withdraw()
            (shared,) = self.share([parts])
            if shared is not None:
                return shared
        return Inline(b"".join(parts)) if size <= INLINE_LIMIT else None

    def share(self, pieces: Sequence[Sequence[Buffer]]) -> list[InMemory | None]:
        """Leave pieces in shared memory, one behind the other; None for each piece that has to travel otherwise.

        The memory holds one frame's pieces at a time. The other side has to be told of all of them in one frame, or
        `withdraw` be called: until then the memory stays taken.
        """
        chosen: list[tuple[int, int]] = []  # of each piece its size and its offset, which is negative if it is left out
        parts: list[Buffer] = []
        total = 0  # bytes
        for piece in pieces:
            size = sum(map(len, piece))
            if total + size > LARGEST:
                chosen.append((size, _LEFT_OUT))
                continue
            chosen.append((size, total))
            parts += piece
            total += size
        number = self._write(parts) if total > WORTHWHILE else _NOWHERE
        if number == _NOWHERE:
            return [None] * len(pieces)
        return [None if offset == _LEFT_OUT else InMemory(size, offset, number) for size, offset in chosen]

    def withdraw(self) -> None:
        """Take back what `share` has left: the other side will not be told."""
        for region in self._written:
            region.withdraw()

    def to_file(self, parts: Sequence[Buffer]) -> InFile:
        """Write one piece to a new file, which its reader deletes. Raises `OSError`; no file is left then."""
        path = self._new_file()
        try:
            with path.open("wb") as file:
                file.writelines(parts)
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        return InFile(str(path))

    def _write(self, parts: Sequence[Buffer]) -> int:
        """Write to the first region that is free, and return its number."""
        with suppress(OSError):  # no memory is left: the payload travels in another way
            for number, region in enumerate(self._regions()):
                if region.is_free():
                    region.write(parts)
                    self._written = (region,)
                    return number
        return _NOWHERE


class PayloadReader:
    """Reads what the other side of a slot has written."""

    __slots__ = ("_received", "_regions")

    def __init__(self, regions: RegionSource, received: BodySource = _no_body) -> None:
        self._regions = regions
        self._received = received

    def read(self, payload: InputPayload) -> Buffer:
        """Return the bytes of a payload. Raises `OSError` if they are not where it says.

        A file is deleted once it has been read. What lies in shared memory is seen in place: let go of it, and call
        `discard` when all payloads of the frame have been read.
        """
        if isinstance(payload, Inline):
            return payload.data
        if isinstance(payload, InMemory):
            return region_of(self._regions, payload.region).view(payload.offset + payload.size)[payload.offset :]
        if isinstance(payload, Received):
            return self._received(payload)
        path = Path(payload.path)
        data = path.read_bytes()
        path.unlink(missing_ok=True)
        return data

    def discard(self, payload: InputPayload) -> None:
        """Release a payload, whether it has been read or not: delete its file, free its memory. Never raises."""
        if isinstance(payload, (Inline, Received)):  # nearly all
            return
        with suppress(OSError):
            if isinstance(payload, InMemory):
                region_of(self._regions, payload.region).free()
            else:
                Path(payload.path).unlink(missing_ok=True)


def region_of(regions: RegionSource, number: int) -> MemoryRegion:
    """Return the region of a number. Raises `OSError` if there is none."""
    for each, region in enumerate(regions()):
        if each == number:
            return region
    msg = "a payload is said to lie in shared memory, and there is none"
    raise OSError(msg)
