"""One reference in the cache: complete files, files on their way, and users of both.

``` KEY/ the key of the reference lock locked during a download current the version that was completed last incoming/
partial files VERSION.lock locked, shared, by each user of that version VERSION/manifest.json its files, with sizes and
checksums VERSION/content/NAME the model ```

A version appears under its name when it is complete, and is never changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from geartrain.outbound.remote.archives import remove_tree

_VERSION: Final = re.compile(r"[0-9a-f]{16}")
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_HASHED: Final = 4 * 1024**2


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a version: its path below the version's folder, and what it must be."""

    path: str
    size: int
    sha256: str
    etag: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete version. `root`: the model, relative to the version's folder. `sha256`: that of a single source."""

    source: str
    root: str
    files: tuple[StoredFile, ...]
    sha256: str = ""


class Version(msgspec.Struct, frozen=True):
    """A version that is complete, in its folder."""

    folder: Path
    manifest: Manifest

    @property
    def root(self) -> Path:
        """The model."""
        return self.folder / self.manifest.root

    def first_fault(self) -> str:
        """Compare the sizes of all files; return the path of one that is not as it was, "" if there is none. Blocks."""
        for file in self.manifest.files:
            try:
                found = (self.folder / file.path).stat()
            except OSError:
                return file.path
            if found.st_size != file.size:
                return file.path
        return ""

    def first_changed(self, abandoned: threading.Event) -> str:
        """Do the same with the checksums of all files. Gives up with InterruptedError. Blocks."""
        for file in self.manifest.files:
            try:
                if hash_file(self.folder / file.path, abandoned) != file.sha256:
                    return file.path
            except OSError as error:
                if isinstance(error, InterruptedError):
                    raise
                return file.path
        return ""

    def reusable(self) -> Mapping[tuple[str, int], StoredFile]:
        """Return its files by etag and size, for another version that has them as well."""
        return {(file.etag, file.size): file for file in self.manifest.files if file.etag}


class CacheEntry:
    """The folder of one reference. All of it blocks, and raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.incoming = folder / "incoming"

    def current(self) -> tuple[Version, ...]:
        """Return the version that was completed last, if there is one."""
        try:
            name = (self.folder / "current").read_text()
        except (OSError, UnicodeError):
            return ()
        return self.version(name)

    def version(self, name: str) -> tuple[Version, ...]:
        """Return a version that is complete and has all its files in their sizes, if it is there."""
        if not _VERSION.fullmatch(name):
            return ()
        folder = self.folder / name
        try:
            manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError):
            return ()
        found = Version(folder, manifest)
        return () if found.first_fault() else (found,)

    def begin(self) -> Path:
        """Return an empty folder for a new version."""
        folder = self.folder / "new"
        remove_tree(folder)
        (folder / "content").mkdir(parents=True)
        return folder

    def complete(self, name: str, manifest: Manifest) -> Version:
        """Let what has been begun be a version, and the current one."""
        new, folder = self.folder / "new", self.folder / name
        _write(new / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
        remove_tree(folder)
        new.rename(folder)
        self.make_current(name)
        remove_tree(self.incoming)
        return Version(folder, manifest)

    def make_current(self, name: str) -> None:
        """Note the version to use when the source cannot be reached; nothing is written if it is noted already."""
        path = self.folder / "current"
        with contextlib.suppress(OSError):
            if path.read_bytes() == name.encode():
                return
        _write(path, name.encode())

    def remove(self, version: Version) -> None:
        """Remove a version."""
        remove_tree(version.folder)

    def hold(self, version: Version) -> int:
        """Keep a version from being removed as unused, as long as the descriptor that is returned is open."""
        descriptor = _open_lock(self._lock_of(version.folder.name))
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def remove_unused(self) -> None:
        """Remove the versions that are not current and that no process uses."""
        kept = {version.folder.name for version in self.current()}
        for path in self.folder.iterdir():
            if path.name in kept or not _VERSION.fullmatch(path.name):
                continue
            lock = self._lock_of(path.name)
            descriptor = _open_lock(lock)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                remove_tree(path)
                lock.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def try_lock(self) -> tuple[int, ...]:
        """Lock it for a download; return the descriptor that holds the lock, nothing if another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open_lock(self.folder / "lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return ()
        except BaseException:
            os.close(descriptor)
            raise
        return (descriptor,)

    def _lock_of(self, name: str) -> Path:
        return self.folder / f"{name}.lock"


def hash_file(path: Path, abandoned: threading.Event) -> str:
    """Return the SHA-256 of a file. Gives up with InterruptedError. Blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASHED):
            if abandoned.is_set():
                raise InterruptedError
            digest.update(piece)
    return digest.hexdigest()


def _open_lock(path: Path) -> int:
    """Open the file of a lock, and make it if it is not there; in a folder that is read-only it has to be."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise error from None


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
