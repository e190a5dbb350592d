"""The outputs that a worker leaves in the memory that it shares with the parent."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, Final

from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.messages import InMemory
from geartrain.ipc.payload import RegionSource, region_of
from geartrain.ipc.shared_memory import HEADER, MemoryRegion, watchable

_WORTHWHILE: Final = 64 * 1024  # bytes; what is smaller is copied faster
_NOTHING: Final = memoryview(b"")


class LentOutputs:
    """Reads the outputs of a slot, frame by frame: `read` each one, then `finish`.

    A large one is lent: it is read where it lies, and the region that holds it is free again when no view of it is
    left. Until then the worker writes to another region, and what it writes there is copied, so that it never waits for
    a client that is slow to read.
    """

    def __init__(self, regions: RegionSource) -> None:
        self._regions = regions
        self._is_lent = False  # a region is
        self._watch: weakref.ref[Any]  # of that
        self._frame = _NOTHING  # source of the lent outputs of the current frame
        self._copied: list[MemoryRegion] = []  # the region of the frame, if it is not lent

    def read(self, payload: InMemory, *, may_lend: bool) -> Buffer:
        """Return an output. Raises `OSError` if it is not where it is said to be."""
        begin, end = payload.offset, payload.offset + payload.size
        region = region_of(self._regions, payload)
        if may_lend and not self._is_lent and not self._copied and payload.size >= _WORTHWHILE:
            self._frame = self._lend(region, end)
        contents = region.view(end)
        if may_lend and end <= len(self._frame):
            return self._frame[begin:end]
        if not self._frame:
            self._copied = [region]
        return bytes(contents[begin:])

    def finish(self) -> None:
        """Let the worker write again where nothing is lent. Harmless if nothing has been read."""
        self._frame = _NOTHING
        copied, self._copied = self._copied, []
        for region in copied:
            region.free()

    def _lend(self, region: MemoryRegion, size: int) -> memoryview:
        """Return all that lies in a region, which is `size` bytes or more."""
        array = watchable(region.memory(size))
        self._is_lent = True
        self._watch = weakref.ref(array, lambda _: self._take_back(region))
        return memoryview(array).cast("B")[HEADER:]

    def _take_back(self, region: MemoryRegion) -> None:
        """Let the worker write there again. Called by any thread."""
        with suppress(OSError, ValueError):  # it may have been closed
            region.free()
        self._is_lent = False
