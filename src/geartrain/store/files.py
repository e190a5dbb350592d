"""Large parts of events as files: written and safe on disk before the row that names them.

All methods block: they are for a thread.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from geartrain.store.errors import full, unavailable

IN_ROW: Final = ""
"""In place of the name of a file, for what is in its row."""

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Folder:
    """The files of one store."""

    def __init__(self, path: Path, *, above: int) -> None:
        """`above`: parts of more bytes than these become files."""
        self._path = path
        self._above = above

    def is_large(self, size: int) -> bool:
        """True if so many bytes go into a file."""
        return size > self._above

    def write(self, data: bytes) -> str:
        """Write a file; return its name once it is safe on disk. Raises `NO_STORAGE` or `STORE_UNAVAILABLE`."""
        name = secrets.token_hex(16)
        path = self._path / name
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self._path)
        except OSError as error:
            self.remove((name,))
            if error.errno in _FULL:
                raise full() from error
            raise unavailable(f"{path} cannot be written: {error.strerror}") from error
        return name

    def read(self, name: str) -> bytes:
        """Read a file; raise `FileNotFoundError`, or `STORE_UNAVAILABLE` for other reasons."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable(f"{self._path / name} cannot be read: {error.strerror}") from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that cannot be removed go when the store is opened again. Never raises."""
        for name in names:
            try:
                (self._path / name).unlink(missing_ok=True)
            except OSError:
                continue

    def remove_others(self, names: Collection[str]) -> None:
        """Remove the files that no row names: their server was lost before it could write the row."""
        try:
            found = [entry.name for entry in os.scandir(self._path)]
        except OSError:
            return
        self.remove(name for name in found if _NAME.fullmatch(name) is not None and name not in names)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
