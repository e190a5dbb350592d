"""Contents of a reference, the port of the services that have them, and their errors."""

from __future__ import annotations

import errno
import hashlib
import pathlib
import re
from collections.abc import AsyncGenerator
from typing import Final, Protocol

import msgspec

from geartrain.domain.remote.progress import UNKNOWN_SIZE

_QUERY: Final = re.compile(r"(https?://[^\s?\"')]*)\?[^\s\"')]*")
_USER: Final = re.compile(r"(https?://)[^\s/@\"')]*@")
_LONGEST: Final = 400  # characters of what a service or a library says

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MAX_FILES: Final = 100_000


class RemoteError(Exception):
    """It cannot be fetched; the message says what, why, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnreachableError(RemoteError):
    """The service cannot be reached, breaks off, or has a fault of its own: another try may succeed."""


def is_unreachable(error: Exception) -> bool:
    """True if another try may succeed."""
    return isinstance(error, UnreachableError)


class ChangedError(RemoteError):
    """The file is another one than at the beginning of its download."""


class MissingExtraError(RemoteError):
    """A library is not installed."""

    def __init__(self, shown: str, module: str) -> None:
        super().__init__(f"{shown}: {module} is not installed; install it with: pip install 'geartrain[remote]'")


def without_secrets(text: str) -> str:
    """Return a library's message in one line, without signatures of URLs, users and passwords."""
    line = " ".join(text.partition("\n\nDebug source")[0].split())
    line = _USER.sub(r"\1", _QUERY.sub(r"\1", line))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def is_full(error: OSError) -> bool:
    """True if a disk is full, or no more may be written to it."""
    return error.errno in _FULL


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a reference.

    `path` is where it lies below the reference, with slashes. `address` is how its service finds it. `size` is in
    bytes, or `UNKNOWN_SIZE`. `etag` changes with the content, "" if the service has none. `sha256` is what the service
    says of its content, "" for nothing. `has_ranges`: a part of it can be asked for; over HTTP with `if_range`, if that
    is not empty.
    """

    path: str
    address: str
    size: int
    etag: str = ""
    sha256: str = ""
    has_ranges: bool = True
    if_range: str = ""

    @property
    def can_resume(self) -> bool:
        """True if a download that was broken off can go on later."""
        return bool(self.etag) and self.has_ranges and self.size != UNKNOWN_SIZE


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a reference. `is_single`: it names a file, and no folder."""

    files: tuple[RemoteFile, ...]
    is_single: bool = False

    @property
    def version(self) -> str:
        """Return a name that changes when any file changes, is added or removed. Letters and digits."""
        lines = [f"{each.path}\0{each.size}\0{each.etag}\0{each.sha256}" for each in self.files]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    @property
    def tells_changes(self) -> bool:
        """True if another listing differs when the content of a file does."""
        return all(each.etag or each.sha256 for each in self.files)

    @property
    def size(self) -> int:
        """All bytes, or `UNKNOWN_SIZE` if the size of a file is not known."""
        sizes = [each.size for each in self.files]
        return UNKNOWN_SIZE if UNKNOWN_SIZE in sizes else sum(sizes)


class Source(Protocol):
    """A service that has the files of one reference. It belongs to one event loop."""

    async def look(self) -> Listing:
        """Return the files that are there now.

        Raises RemoteError: there are none, or they may not be read; `UnreachableError` where another try may succeed.
        """

    def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Give the bytes of a file from `start` to before `end`, in pieces.

        `end` is `UNKNOWN_SIZE` for all of a file of unknown size; `start` is 0 then. Raises `UnreachableError` where
        another try may go on, `ChangedError` if it is another file now, RemoteError otherwise.
        """

    async def close(self) -> None:
        """Close the connections."""


def checked(files: list[RemoteFile], shown: str) -> tuple[RemoteFile, ...]:
    """Return files in order; raises RemoteError for paths that could lead elsewhere, or cannot all be written.

    Empty objects that stand for folders are left out.
    """
    if len(files) > MAX_FILES:
        raise RemoteError(f"{shown}: there are more than {MAX_FILES} files; name a folder below it")
    folders: set[str] = set()
    for file in files:
        parts = file.path.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in file.path or "\\" in file.path:
            raise RemoteError(f"{shown}: the file {file.path!r} has no path that could be written; rename it there")
        folders.update(str(parent) for parent in pathlib.PurePosixPath(file.path).parents)
    for file in files:
        if file.path in folders and file.size:
            raise RemoteError(f"{shown}: {file.path!r} is a file and a folder at once; rename one of them there")
    return tuple(sorted((file for file in files if file.path not in folders), key=lambda file: file.path))
