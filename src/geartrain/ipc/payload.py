"""How the bytes of a payload get from one side to the other: in the message, in a file, or in shared memory.

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

from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.messages import InFile, Inline, InMemory, InputPayload, Payload, Received
from geartrain.ipc.shared_memory import LARGEST, WORTHWHILE, MemoryRegion

RegionSource = Callable[[], MemoryRegion | None]
"""Gives the shared memory, made or opened at the first call; None if there is none. May raise `OSError`."""


BodySource = Callable[[Received], memoryview]
"""Gives what lies in a body. May raise `OSError`."""


def _no_body(_: Received) -> memoryview:
    msg = "a payload is said to lie in a body, and only inputs do"
    raise OSError(msg)


class PayloadWriter:
    """Writes what the other side of a slot shall read."""

    __slots__ = ("_memory", "_new_file")

    def __init__(self, memory: RegionSource, new_file: Callable[[], Path]) -> None:
        """`new_file` gives the path of a file that does not exist yet, in a folder that does."""
        self._memory = memory
        self._new_file = new_file

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
        placed: list[InMemory | None] = []
        chosen: list[Buffer] = []
        total = 0  # bytes
        for parts in pieces:
            size = sum(map(len, parts))
            if total + size > LARGEST:
                placed.append(None)
                continue
            placed.append(InMemory(size, total))
            chosen += parts
            total += size
        if total > WORTHWHILE and self._write(chosen):
            return placed
        return [None] * len(pieces)

    def withdraw(self) -> None:
        """Take back what `share` has left: the other side will not be told."""
        with suppress(OSError):
            region = self._memory()
            if region is not None:
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

    def _write(self, parts: Sequence[Buffer]) -> bool:
        try:
            region = self._memory()
            if region is None or not region.is_free():
                return False
            region.write(parts)
        except OSError:  # no memory is left: the payload travels in another way
            return False
        return True


class PayloadReader:
    """Reads what the other side of a slot has written."""

    __slots__ = ("_memory", "_received")

    def __init__(self, memory: RegionSource, received: BodySource = _no_body) -> None:
        self._memory = memory
        self._received = received

    def read(self, payload: InputPayload) -> Buffer:
        """Return the bytes of a payload. Raises `OSError` if they are not where it says.

        A file is deleted once it has been read. What lies in shared memory is seen in place: let go of it, and call
        `free` when all payloads of the frame have been read.
        """
        if isinstance(payload, Inline):
            return payload.data
        if isinstance(payload, InMemory):
            return self._view(payload)
        if isinstance(payload, Received):
            return self._received(payload)
        path = Path(payload.path)
        data = path.read_bytes()
        path.unlink(missing_ok=True)
        return data

    def free(self) -> None:
        """Let the other side write to the shared memory again. Harmless if nothing is there."""
        with suppress(OSError):
            region = self._memory()
            if region is not None:
                region.free()

    def discard(self, payload: InputPayload) -> None:
        """Release a payload, whether it has been read or not: delete its file, free its memory. Never raises."""
        if isinstance(payload, (Inline, Received)):  # nearly all
            return
        if isinstance(payload, InMemory):
            self.free()
            return
        with suppress(OSError):
            Path(payload.path).unlink(missing_ok=True)

    def _view(self, payload: InMemory) -> memoryview:
        region = self._memory()
        if region is None:
            msg = "a payload is said to lie in shared memory, and there is none"
            raise OSError(msg)
        return region.view(payload.offset + payload.size)[payload.offset :]
