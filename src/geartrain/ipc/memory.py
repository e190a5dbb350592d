"""Memory that parent and worker share, for data that a socket would carry more slowly.

A `Region` has no name in any file system: the parent makes it, workers open it through the parent's descriptor in
`/proc`, and the kernel frees it when all have closed it, however they end. It is not bounded by the size of `/dev/shm`.
A `Handle` is a stretch of a region, by the path that opens it. Contents are lent out as views: a `Lease` keeps the
region from being written again until the last view of it is gone.

`BodyMemory` are the regions in which the server receives bodies of requests, and which workers read where they lie. A
body is aligned so that the contents of a tensor in it need no copy on their way to a worker: the head of a packed input
is written over the part of the body in front of them, which has been read by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from geartrain.domain.tensors.tensor import Buffer, contents_at, room_at
from geartrain.ipc.messages import Handle

WORTHWHILE: Final = 16 * 1024  # bytes; what is smaller goes through the socket faster
LARGEST: Final = 32 * 1024**2  # bytes of one piece; to copy more would hold up the parent's loop for too long
MAX_KEPT: Final = 64 * 1024**2  # bytes that the slots of a worker keep between two calls, of inputs and of outputs each
_LEAST_WARM: Final = 1024**2  # bytes of one slot
HEADER: Final = 64  # bytes in front of the contents; the first one says what becomes of them
_FREE: Final = 0
_FULL: Final = 1  # the contents are still to be read
_TRIMMED: Final = 2  # free, and the system has been given memory back


def kept_by_each(slots: int) -> int:
    """Return the bytes of memory that a slot keeps between two calls, for a worker with so many slots."""
    return max(_LEAST_WARM, MAX_KEPT // max(slots, 1) // mmap.PAGESIZE * mmap.PAGESIZE)


class Region:
    """One region for one piece at a time, mapped once, grown when needed.

    What is in it belongs to the writer until the other side has been told of it, and to the reader until `free`. Made
    with `create` or `open`, which raise `OSError` where the system has no such memory.
    """

    def __init__(self, fd: int, path: str) -> None:
        """`path` opens it in other processes of the same user, as long as the one that made it has it open."""
        self.path = path
        self._fd = fd
        self._map: mmap.mmap | None = None
        self.allocated = 0  # bytes, by this side as the writer
        self._seen = 0  # bytes, by this side as the reader, since it has given memory back
        self.kept = MAX_KEPT  # bytes that stay when the reader is done
        self._watch: weakref.ref[Any] | None = None  # of the array that is lent

    @classmethod
    def create(cls) -> Region:
        """Make empty memory."""
        if not hasattr(os, "memfd_create"):  # pragma: no cover - Linux has it
            msg = "this system has no anonymous shared memory"
            raise OSError(msg)
        fd = os.memfd_create("geartrain-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # it cannot shrink while the other side reads
        return cls(fd, f"/proc/{os.getpid()}/fd/{fd}")

    @classmethod
    def open(cls, path: str) -> Region:
        """Open the memory of another process."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)

    def duplicate(self) -> Region:
        """Return the same memory with a descriptor of its own; raise `OSError` if this side has closed it."""
        fd = os.dup(self._fd)
        return Region(fd, f"/proc/{os.getpid()}/fd/{fd}")

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write parts one behind the other and return their size; raise `OSError` if there is not so much memory."""
        size = sum(map(len, parts))
        memory = self.reserve(HEADER + size)
        position = HEADER
        for part in parts:
            end = position + len(part)
            memory[position:end] = part
            position = end
        memory[0] = _FULL
        return size

    def is_free(self) -> bool:
        """True if the other side has read what was written last. It may have been told nothing yet."""
        return self._map is None or self._map[0] != _FULL

    def view(self, size: int) -> memoryview:
        """Return `size` bytes in place. The view has to be released before the other side writes again."""
        return memoryview(self.memory(size))[HEADER : HEADER + size]

    def memory(self, size: int) -> mmap.mmap:
        """Return all of the memory, with the header in front of the contents."""
        end = HEADER + size
        self._seen = max(self._seen, end)
        return self._mapped(end)

    def free(self) -> None:
        """Let the other side write again, and the system have the memory beyond what is `kept`."""
        memory = self._mapped(HEADER)
        if self._seen > self.kept:  # before the other side may write
            memory.madvise(mmap.MADV_REMOVE, self.kept, len(memory) - self.kept)
            self._seen = 0
            memory[0] = _TRIMMED
        else:
            memory[0] = _FREE

    def withdraw(self) -> None:
        """Take back what this side has written: it will never be read."""
        if self._map is not None and self._map[0] == _FULL:
            self._map[0] = _FREE

    def close(self) -> None:
        """Close the memory; where it is lent, with the last view of it. Repeating it is harmless."""
        self._unmap()
        fd, self._fd = self._fd, -1
        array = None if self._watch is None else self._watch()
        if fd >= 0 and array is None:
            os.close(fd)
        elif fd >= 0:  # another process may be about to open it by its path
            weakref.finalize(array, os.close, fd).atexit = False

    def trim(self, kept: int = 0) -> None:
        """Give the system the memory beyond `kept` bytes; this side is the writer, and there is no reader."""
        if self._map is not None and self.allocated > kept:
            self._map.madvise(mmap.MADV_REMOVE, kept, len(self._map) - kept)
            self.allocated = kept

    def lend(self, memory: mmap.mmap, over: Callable[[], None], *, contents_at: int = HEADER) -> memoryview:
        """Return all of `memory`, that of this region, and call `over`, in any thread, when the last view is gone.

        The contents begin at `contents_at`; a head may be written in front of them.
        """
        array = _array_type(len(memory)).from_buffer(memory)
        array.lease = Lease(self, contents_at)
        self._watch = weakref.ref(array, lambda _: over())
        return memoryview(array).cast("B")

    def reserve(self, size: int) -> mmap.mmap:
        """Return the memory with at least so many bytes allocated; raise `OSError` if there are not enough."""
        if self._map is not None and self._map[0] == _TRIMMED:
            self.allocated = 0
        if self.allocated < size:
            step = max(mmap.PAGESIZE, 1 << (size.bit_length() - 3))  # so that what grows slowly does not grow often
            # Allocated now, or the lack of it would be a signal that kills the process, at the first touch of a page.
            wanted = -(-size // step) * step
            os.posix_fallocate(self._fd, 0, wanted)
            self.allocated = wanted
        return self._mapped(size)

    def _mapped(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            there = os.fstat(self._fd).st_size
            if there < size:
                msg = f"{size} bytes are to be in shared memory that has {there}"
                raise OSError(msg)
            self._unmap()
            self._map = mmap.mmap(self._fd, there)
        return self._map

    def _unmap(self) -> None:
        memory, self._map = self._map, None
        if memory is not None:
            with contextlib.suppress(BufferError):  # a view of it is in use: it is unmapped with the last view
                memory.close()


@lru_cache(maxsize=256)  # to make one takes as long as to copy kilobytes
def _array_type(size: int) -> type[Any]:
    return ctypes.c_char * size


class Lease(msgspec.Struct, eq=False):
    """The region that lent contents lie in, which is not written again as long as there is a view of them.

    They begin at `contents_at` of its memory. `head`: the one that has been put in front of them, not before `room_at`.
    `hold` is called before they are kept for long, and returns False if they had better be copied.
    """

    region: Region
    contents_at: int
    room_at: int = HEADER
    head: bytes = b""
    hold: Callable[[], bool] | None = None


def lease_of(contents: Buffer) -> Lease | None:
    """Return the lease that contents are under, None if they lie in memory of this process alone."""
    found = getattr(contents.obj, "lease", None) if type(contents) is memoryview else None
    return found if type(found) is Lease else None


LIMIT: Final = 64 * 1024**2  # bytes of all regions together
_MOST: Final = 32  # regions, which all workers keep open
_ALIGNMENT: Final = 64  # bytes, as of packed inputs
MOST_OTHERS: Final = 8  # regions of other workers that a worker keeps open
_ROOM: Final = 1024  # bytes in front of a body, for what a packed input has there


class _BodyRegion:
    """A region for one body at a time."""

    def __init__(self) -> None:
        self.memory = Region.create()
        self.size = 0  # bytes that it takes
        self.is_idle = False  # no body has been received since the last `tidy`

    def lend(self, begin: int, end: int, *, contents_at: int, returned: deque[_BodyRegion]) -> memoryview:
        """Return a stretch of it. When the last view of that is gone, the region is appended to `returned`."""
        memory = self.memory.reserve(end)
        self.size = self.memory.allocated
        # It refers to `returned` and not to the pool, so neither keeps the other alive.
        return self.memory.lend(memory, lambda: returned.append(self), contents_at=contents_at)[begin:end]

    def trim(self) -> None:
        """Give its memory back to the system."""
        self.memory.trim()
        self.size = 0


class BodyMemory:
    """The regions of a server. A region is free again when nothing refers to its body any more.

    There is room for a bounded number of bodies; the others are received as if there were none of this. That also holds
    for clients that announce a large body and are slow to send it.
    """

    def __init__(self) -> None:
        self._free: list[_BodyRegion] = []
        self._lent: set[_BodyRegion] = set()  # those that have a body
        self._returned: deque[_BodyRegion] = deque()  # by any thread
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

    def _find(self, end: int) -> _BodyRegion | None:
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
            self._free.append(_BodyRegion())
        return self._free[-1] if self._free else None

    def _collect(self) -> None:
        """Take back what nothing refers to any more."""
        returned = self._returned
        while returned:
            region = returned.popleft()
            self._lent.discard(region)
            if not self._is_closed:
                self._free.append(region)


class OtherRegions:
    """Memory that the server lends this process, of other workers: the latest regions, known by their inodes.

    A path is only a number of a descriptor of the server, which another region may have next.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, Region] = OrderedDict()

    def view(self, place: Handle) -> memoryview:
        """Return the contents of a place, where they lie. Raises `OSError` if they cannot be opened."""
        fd = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
        number = os.fstat(fd).st_ino
        region = self._known.pop(number, None)
        if region is None:
            region = Region(fd, place.path)
        else:
            os.close(fd)
        self._known[number] = region
        if len(self._known) > MOST_OTHERS:
            self._known.popitem(last=False)[1].close()
        return region.view(place.offset + place.size)[place.offset :]


def give_room(piece: Buffer) -> None:
    """Let a head be put in front of the first tensor of a lent packed piece, behind the piece's own head."""
    lease = lease_of(piece)
    if type(piece) is not memoryview or lease is None or lease.head:
        return
    array: Any = piece.obj
    begin = ctypes.addressof(ctypes.c_char.from_buffer(piece)) - ctypes.addressof(array)
    lease.contents_at, lease.room_at = begin + contents_at(piece), begin + room_at(piece)


def place_head(contents: Buffer, head: bytes) -> Handle | None:
    """Put a head in front of contents where they have been received; None if they do not lie in such memory.

    None also if another head is there: its worker may read it at any time. What stood there before is lost.
    A worker may read both as long as a view of the contents is held.
    """
    lease = lease_of(contents)
    if type(contents) is not memoryview or lease is None:
        return None
    array: Any = contents.obj
    begin, end = lease.contents_at - len(head), lease.contents_at
    if begin < lease.room_at or ctypes.addressof(ctypes.c_char.from_buffer(contents)) != ctypes.addressof(array) + end:
        return None
    if not lease.head:
        lease.head = head
        memoryview(array).cast("B")[begin:end] = head
    elif lease.head != head:
        return None
    return Handle(lease.region.path, begin - HEADER, len(head) + len(contents))
