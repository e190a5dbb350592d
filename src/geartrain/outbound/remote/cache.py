"""The cache of what lies elsewhere. Several processes may share it; each finds there what another has downloaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.remote.progress import UNKNOWN_SIZE, Download, DownloadStep, size_text
from geartrain.domain.remote.reference import BUCKETS, RemoteReference, archive_suffix
from geartrain.outbound.concurrency import beside
from geartrain.outbound.remote.archives import remove_tree, unpack
from geartrain.outbound.remote.entry import CacheEntry, Manifest, StoredFile, Version, hash_file
from geartrain.outbound.remote.source import (
    ChangedError,
    Listing,
    MissingExtraError,
    RemoteError,
    RemoteFile,
    Source,
    UnreachableError,
    is_full,
    is_unreachable,
)
from geartrain.outbound.remote.transfer import PartialFile, Transfer
from geartrain.outbound.retries import Retries, retry

logger = logging.getLogger(__name__)

_LOOKED_AGAIN: Final = 0.2  # seconds between two looks whether another process is ready
_LISTINGS: Final = 3  # new beginnings after changes meanwhile
_RETRIES: Final = Retries(tries=4, longest_pause=2.0, jitter=0.2, seconds=math.inf)  # of a listing
_ROOM: Final = "make room, or choose another folder with --cache-dir or GEARTRAIN_CACHE"


class CacheSettings(msgspec.Struct, frozen=True):
    """Folder of the cache. `verify`: its files are compared with their checksums before use."""

    folder: Path
    verify: bool = False


def open_source(reference: RemoteReference) -> Source:
    """Return the service that has a reference; raises RemoteError."""
    if reference.scheme in BUCKETS:
        from geartrain.outbound.remote.buckets import BucketSource

        return BucketSource(reference)
    if reference.scheme == "hf":
        from geartrain.outbound.remote.hub import HubSource

        return HubSource(reference)
    from geartrain.outbound.remote.web import WebSource

    return WebSource(reference)


class Cache:
    """Fetches what is not there yet. What it has given is not removed before it is closed, or the process ends."""

    def __init__(self, settings: CacheSettings, new_source: Callable[[RemoteReference], Source] = open_source) -> None:
        self._settings = settings
        self._new_source = new_source
        self._held: dict[Path, int] = {}

    async def fetch(self, reference: RemoteReference, download: Download) -> Path:
        """Return the folder or the file that a reference means, as it is now; raises RemoteError.

        Without its service it is what was fetched last. `download` is told how far it has come.
        """
        download.begin(reference.shown)
        entry = CacheEntry(self._settings.folder / reference.key)
        fetching = _Fetching(reference, entry, download, verify=self._settings.verify, new_source=self._new_source)
        try:
            async with _locked(entry, download):
                version = await fetching.run()
                if version.folder not in self._held:
                    self._held[version.folder] = entry.hold(version)
                with contextlib.suppress(OSError):  # of a disk that is full, or read-only: what was fetched is there
                    entry.remove_unused()
        except RemoteError:
            download.failures += 1
            raise
        except OSError as error:
            download.failures += 1
            raise _unwritable(error, self._settings.folder, download) from error
        return version.root

    def close(self) -> None:
        """Let go of all that has been given."""
        while self._held:
            os.close(self._held.popitem()[1])


@contextlib.asynccontextmanager
async def _locked(entry: CacheEntry, download: Download) -> AsyncIterator[None]:
    """Wait until no other process downloads the same."""
    step = download.step
    while not (held := entry.try_lock()):
        download.step = DownloadStep.WAITING
        await asyncio.sleep(_LOOKED_AGAIN)
    download.step = step
    try:
        yield
    finally:
        os.close(held[0])


class _Fetching:
    """One fetch of one reference, whose entry is locked."""

    def __init__(
        self,
        reference: RemoteReference,
        entry: CacheEntry,
        download: Download,
        *,
        verify: bool,
        new_source: Callable[[RemoteReference], Source],
    ) -> None:
        self._reference = reference
        self._entry = entry
        self._download = download
        self._verify = verify
        self._new_source = new_source

    async def run(self) -> Version:
        """Return the version that the reference means now."""
        current = await self._verified(self._entry.current())
        reference = self._reference
        for version in current:
            if reference.is_pinned or (reference.sha256 and reference.sha256 == version.manifest.sha256):
                return version
        source = self._new_source(reference)
        try:
            for _ in range(_LISTINGS - 1):
                with contextlib.suppress(ChangedError):
                    return await self._update(source, current)
            return await self._update(source, current)
        finally:
            await source.close()

    async def _verified(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Return those that have their checksums, if that is to be known."""
        if not self._verify:
            return versions
        good: tuple[Version, ...] = ()
        self._download.step = DownloadStep.VERIFYING
        for version in versions:
            changed = await beside(version.first_changed)
            if changed:
                logger.warning("%s: %s is damaged in the cache; it is fetched again", self._reference.shown, changed)
                self._entry.remove(version)
            else:
                good += (version,)
        self._download.step = DownloadStep.LOOKING
        return good

    async def _update(self, source: Source, current: tuple[Version, ...]) -> Version:
        """Fetch what has changed since the current version."""
        try:
            listing = self._expected(await retry(source.look, is_unreachable, _RETRIES))
        except UnreachableError as error:
            for version in current:
                logger.warning("%s; what was fetched before is used", error.message)
                return version
            raise
        name = listing.version if listing.tells_changes else uuid.uuid4().hex[:16]
        for version in await self._verified(self._entry.version(name)):
            self._entry.make_current(name)
            return version
        return await self._fetch(source, listing, name, current=current)

    def _expected(self, listing: Listing) -> Listing:
        """Return a listing with the checksum that the reference asks for."""
        shown, wanted = self._reference.shown, self._reference.sha256
        if not wanted:
            return listing
        if not listing.is_single:
            raise RemoteError(f"{shown}: a checksum is for one file, and this is a folder; leave it out")
        file = listing.files[0]
        if file.sha256 not in {"", wanted}:
            raise RemoteError(f"{shown}: it has the SHA-256 {file.sha256}, and it should have {wanted}; it is not used")
        return msgspec.structs.replace(listing, files=(msgspec.structs.replace(file, sha256=wanted),))

    async def _fetch(self, source: Source, listing: Listing, name: str, *, current: tuple[Version, ...]) -> Version:
        entry, download = self._entry, self._download
        new = entry.begin()
        entry.incoming.mkdir(exist_ok=True)
        is_archive = listing.is_single and bool(archive_suffix(listing.files[0].path))
        kept = [] if is_archive else _unchanged(listing, current)
        places = {file.path for file, _, _ in kept}
        again = [file for file in listing.files if file.path not in places]
        download.expect(listing.size, len(listing.files))
        try:
            self._check_room(again)
            transfer = Transfer(source, self._reference.shown, entry.incoming, download=download)
            partials = await transfer.fetch(again)
            if is_archive:
                download.step = DownloadStep.UNPACKING
                return await beside(lambda abandoned: self._unpack(partials[0], new, name, abandoned=abandoned))
            return self._assemble(partials, kept, new, name=name, is_single=listing.is_single)
        except BaseException as error:
            remove_tree(new)
            if isinstance(error, OSError) and is_full(error):
                self._give_up_if_hopeless(listing.size)
            raise

    def _check_room(self, files: list[RemoteFile]) -> None:
        """Refuse what cannot fit before anything of it is written."""
        known = [file for file in files if file.size != UNKNOWN_SIZE]
        had = 0
        for file in known:
            with contextlib.closing(PartialFile(file, self._entry.incoming)) as partial:
                had += partial.have
        needed = sum(file.size for file in known) - had
        free = shutil.disk_usage(self._entry.folder).free
        if needed > free:
            self._give_up_if_hopeless(needed + had)
            raise RemoteError(
                f"{self._reference.shown}: {needed} bytes ({size_text(needed)}) are needed, and {free} "
                f"({size_text(free)}) are free in {self._entry.folder.parent}; {_ROOM}"
            )

    def _give_up_if_hopeless(self, size: int) -> None:
        """Remove the partial files of what could not fit on an empty disk: they would only fill it."""
        if size > shutil.disk_usage(self._entry.folder).total:
            shutil.rmtree(self._entry.incoming, ignore_errors=True)

    def _assemble(
        self,
        partials: list[PartialFile],
        kept: list[tuple[RemoteFile, Version, StoredFile]],
        new: Path,
        *,
        name: str,
        is_single: bool,
    ) -> Version:
        """Put all files to their places. Those that have not changed are those of the version before."""
        root = Path("content") if is_single else Path("content") / self._reference.name
        (new / root).mkdir(exist_ok=True)
        stored: list[StoredFile] = []
        for partial in partials:
            path = root / partial.file.path
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            partial.path.rename(new / path)
            size = (new / path).stat().st_size
            stored.append(StoredFile(path=str(path), size=size, sha256=partial.sha256, etag=partial.file.etag))
        for file, version, before in kept:
            path = root / file.path
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            _link(version.folder / before.path, new / path)
            stored.append(msgspec.structs.replace(before, path=str(path)))
            self._download.bytes += file.size
            self._download.finish_file(received=False)
        if is_single:
            root = Path(stored[0].path)
        return self._complete(name, root, stored, sha256=stored[0].sha256 if is_single else "")

    def _unpack(self, partial: PartialFile, new: Path, name: str, *, abandoned: threading.Event) -> Version:
        """Unpack an archive, in a thread."""
        folder = new / "content" / self._reference.name
        try:
            root = unpack(partial.path, folder, shown=self._reference.shown, abandoned=abandoned)
        except MissingExtraError:
            raise  # the archive may be good
        except RemoteError:
            remove_tree(self._entry.incoming)
            raise
        stored = []
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                found = hash_file(path, abandoned)
                stored.append(StoredFile(path=str(path.relative_to(new)), size=path.stat().st_size, sha256=found))
        return self._complete(name, root.relative_to(new), stored, sha256=partial.sha256)

    def _complete(self, name: str, root: Path, stored: list[StoredFile], *, sha256: str) -> Version:
        manifest = Manifest(source=self._reference.shown, root=str(root), files=tuple(stored), sha256=sha256)
        return self._entry.complete(name, manifest)


def _unchanged(listing: Listing, current: tuple[Version, ...]) -> list[tuple[RemoteFile, Version, StoredFile]]:
    """Return the files of a listing that a version has already."""
    known = {key: (version, stored) for version in current for key, stored in version.reusable().items()}
    found = []
    for file in listing.files:
        if (file.etag, file.size) in known:
            version, stored = known[file.etag, file.size]
            if file.sha256 in {"", stored.sha256}:
                found.append((file, version, stored))
    return found


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _unwritable(error: OSError, folder: Path, download: Download) -> RemoteError:
    reason, shown = error.strerror or str(error), download.source
    if not is_full(error):
        return RemoteError(f"{shown}: {folder} cannot be used as the cache: {reason}; choose another with --cache-dir")
    missing = max(0, download.total_bytes - download.bytes)
    needed = f"{missing} bytes ({size_text(missing)}) are still needed" if missing else "more room is needed"
    return RemoteError(f"{shown}: {reason}: {needed} in {folder}; {_ROOM}")
