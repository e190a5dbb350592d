"""Objects of POSIX shared memory, as a client makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import NamedTuple


class SharedObject(NamedTuple):
    """An object: its key, and its contents."""

    name: str
    buf: memoryview


@contextlib.contextmanager
def shared_object(size: int) -> Iterator[SharedObject]:
    """Make an object of so many bytes, for the time of the block."""
    made = shared_memory.SharedMemory(create=True, size=size)
    assert made.buf is not None
    yield SharedObject(made.name, made.buf)
    made.close()
    made.unlink()
