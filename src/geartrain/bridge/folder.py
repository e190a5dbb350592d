"""A worker's private directory: what is too large for a message, or is a file."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from geartrain.domain.predictions.calls import FileRef


class WorkerFolder:
    """The folder is made at once, and removed by `close` as soon as none of its output files is being read.

    A worker puts each output file into a folder of its own in `outputs`, so that the file can keep its name.
    """

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="geartrain-"))
        self._outputs = self._path / "outputs"
        self._outputs.mkdir()
        self.outputs = str(self._outputs)  # the worker's folder of output files
        self._numbers = itertools.count(1)
        self._lent: set[str] = set()
        self._closed = False

    def new_input(self) -> Path:
        """A file for an input; it does not exist yet, and the worker deletes it when it has read it."""
        return self._path / f"input-{next(self._numbers)}.json"

    def lend(self, file: FileRef) -> None:
        """An output file is about to be read: it stays until it is discarded, also when the worker has died."""
        self._lent.add(file.filename)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Remove output files: they have been read, or are not needed. Files outside of this folder are left alone."""
        for file in files:
            folder = Path(file.filename).parent
            if folder.parent == self._outputs and folder.name != "..":
                shutil.rmtree(folder, ignore_errors=True)
            self._lent.discard(file.filename)
        if self._closed and not self._lent:
            self._remove()

    def close(self, *, now: bool) -> None:
        """Remove everything, because the worker is gone: at once, or when no output file is being read any more."""
        self._closed = True
        if now or not self._lent:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def delete_temporary_files(paths: Iterable[str]) -> None:
    """Delete an author's temporary files and then their folders, in the order of a `FileOutput`; never raises."""
    for name in paths:
        path = Path(name)
        with suppress(OSError):  # gone already, or a folder that holds something else
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
