"""The files of a call: copies on their way to the parent, and what is to be deleted when `run()` is over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from geartrain.worker.values.temporary_files import RunFiles, TemporaryFiles


class CallFiles:
    """The files of the calls of one slot, one call after the other.

    A copy belongs to the parent once it has been reported. The copies that have not been, because a cancel or an error
    came in between, are removed by `close`.
    """

    has_runs: ClassVar[bool] = False
    """Whether `begin` and `end_run` have to be called for each invocation of `run()`."""

    def __init__(self) -> None:
        self.folder: str | None = None  # of copies; by default that of temporary files
        self._copies: set[Path] = set()  # folders that the parent does not know of

    def begin(self) -> None:
        """Begin an invocation of `run()`. It has to be called before the author's code."""

    def new_folder(self) -> Path:
        """Make a new folder for one file and return it."""
        folder = Path(self.folder or tempfile.gettempdir(), os.urandom(16).hex())
        self._copies.add(folder)
        folder.mkdir()
        return folder

    def new_file(self) -> Path:
        """Return the path of a new file for an output, in a folder of its own."""
        return self.new_folder() / "output.json"

    def temporary_files_of(self, path: Path) -> tuple[str, ...]:  # noqa: ARG002 - these outputs are no files of the author's
        """Return the paths to delete after the run for an output's path: the file, and folders made for it."""
        return ()

    def hand_over(self, files: Iterable[str]) -> None:
        """Leave copies to the parent, which has been told of them."""
        self._copies.difference_update([Path(file).parent for file in files])

    def end_run(self) -> None:
        """Delete the author's own temporary files: the run is over, and its outputs are copied."""

    def close(self) -> None:
        """Remove what the run leaves behind, since nothing more will be reported. Repeating it is harmless."""
        self.end_run()
        while self._copies:
            shutil.rmtree(self._copies.pop(), ignore_errors=True)


class CleanedCallFiles(CallFiles):
    """Files of a call whose outputs can be files: the author's temporary ones among them are deleted."""

    has_runs: ClassVar[bool] = True

    def __init__(self, temporary: TemporaryFiles) -> None:
        super().__init__()
        self._temporary = temporary
        self._run = RunFiles(0)

    def begin(self) -> None:
        """Begin an invocation of `run()`: the files that are made from now on are its own."""
        self._run = self._temporary.begin()

    def temporary_files_of(self, path: Path) -> tuple[str, ...]:
        """Return the paths to delete after the run for an output's path: the file, and folders made for it."""
        return self._temporary.add(self._run, path)

    def end_run(self) -> None:
        """Delete the author's own temporary files: the run is over, and its outputs are copied."""
        self._temporary.end(self._run)
