"""The download of all files of a listing: several parts at a time, each tried again where it was broken off."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.remote.progress import UNKNOWN_SIZE, Download
from geartrain.outbound.concurrency import beside
from geartrain.outbound.remote.source import (
    ChangedError,
    RemoteError,
    RemoteFile,
    Source,
    UnreachableError,
    is_unreachable,
)
from geartrain.outbound.retries import Retries, retry

PART: Final = 32 * 1024**2  # bytes of a file that one connection fetches
SMALL: Final = 1024**2  # bytes of a file; to wait for the disk for each of thousands takes long
_HASHED: Final = 4 * 1024**2  # bytes that are read at once
CONNECTIONS: Final = 8
_OPEN: Final = 64  # files that are open at once, at most
_SAVED: Final = 8 * 1024**2  # bytes of a part after which the journal is written
_RETRIES: Final = Retries(tries=6, longest_pause=10.0, jitter=0.2, seconds=math.inf)  # without a byte in between


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


class Transfer:
    """Fetches files into partial files of a folder. It belongs to one event loop."""

    def __init__(self, source: Source, shown: str, folder: Path, *, download: Download) -> None:
        """`shown` names the whole in errors; `folder` has partial files of an earlier download, if there was one."""
        self._source = source
        self._shown = shown
        self._folder = folder
        self._download = download
        self._connections = asyncio.Semaphore(CONNECTIONS)

    async def fetch(self, files: Sequence[RemoteFile]) -> list[PartialFile]:
        """Return complete files with their checksums, closed, in the same order.

        Raises RemoteError, and OSError where they cannot be written; what has come stays for the next time.
        """
        waiting = iter(enumerate(files))
        found: dict[int, PartialFile] = {}

        async def fetch_some() -> None:
            for index, file in waiting:
                found[index] = await self._fetch_file(file)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_OPEN, len(files))):
                    group.create_task(fetch_some())
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return [found[index] for index in range(len(files))]

    async def _fetch_file(self, file: RemoteFile) -> PartialFile:
        partial = PartialFile(file, self._folder)
        with contextlib.closing(partial):
            had_all = partial.is_complete
            self._download.bytes += partial.have
            async with asyncio.TaskGroup() as group:
                for part in partial.parts:
                    if not part.is_complete:
                        group.create_task(self._fetch_part(partial, part))
            await self._check(partial)
            self._download.finish_file(received=not had_all)
        return partial

    async def _fetch_part(self, partial: PartialFile, part: Part) -> None:
        async with self._connections:
            while True:
                had = part.have
                try:
                    await retry(functools.partial(self._read, partial, part), is_unreachable, _RETRIES)
                except UnreachableError:
                    if part.have <= had:  # nothing has come in all these tries
                        raise
                else:
                    return

    async def _read(self, partial: PartialFile, part: Part) -> None:
        """Read what is missing of a part."""
        if part.have and not partial.file.can_resume:
            self._download.drop(part.have)
            part.have = 0
        saved = part.have
        pieces = self._source.read(partial.file, part.start + part.have, part.end)
        try:
            async for piece in pieces:
                if part.end != UNKNOWN_SIZE and part.start + part.have + len(piece) > part.end:
                    raise ChangedError(f"{self._shown}: more has come of {partial.file.path} than there should be")
                partial.write(part, piece)
                self._download.add(len(piece))
                if partial.file.can_resume and part.have - saved >= _SAVED:
                    partial.save()
                    saved = part.have
        finally:
            await pieces.aclose()
            if partial.file.can_resume and part.have != saved:
                partial.save()
        if part.end != UNKNOWN_SIZE and not part.is_complete:
            missing = part.end - part.start - part.have
            raise UnreachableError(
                f"{self._shown}: {partial.file.path} has been broken off, {missing} bytes are missing"
            )
        partial.finish(part)

    async def _check(self, partial: PartialFile) -> None:
        """Find the checksum of a complete file, and compare it with what the service says."""
        if not partial.sha256:
            is_small = partial.have <= SMALL
            partial.note_checksum(partial.hash(threading.Event()) if is_small else await beside(partial.hash))
        wanted = partial.file.sha256
        if wanted and partial.sha256 != wanted:
            partial.remove()
            raise RemoteError(
                f"{self._shown}: {partial.file.path} has the SHA-256 {partial.sha256}, and it should have {wanted}; "
                "it is not used"
            )


def _first(error: BaseException) -> BaseException:
    """Return the error that came first; the others followed from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
