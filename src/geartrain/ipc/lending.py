"""Makes known when nobody reads memory any more that has been lent."""

from __future__ import annotations

import ctypes
import mmap
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=256)  # to make one takes as long as to copy kilobytes
def _array_type(size: int) -> type[Any]:
    return ctypes.c_char * size


def watchable(memory: mmap.mmap) -> Any:
    """Return all of the memory as an array, which each view of it refers to.

    A weak reference to the array tells when the last view is gone. The array takes attributes.
    """
    return _array_type(len(memory)).from_buffer(memory)
