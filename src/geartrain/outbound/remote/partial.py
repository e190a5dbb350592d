"""A file whose download is under way: its bytes so far, and a journal beside it that outlives the process."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.remote.progress import UNKNOWN_SIZE
from geartrain.outbound.remote.store import RemoteFile

PART: Final = 32 * 1024**2  # bytes of a file that one connection fetches
SMALL: Final = 1024**2  # bytes of a file; to wait for the disk for each of thousands takes long
_HASHED: Final = 4 * 1024**2  # bytes that are read at once


class _Journal(msgspec.Struct):
    """State of a partial file: its identity, the received bytes of each part, its checksum at the end."""

    etag: str
    size: int
    have: dict[int, int] = {}  # bytes, by the index of the part
    sha256: str = ""


class Part:
    """A stretch of a file, from `start` to before `end`; `have` bytes of it have come."""

    def __init__(self, index: int, start: int, end: int, *, have: int = 0) -> None:
        """`end` is `UNKNOWN_SIZE` for all of a file whose size is not known."""
        self.index = index
        self.start = start
        self.end = end
        self.have = have

    @property
    def is_complete(self) -> bool:
        """True if all of it has come; of unknown size that is only known when the service says so."""
        return self.end != UNKNOWN_SIZE and self.start + self.have == self.end


class PartialFile:
    """The bytes of one file, written at their places as they come.

    Raises OSError wherever it writes.
    """

    def __init__(self, file: RemoteFile, folder: Path) -> None:
        """Take up what is in `folder` of the same state of the file, or begin anew."""
        name = hashlib.sha256(file.path.encode()).hexdigest()[:24]
        self.file = file
        self.path = folder / f"{name}.data"
        self._journal_path = folder / f"{name}.json"
        self._journal = self._read_journal()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._journal.have:
            os.ftruncate(self._descriptor, 0)
        self.parts = [self._part(index, start) for index, start in enumerate(self._starts())]

    @property
    def is_complete(self) -> bool:
        """True if all bytes are there."""
        return all(part.is_complete for part in self.parts)

    @property
    def have(self) -> int:
        """Number of received bytes."""
        return sum(part.have for part in self.parts)

    @property
    def sha256(self) -> str:
        """The checksum that has been found; "" before."""
        return self._journal.sha256

    def write(self, part: Part, piece: bytes | memoryview) -> None:
        """Put a piece behind what has come of a part."""
        view = memoryview(piece)
        while view:
            written = os.pwrite(self._descriptor, view, part.start + part.have)
            part.have += written
            view = view[written:]

    def finish(self, part: Part) -> None:
        """Note that the service has given all of a part, and make that last."""
        if part.end == UNKNOWN_SIZE:
            part.end = part.have
            os.ftruncate(self._descriptor, part.have)
        self.save()

    def save(self) -> None:
        """Write the journal; what it says has come is on the disk before.

        Of a small file, which is written from its beginning to its end, the size tells whether all of it is there.
        """
        if self.file.size == UNKNOWN_SIZE or self.file.size > SMALL:
            os.fdatasync(self._descriptor)
        self._journal.have = {part.index: part.have for part in self.parts if part.have}
        self._write_journal()

    def hash(self, abandoned: threading.Event) -> str:
        """Return the SHA-256 of all bytes; blocks. Gives up with InterruptedError."""
        digest = hashlib.sha256()
        offset = 0
        while piece := os.pread(self._descriptor, _HASHED, offset):
            if abandoned.is_set():
                raise InterruptedError
            digest.update(piece)
            offset += len(piece)
        return digest.hexdigest()

    def note_checksum(self, sha256: str) -> None:
        """Note the checksum of the whole file, so that it is not read again."""
        self._journal.sha256 = sha256
        self._write_journal()

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Remove the file and its journal."""
        self.path.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)

    def _part(self, index: int, start: int) -> Part:
        size = self.file.size
        end = UNKNOWN_SIZE if size == UNKNOWN_SIZE else size if not self.file.can_resume else min(size, start + PART)
        have = self._journal.have.get(index, 0)
        return Part(index, start, end, have=have if 0 <= have <= end - start else 0)

    def _starts(self) -> Iterator[int]:
        """Give where the parts begin: one part for a file that can only be read as a whole."""
        yield 0
        if self.file.can_resume:
            yield from range(PART, self.file.size, PART)

    def _read_journal(self) -> _Journal:
        fresh = _Journal(self.file.etag, self.file.size)
        try:
            found = msgspec.json.decode(self._journal_path.read_bytes(), type=_Journal)
            there = self.path.stat().st_size
        except (OSError, msgspec.MsgspecError):
            return fresh
        is_same = self.file.can_resume and (found.etag, found.size) == (self.file.etag, self.file.size)
        reach = max((index * PART + have for index, have in found.have.items()), default=0)
        return found if is_same and reach <= there <= found.size else fresh

    def _write_journal(self) -> None:
        temporary = self._journal_path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(self._journal))
        temporary.replace(self._journal_path)
