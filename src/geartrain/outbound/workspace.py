"""The temporary files of the server: one private directory, and in it one for each prediction that needs files.

No name here comes from a client: an id may be longer than a file name can be, or lead out of the directory.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.outbound.files import Allowance, DownloadError, clip_text, name_from_file_name

logger = logging.getLogger(__name__)

_PRIVATE = 0o700
_LONGEST_SHOWN: Final = 100  # characters of the name of an input in a sentence
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Workspace:
    """The server's directory: made when the first prediction needs it, mode 0700, removed by `close`.

    `parent` defaults to the system's directory for temporary files. May be used from any thread.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._root: Path | None = None
        self._closed = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def folder(self) -> PredictionFolder:
        """A folder for one prediction; nothing is made yet."""
        return PredictionFolder(self)

    def make(self) -> Path:
        """A new, empty directory.

        Raises RuntimeError after `close`, and OSError when it cannot be made.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the workspace is closed")
            name = f"prediction-{next(self._numbers)}"
            if self._root is not None:
                with suppress(FileNotFoundError):  # a cleaner of temporary files has removed the root
                    return _made(self._root / name)
            self._root = Path(tempfile.mkdtemp(prefix="geartrain-", dir=self._parent)).absolute()
            return _made(self._root / name)

    async def close(self) -> None:
        """Remove the directory with all it holds, and make no more. Never raises."""
        with self._lock:
            self._closed = True
            root, self._root = self._root, None
        if root is not None:
            await _remove(root)


class PredictionFolder:
    """The directory of one prediction: made when first asked for, removed at the end."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._path: Path | None = None
        self._lock = threading.Lock()

    def path(self) -> Path:
        """The directory, an absolute path; it exists.

        Raises RuntimeError after the workspace was closed, and OSError when it cannot be made.
        """
        with self._lock:
            if self._path is None:
                self._path = self._workspace.make()
            return self._path

    async def remove(self) -> None:
        """Remove the directory with all it holds, in a thread. Never raises; costs nothing if none was made."""
        with self._lock:
            path, self._path = self._path, None
        if path is not None:
            await _remove(path)


def _made(path: Path) -> Path:
    path.mkdir(mode=_PRIVATE)
    return path


async def _remove(path: Path) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, _remove_tree, path)
    except RuntimeError:  # the loop has no threads any more: it is about to end
        _remove_tree(path)


def _remove_tree(path: Path) -> None:
    try:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            # A model has taken away the permission to change a directory, or was still writing into it.
            _unlock(path)
            shutil.rmtree(path)
    except OSError as error:
        logger.warning("A temporary directory cannot be removed: %s", error)


def _unlock(path: Path) -> None:
    """Take the permission to change every directory below `path`, each before it is entered."""
    path.chmod(_PRIVATE)
    for directory, names, _ in os.walk(path):
        for name in names:
            child = Path(directory, name)
            if not child.is_symlink():  # it would change the permissions of what it leads to
                child.chmod(_PRIVATE)


class AttachmentStore:
    """Takes the files of one request; see `AttachmentStorePort`."""

    def __init__(self, folder: PredictionFolder, max_bytes: int) -> None:
        """`max_bytes` limits each file, and ten times that all of them."""
        self._folder = folder
        self._allowance = Allowance(max_bytes)

    def open(self, place: str, file_name: str) -> AttachedFile:
        """Make a new file that only this user may read, named `tmp<random><name>`."""
        name = name_from_file_name(file_name)
        try:
            descriptor, path = tempfile.mkstemp(suffix=name, dir=self._folder.path())
        except OSError as error:
            raise _unstorable(error) from error
        return AttachedFile(os.fdopen(descriptor, "wb", buffering=0), path, place, allowance=self._allowance)

    def path(self) -> Path:
        """The folder; see `FolderPort`."""
        return self._folder.path()

    async def remove(self) -> None:
        """Remove all files; see `FolderPort`."""
        await self._folder.remove()


class AttachedFile:
    """One file while it comes; see `AttachedFilePort`."""

    def __init__(self, file: BinaryIO, path: str, place: str, *, allowance: Allowance) -> None:
        self.path = path
        self._file = file
        self._place = place
        self._allowance = allowance
        self._size = 0

    def write(self, data: memoryview) -> None:
        """Append a piece."""
        try:
            self._size = self._allowance.take(self._size, len(data))
        except DownloadError as error:
            place = clip_text(self._place, _LONGEST_SHOWN)
            msg = f'Cannot take the file for the input "{place}": {error}. The server\'s --max-download-size sets it.'
            raise GeartrainError(Code.TOO_LARGE, msg) from error
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _unstorable(error) from error

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:  # some disks report it late
            raise _unstorable(error) from error


def _unstorable(error: OSError) -> GeartrainError:
    code = Code.NO_STORAGE if error.errno in _FULL else Code.INTERNAL
    return GeartrainError(code, f"Cannot store the files of the input: {error.strerror or error}")
