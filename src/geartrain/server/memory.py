"""Memory of this process: the usable amount, and settings of Python and of malloc."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from geartrain.bridge.resources import MEMBERSHIP, ROOT, folders, read
from geartrain.transport.wire.limits import WireLimits

_BODIES: Final = 4  # the part of the memory that the bodies of all connections may take together


def usable_memory() -> int:
    """Return the bytes that this process may use: the memory of the machine, or the limit of its control groups."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(installed, memory_limit(installed))


def memory_limit(otherwise: int, root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return the least memory limit of the own control group and of all above it, in bytes; `otherwise` without one.

    `root` and `membership`: see `control_groups.folders`.
    """
    v2, v1 = folders("memory", root, membership)
    texts = [read(folder / "memory.max") for folder in v2] + [read(folder / "memory.limit_in_bytes") for folder in v1]
    limits = [int(text) for text in map(str.strip, texts) if text.isdecimal() and int(text) > 0]
    return min(limits, default=otherwise)


def default_limits() -> WireLimits:
    """Return the limits of connections of a server whose operator says nothing of them."""
    return WireLimits(max_buffered_size=usable_memory() // _BODIES)


_COLLECT_AFTER: Final = 20_000  # objects more than before

# Of the C library's malloc (mallopt(3)); sizes in bytes.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_ARENAS: Final = 2  # that all threads share; by default each of them has its own, up to eight for a processor
_KEPT: Final = 32 * 1024**2
_LARGEST_KEPT: Final = 8 * 1024**2  # larger blocks go back to the kernel at once
_MOST_FREE: Final = 48 * 1024**2  # that malloc holds for later, beyond which it is trimmed
_EACH: Final = 5.0  # seconds between two looks at that


def tune_collector() -> None:
    """Have the garbage collector look at what predictions leave behind, and seldom at what has been made before.

    It is off while a server starts (`geartrain.cli.main`).
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    gc.enable()


def share_arenas() -> None:
    """Have threads that start from now on share the arenas of malloc.

    By default each has its own, whose free memory no other uses: of 42 MB in twelve arenas 24 MB were free after a
    quarter of an hour of mixed load.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)


def tune_memory() -> None:
    """Have malloc keep what large tensors leave behind, for the next ones.

    By default it gives every buffer of some hundred kilobytes back to the kernel, and the next one costs a page fault
    for each 4 kB: gRPC with 600 kB each way is half as fast. Other C libraries than glibc have their own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = (
        ("others", ctypes.c_size_t * 8),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )
    fordblks: int  # bytes that are free


@contextlib.asynccontextmanager
async def trimmed_memory() -> AsyncIterator[None]:
    """Give what is free back to the kernel, now and then, where malloc holds much of it.

    Malloc gives back by itself only what lies behind all that is in use: of a large stream one small object keeps all.
    """
    trimming = asyncio.ensure_future(_trim())
    try:
        yield
    finally:
        trimming.cancel()


async def _trim() -> None:
    library = ctypes.CDLL(None)
    info, trim = getattr(library, "mallinfo2", None), getattr(library, "malloc_trim", None)
    if info is None or trim is None:
        return
    info.restype = _MallocInfo
    while True:
        await asyncio.sleep(_EACH)
        if info().fordblks > _MOST_FREE:
            await asyncio.to_thread(trim, 0)
