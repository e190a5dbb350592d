"""Outputs of other models where they lie, mapped into this process as its own.

An array over such a mapping is the author's: the kernel copies a page of it when that is first written to. Until then
its memory is that of the server, which holds it. An array that is only passed on, to another model or as an output,
needs no copy: the server receives its place. The kernel's table of pages shows if anything has been written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

from geartrain.domain.tensors.tensor import Buffer, Tensor, unpack
from geartrain.ipc.memory import HEADER
from geartrain.ipc.messages import Handle

MAPPED_FROM: Final = 256 * 1024  # bytes; what is smaller is copied faster than mapped
MOST: Final = 64  # mappings at a time; other outputs are copied
_PAGE: Final = mmap.PAGESIZE
_ENTRY: Final = 8  # bytes of a page in /proc/self/pagemap
_KIND: Final = 61  # the highest bits of an entry: in memory, swapped out, of a file
_UNTOUCHED: Final = (0b000, 0b101)  # never looked at; in memory as the file has it
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_FAILED: Final = ctypes.c_void_p(-1).value

Run = tuple[int, int]
"""The run of a call: its slot and its serial number."""


class _Mapping:
    """One output, mapped privately; it is unmapped with the last view of it."""

    def __init__(self, place: Handle, run: Run) -> None:
        """Raise `OSError` if there is no such memory."""
        begin = HEADER + place.offset
        first = begin - begin % _PAGE
        self.place = place
        self.run = run
        self.length = begin + place.size - first
        self.base = _map(place.path, first, self.length)
        self.address = self.base + begin - first
        self._array: weakref.ref[Any] | None = None

    def view(self) -> memoryview:
        """Return the output. To be called once."""
        array = _array_type(self.length).from_address(self.base)
        self._array = weakref.ref(array)
        weakref.finalize(array, _library().munmap, self.base, self.length).atexit = False
        return memoryview(array).cast("B")[self.address - self.base :]

    def array(self) -> Any:
        """Return the array below all views; None if there is none any more."""
        return None if self._array is None else self._array()

    def contents(self) -> memoryview:
        """Return the output for a moment: what is returned does not keep it mapped."""
        return memoryview(_array_type(self.place.size).from_address(self.address)).cast("B")

    def has(self, address: int, size: int) -> bool:
        """True if so many bytes from an address on are of the output."""
        return self.address <= address and address + size <= self.address + self.place.size

    def make_own(self) -> bool:
        """Copy all pages that are not copied yet; return False if there is no memory for that."""
        return not _library().madvise(self.base, self.length, _POPULATE_WRITE)


class MappedAnswers:
    """The outputs that are mapped here, by the numbers of the calls that they answer."""

    def __init__(self) -> None:
        self._live: dict[int, _Mapping] = {}
        self._over: deque[int] = deque()  # without a view; both ends are safe for two threads

    def __len__(self) -> int:
        """The number of outputs that are mapped."""
        return len(self._live)

    def map(self, number: int, place: Handle, run: Run) -> memoryview | None:
        """Return an output where it lies; None if it has to be copied. `run` is the one that has made the call."""
        if place.size < MAPPED_FROM or len(self._live) >= MOST or not can_map():
            return None
        try:
            mapping = _Mapping(place, run)
        except OSError:
            return None
        view = mapping.view()
        self._live[number] = mapping
        weakref.finalize(mapping.array(), self._drop, number).atexit = False
        return view

    def _drop(self, number: int) -> None:
        """Note that the last view is gone. Called in any thread, at any place of the author's code."""
        if self._live.pop(number, None) is not None:
            self._over.append(number)

    def take_over(self) -> list[int]:
        """Return the calls whose outputs have no view any more, each once."""
        over = self._over
        return [over.popleft() for _ in range(len(over))]

    def end_run(self, run: Run) -> tuple[int, ...]:
        """Make what outlives its run the author's own; return the calls for which there was no memory."""
        kept = []
        for number, mapping in list(self._live.items()):
            if mapping.run != run:
                continue
            array = mapping.array()
            if array is None or mapping.make_own():
                self._live.pop(number, None)
            else:
                kept.append(number)
            del array
        return tuple(kept)

    def place_of(self, json: bytes, tensors: Sequence[Tensor]) -> Handle | None:
        """Return the place of an output of these values, if it is one of another model as that has given it."""
        if not self._live or not tensors:
            return None
        mapping = self._find(max(tensors, key=lambda tensor: len(tensor.data)).data)
        if mapping is None:
            return None
        of_model, theirs = unpack(mapping.contents())
        if json != of_model or len(theirs) != len(tensors):
            return None
        same = all(map(_is_same, tensors, theirs))
        return mapping.place if same and _is_untouched(mapping.address, mapping.place.size) else None

    def place_of_contents(self, data: Buffer) -> Handle | None:
        """Return the place of the contents of the first tensor of an output, if another model has given them so."""
        mapping = self._find(data) if self._live else None
        if mapping is None:
            return None
        address, place = _address_of(data), mapping.place
        first = unpack(mapping.contents())[1][0].data
        whole = address == _address_of(first) and len(data) == len(first)
        if not whole or not _is_untouched(address, len(data)):
            return None
        return Handle(place.path, place.offset + address - mapping.address, len(data))

    def _find(self, data: Buffer) -> _Mapping | None:
        if type(data) is not memoryview or not len(data):
            return None
        address = _address_of(data)
        return next((each for each in list(self._live.values()) if each.has(address, len(data))), None)


def _is_same(one: Tensor, other: Tensor) -> bool:
    if (one.name, one.datatype, one.shape) != (other.name, other.datatype, other.shape):
        return False
    if type(one.data) is memoryview and type(other.data) is memoryview and len(one.data):
        return len(one.data) == len(other.data) and _address_of(one.data) == _address_of(other.data)
    return one.data == other.data


def _is_untouched(address: int, size: int) -> bool:
    """True if nothing has been written to the pages of these bytes since they were mapped privately."""
    import numpy as np  # all arrays are of it

    first, last = address // _PAGE, (address + size - 1) // _PAGE
    count = last - first + 1
    try:
        pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        data = os.pread(pages, count * _ENTRY, first * _ENTRY)
    finally:
        os.close(pages)
    kinds = np.frombuffer(data, np.uint64) >> np.uint64(_KIND)
    return len(kinds) == count and bool(np.isin(kinds, _UNTOUCHED).all())


def _address_of(data: Buffer) -> int:
    import numpy as np

    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def _map(path: str, first: int, length: int) -> int:
    """Map a file privately and return the address. A `mmap` of Python would hold a descriptor as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size < first + length:
            msg = f"{length} bytes at {first} are to be in shared memory that has less"
            raise OSError(msg)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        base: int | None = _library().mmap(None, length, protection, mmap.MAP_PRIVATE, fd, first)
    finally:
        os.close(fd)
    if base is None or base == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return base


@lru_cache(maxsize=256)
def _array_type(size: int) -> type[Any]:
    return ctypes.c_char * size


@cache
def can_map() -> bool:
    """True if the system maps memory as this module needs it: tried once, with two pages."""
    if not hasattr(os, "memfd_create"):  # pragma: no cover - Linux has it
        return False
    try:
        fd = os.memfd_create("geartrain-probe", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, bytes(2 * _PAGE))
        mapping = _Mapping(Handle(f"/proc/self/fd/{fd}", 0, 2 * _PAGE - HEADER), (0, 0))
        view = mapping.view()
        looked_at = view[0] == view[-1] and _is_untouched(mapping.base, 2 * _PAGE)
        view[0] = 1
        written = not _is_untouched(mapping.base, _PAGE) and _is_untouched(mapping.base + _PAGE, _PAGE)
        own = mapping.make_own() and not _is_untouched(mapping.base + _PAGE, _PAGE)
    except OSError:
        return False
    else:
        return looked_at and written and own
    finally:
        os.close(fd)
