"""How Python and the C library hold the memory of a server: set once, when it is up."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_COLLECT_AFTER: Final = 20_000  # objects more than before

# Of the C library's malloc (mallopt(3)); sizes in bytes.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT: Final = 32 * 1024**2
_LARGEST_KEPT: Final = 8 * 1024**2  # what is larger goes back to the kernel at once


def tune_collector() -> None:
    """Have the garbage collector look at what predictions leave behind, and seldom at the server itself."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def tune_memory() -> None:
    """Have malloc keep what large tensors leave behind, for the next ones.

    By default it gives every buffer of some hundred kilobytes back to the kernel, and the next one costs a page fault
    for each 4 kB: gRPC with 600 kB each way is half as fast. Other C libraries than glibc have their own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)
