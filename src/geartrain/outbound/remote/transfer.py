"""The download of all files of a listing: several parts at a time, each tried again where it was broken off."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from geartrain.domain.remote.progress import UNKNOWN_SIZE, Download
from geartrain.outbound.remote.errors import ChangedError, RemoteError, UnreachableError, is_unreachable
from geartrain.outbound.remote.partial import SMALL, Part, PartialFile
from geartrain.outbound.remote.store import RemoteFile, Store
from geartrain.outbound.remote.threads import beside
from geartrain.outbound.retries import Retries, retry

CONNECTIONS: Final = 8
_OPEN: Final = 64  # files that are open at once, at most
_SAVED: Final = 8 * 1024**2  # bytes of a part after which the journal is written
_RETRIES: Final = Retries(tries=6, longest_pause=10.0, jitter=0.2, seconds=math.inf)  # without a byte in between


class Transfer:
    """Fetches files into partial files of a folder. It belongs to one event loop."""

    def __init__(self, store: Store, shown: str, folder: Path, *, download: Download) -> None:
        """`shown` names the whole in errors; `folder` has partial files of an earlier download, if there was one."""
        self._store = store
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
        pieces = self._store.read(partial.file, part.start + part.have, part.end)
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
