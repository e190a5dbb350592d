"""The files that come with a request: written as they come, into the folder of the prediction that is to have them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.outbound.allowance import Allowance
from geartrain.outbound.errors import DownloadError
from geartrain.outbound.names import clip_text, name_from_file_name
from geartrain.outbound.workspace import PredictionFolder

_LONGEST_SHOWN: Final = 100  # characters of the name of an input in a sentence
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
