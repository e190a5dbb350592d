"""Locks of outputs: one process at a time writes an output, or one share of it.

A lock is a file that its process has locked (`flock`), so it is free once the process is gone, however it ended. The
file names its holder, and is removed with the lock; that of several holders stays. On file systems without locks an
output is not locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from geartrain.dataset.errors import DatasetError

_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@contextlib.contextmanager
def locked(path: Path, *, output: Path, is_shared: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created with its folders. Blocks only for the file system.

    `output`: the name for errors. `is_shared`: others may hold it as well, as long as none has it alone. Raises
    `DatasetError` if another process holds it, or the file cannot be created.
    """
    created = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    try:
        descriptor = _lock(path, output, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
    except OSError as error:
        raise DatasetError(f"cannot write {output}: {error.strerror or error} ({path})") from error
    try:
        if not is_shared:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        if not is_shared:  # first, or another process could lock a removed file
            path.unlink(missing_ok=True)
        os.close(descriptor)
        for folder in created:
            with contextlib.suppress(OSError):  # there is an output in it
                folder.rmdir()


def _lock(path: Path, output: Path, kind: int) -> int:
    """Return the descriptor of the locked file."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if _is_file_of(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 300, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise DatasetError(
                f"{output} is being written by {holder}: wait for its end, or write to another place"
            ) from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed by its holder after it was opened here


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
