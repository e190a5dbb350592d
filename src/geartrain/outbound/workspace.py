"""The temporary files of the server: one private directory, and in it one for each prediction that needs files.

No name here comes from a client: an id may be longer than a file name can be, or lead out of the directory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_PRIVATE = 0o700


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
