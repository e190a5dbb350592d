"""Memory for bodies of requests: the server receives them there, and workers read them where they lie.

A body is aligned so that the contents of a tensor in it need no copy on their way to a worker: what a packed input has
in front of them is written over what the body had there, which has been read by then.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any, Final

from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.messages import Received
from geartrain.ipc.shared_memory import HEADER, LARGEST, MemoryRegion, watchable

LIMIT: Final = 64 * 1024**2  # bytes of all regions together
_MOST: Final = 32  # regions, which all workers keep open
_ALIGNMENT: Final = 64  # bytes, as of packed inputs
_ROOM: Final = 1024  # bytes in front of a body, for what a packed input has there


class _Region:
    """A region for one body at a time."""

    def __init__(self) -> None:
        self.memory = MemoryRegion.create()
        self.size = 0  # bytes that it takes
        self.is_idle = False  # no body has been received since the last `tidy`
        self._watch: weakref.ref[Any] | None = None

    def lend(self, begin: int, end: int, *, contents_at: int, returned: deque[_Region]) -> memoryview:
        """Return a stretch of it. When the last view of that is gone, the region is appended to `returned`."""
        memory = self.memory.reserve(end)
        self.size = self.memory.allocated
        array = watchable(memory)
        array.body = _Body(self.memory, contents_at)
        # It refers to `returned` and not to the pool, so neither keeps the other alive.
        self._watch = weakref.ref(array, lambda _: returned.append(self))
        return memoryview(array).cast("B")[begin:end]

    def trim(self) -> None:
        """Give its memory back to the system."""
        self.memory.trim()
        self.size = 0


class _Body:
    """Place of a body."""

    __slots__ = ("contents_at", "memory")

    def __init__(self, memory: MemoryRegion, contents_at: int) -> None:
        self.memory = memory
        self.contents_at = contents_at  # in the memory


class BodyMemory:
    """The regions of a server. A region is free again when nothing refers to its body any more.

    There is room for a bounded number of bodies; the others are received as if there were none of this. That also holds
    for clients that announce a large body and are slow to send it.
    """

    def __init__(self) -> None:
        self._free: list[_Region] = []
        self._lent: set[_Region] = set()  # those that have a body
        self._returned: deque[_Region] = deque()  # by any thread
        self._is_closed = False

    def take(self, size: int, contents_at: int) -> memoryview | None:
        """Return memory for a body of `size` bytes, whose contents from `contents_at` on are aligned; None without.

        It is given back when no view of it is left.
        """
        at = HEADER + -(-(_ROOM + contents_at) // _ALIGNMENT) * _ALIGNMENT
        begin = at - contents_at
        end = begin + size
        if contents_at > size or end > LARGEST or self._is_closed:
            return None
        self._collect()
        try:
            region = self._find(end)
            if region is None:
                return None
            view = region.lend(begin, end, contents_at=at, returned=self._returned)
        except OSError:  # the system has no such memory, or none left
            return None
        region.is_idle = False
        self._free.remove(region)
        self._lent.add(region)
        return view

    def tidy(self) -> None:
        """Give the system the memory that has not been used since the last call. To be called once a second."""
        self._collect()
        for region in self._free:
            if region.is_idle and region.size:
                region.trim()
            region.is_idle = True

    def close(self) -> None:
        """Close it. What is lent stays until nothing refers to it."""
        self._collect()
        self._is_closed = True
        for region in (*self._free, *self._lent):
            region.memory.close()
        self._free.clear()
        self._lent.clear()

    def _find(self, end: int) -> _Region | None:
        for region in reversed(self._free):  # the latest ones are in the caches
            if region.size >= end:
                return region
        lent = sum(region.size for region in self._lent)
        if lent + sum(region.size for region in self._free) + end > LIMIT:
            for region in self._free:
                region.trim()
            if lent + end > LIMIT:
                return None
        if len(self._free) + len(self._lent) < _MOST:
            self._free.append(_Region())
        return self._free[-1] if self._free else None

    def _collect(self) -> None:
        """Take back what nothing refers to any more."""
        returned = self._returned
        while returned:
            region = returned.popleft()
            self._lent.discard(region)
            if not self._is_closed:
                self._free.append(region)


def is_received(contents: Buffer) -> bool:
    """True if contents lie in memory for bodies."""
    return type(contents) is memoryview and type(getattr(contents.obj, "body", None)) is _Body


def received(contents: Buffer, head: bytes) -> Received | None:
    """Put a head in front of contents where they have been received; None if they lie elsewhere.

    What stood there is lost. A worker may read both as long as a view of the body is held.
    """
    if type(contents) is not memoryview or not is_received(contents):
        return None
    array: Any = contents.obj
    body: _Body = array.body
    begin, end = body.contents_at - len(head), body.contents_at
    if begin < HEADER or ctypes.addressof(ctypes.c_char.from_buffer(contents)) != ctypes.addressof(array) + end:
        return None
    memoryview(array).cast("B")[begin:end] = head
    return Received(body.memory.path, len(head) + len(contents), begin - HEADER)
