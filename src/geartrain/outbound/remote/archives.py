"""Unpacks archives: nothing is written outside of the folder, and no more than a limit."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import posixpath
import shutil
import tarfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from geartrain.outbound.remote.errors import MissingExtraError, RemoteError
from geartrain.outbound.remote.store import MAX_FILES

_PIECE: Final = 1024**2
_LARGEST_RATIO: Final = 50  # of what is unpacked to the archive
_ALWAYS: Final = 1024**3  # bytes that may be unpacked whatever the size of the archive is
_BROKEN: Final = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, UnicodeError)


class _Unpacking:
    """One archive on its way into a folder, which is empty."""

    def __init__(self, folder: Path, *, shown: str, limit: int, abandoned: threading.Event) -> None:
        self._folder = folder
        self._shown = shown
        self._left = limit
        self._members = 0
        self._abandoned = abandoned
        self._links: list[tuple[str, str]] = []  # path and target, made when all else is there

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack a member. Links are kept until the end, so that nothing is ever written through one."""
        self._members += 1
        if self._members > MAX_FILES:
            raise RemoteError(f"{self._shown}: there are more than {MAX_FILES} files in the archive")
        name = self._inside(member.name, member.name)
        if member.isdir():
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        elif member.issym():
            target = posixpath.join(posixpath.dirname(name), member.linkname)
            if member.linkname.startswith("/"):
                target = member.linkname
            self._inside(target, member.name)
            self._links.append((name, member.linkname))
        elif member.islnk():
            source = self._folder / self._inside(member.linkname, member.name)
            if not source.is_file():
                raise RemoteError(f"{self._shown}: {member.name!r} links to {member.linkname!r}, which is not in it")
            with source.open("rb") as content:
                self._write(name, content, is_program=os.access(source, os.X_OK))
        elif member.isreg():
            content = archive.extractfile(member)  # type: ignore[assignment]
            with content:
                self._write(name, content, is_program=bool(member.mode & 0o100))
        else:
            raise RemoteError(
                f"{self._shown}: {member.name!r} is neither a file nor a folder; leave it out of the archive"
            )

    def finish(self) -> None:
        """Make the links, and see that none of them leads outside."""
        for name, target in self._links:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or path.exists():
                raise RemoteError(f"{self._shown}: {name!r} is in the archive twice")
            path.symlink_to(target)
        root = self._folder.resolve()
        for name, target in self._links:
            try:
                leads_to = (self._folder / name).resolve(strict=True)
            except (OSError, RuntimeError):
                raise RemoteError(f"{self._shown}: {name!r} links to {target!r}, which is not in the archive") from None
            if not leads_to.is_relative_to(root):
                raise self._outside(name)

    def _inside(self, path: str, member: str) -> str:
        """Return a path below the folder; raises RemoteError for one that leads out of it."""
        clean = posixpath.normpath(path)
        if path.startswith("/") or clean == ".." or clean.startswith("../") or "\0" in path:
            raise self._outside(member)
        return clean

    def _outside(self, member: str) -> RemoteError:
        return RemoteError(f"{self._shown}: {member!r} would lie outside of the archive's folder; it is not unpacked")

    def _write(self, name: str, content: IO[bytes], *, is_program: bool) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o755 if is_program else 0o644), "wb") as file:
            while piece := content.read(_PIECE):
                if self._abandoned.is_set():
                    raise InterruptedError
                self._left -= len(piece)
                if self._left < 0:
                    raise RemoteError(
                        f"{self._shown}: it unpacks to more than {_LARGEST_RATIO} times its size; it is refused"
                    )
                file.write(piece)


def unpack(archive: Path, folder: Path, *, shown: str, suffix: str, abandoned: threading.Event) -> Path:
    """Unpack an archive into a folder, which is made; return the model's folder in it. Blocks.

    That is the only folder at the top of the archive, if nothing lies beside it. `suffix` tells how it is compressed.
    Raises RemoteError for what is no archive, or one with members that lead outside, OSError where it cannot be
    written, InterruptedError when it is abandoned.
    """
    folder.mkdir()
    limit = max(_ALWAYS, _LARGEST_RATIO * archive.stat().st_size)
    unpacking = _Unpacking(folder, shown=shown, limit=limit, abandoned=abandoned)
    try:
        with _opened(archive, shown, suffix) as opened:
            for member in opened:
                unpacking.add(opened, member)
        unpacking.finish()
    except _BROKEN as error:
        raise RemoteError(f"{shown}: it is no valid archive: {error}") from error
    tops = list(folder.iterdir())
    if not tops:
        raise RemoteError(f"{shown}: the archive is empty")
    return tops[0] if len(tops) == 1 and tops[0].is_dir() and not tops[0].is_symlink() else folder


@contextlib.contextmanager
def _opened(archive: Path, shown: str, suffix: str) -> Iterator[tarfile.TarFile]:
    if suffix.lower() != ".tar.zst":
        with tarfile.open(archive, "r:*") as opened:
            yield opened
        return
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError(shown, "zstandard") from None
    try:
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as plain,
            tarfile.open(fileobj=plain, mode="r|") as opened,
        ):
            yield opened
    except zstandard.ZstdError as error:
        raise tarfile.ReadError(str(error)) from error


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
