"""Memory that parent and worker share, for data that a socket would carry more slowly.

It has no name in any file system: the parent makes it, the worker opens it through the parent's descriptor in `/proc`,
and the kernel frees it when both have closed it, however they end. It is not bounded by the size of `/dev/shm`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

WORTHWHILE: Final = 16 * 1024  # bytes; what is smaller goes through the socket faster
LARGEST: Final = 32 * 1024**2  # bytes of one piece; to copy more would hold up the parent's loop for too long
MAX_KEPT: Final = 64 * 1024**2  # bytes that the slots of a worker keep between two calls, of inputs and of outputs each
_LEAST_WARM: Final = 1024**2  # bytes of one slot
HEADER: Final = 64  # bytes in front of the contents; the first one says what becomes of them
_FREE: Final = 0
_FULL: Final = 1  # the contents are still to be read
_TRIMMED: Final = 2  # free, and the system has been given memory back

Buffer = bytes | bytearray | memoryview


def kept_by_each(slots: int) -> int:
    """Return the bytes of memory that a slot keeps between two calls, for a worker with so many slots."""
    return max(_LEAST_WARM, MAX_KEPT // max(slots, 1) // mmap.PAGESIZE * mmap.PAGESIZE)


class MemoryRegion:
    """One region for one piece at a time, mapped once, grown when needed.

    What is in it belongs to the writer until the other side has been told of it, and to the reader until `free`. Made
    with `create` or `open`, which raise `OSError` where the system has no such memory.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self.allocated = 0  # bytes, by this side as the writer
        self._seen = 0  # bytes, by this side as the reader, since it has given memory back
        self.kept = MAX_KEPT  # bytes that stay when the reader is done

    @classmethod
    def create(cls) -> MemoryRegion:
        """Make empty memory."""
        if not hasattr(os, "memfd_create"):  # pragma: no cover - Linux has it
            msg = "this system has no anonymous shared memory"
            raise OSError(msg)
        fd = os.memfd_create("geartrain-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # it cannot shrink while the other side reads
        return cls(fd)

    @classmethod
    def open(cls, path: str) -> MemoryRegion:
        """Open the memory of another process."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        """Path for other processes of the same user, as long as this one has it open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

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
        """Close the memory. Repeating it is harmless."""
        self._unmap()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def trim(self) -> None:
        """Give all of the memory back to the system; this side is the writer, and there is no reader."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_REMOVE)
            self.allocated = 0

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


def watchable(memory: mmap.mmap) -> Any:
    """Return all of the memory as an array, which each view of it refers to.

    A weak reference to the array tells when the last view is gone. The array takes attributes.
    """
    return _array_type(len(memory)).from_buffer(memory)
