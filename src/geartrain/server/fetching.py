"""Fetches models and weights that lie elsewhere, in threads beside the loop of the server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from geartrain.domain.remote.progress import Download
from geartrain.domain.remote.reference import RemoteReference
from geartrain.outbound.remote.errors import RemoteError
from geartrain.outbound.remote.threads import in_own_loop
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Weights
from geartrain.server.options import CacheOptions, Progress

if TYPE_CHECKING:
    from geartrain.outbound.remote.cache import Cache


CACHE: Final = "GEARTRAIN_CACHE"


def cache_folder(given: pathlib.Path | None, environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of the cache: the one that is given, that of a variable, or the user's.

    Raises ProjectError where the user has no home.
    """
    if given is not None:
        return given.absolute()
    if environ.get(CACHE, "").strip():
        return pathlib.Path(environ[CACHE].strip()).absolute()
    base = pathlib.Path(environ.get("XDG_CACHE_HOME", "").strip())
    if base.is_absolute():  # a relative one is to be passed over (XDG Base Directory Specification)
        return base / "geartrain"
    try:
        return pathlib.Path("~").expanduser() / ".cache" / "geartrain"
    except RuntimeError:
        raise ProjectError(
            f"there is no home folder for the cache; choose a folder with --cache-dir or {CACHE}"
        ) from None


T = TypeVar("T")

_AT_ONCE: Final = 4  # downloads, each over several connections
_TOLD: Final = 0.2  # seconds between two reports of a download

Tell = Callable[[Progress], None]


class Fetcher:
    """Fetcher for the models of one server, or for one command. Fetched files stay until `close`."""

    def __init__(self, options: CacheOptions) -> None:
        self._options = options
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @functools.cached_property
    def _cache(self) -> Cache:
        """The cache; raises RemoteError where there can be none."""
        from geartrain.outbound.remote.cache import Cache, CacheSettings  # late: most models are here

        try:
            folder = cache_folder(self._options.folder, os.environ)
        except ProjectError as error:
            raise RemoteError(error.message) from None
        return Cache(CacheSettings(folder, self._options.verify))

    async def fetch(self, reference: RemoteReference, download: Download) -> Path:
        """Return the local path of a reference; raise RemoteError."""
        cache = self._cache
        async with self._turns:
            return await in_own_loop(lambda: cache.fetch(reference, download))

    async def fetch_weights(self, weights: Sequence[Weights], folder: Path, download: Download) -> tuple[Path, ...]:
        """Fetch the weights of the model in a folder, and put those with a `dest` there.

        Returns the path of the one without, if there is one. Raises RemoteError.
        """
        found = []
        for each in weights:
            path = await self.fetch(each.reference, download)
            if each.dest:
                _place(path, folder / each.dest, each.reference.shown)
            else:
                found.append(path)
        return tuple(found)

    def close(self) -> None:
        """Let go of all that has been given."""
        if "_cache" in self.__dict__:
            self._cache.close()


def _place(path: Path, dest: Path, shown: str) -> None:
    """Put a link to what has been fetched into the folder of a model."""
    if dest.is_symlink() and dest.readlink() == path:
        return
    if dest.exists() and not dest.is_symlink():
        raise RemoteError(f"{shown}: {dest} is there already, and no link; remove it, or write another `dest`")
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        temporary = dest.with_name(f".{dest.name}.{os.urandom(4).hex()}")
        temporary.symlink_to(path)
        temporary.replace(dest)
    except OSError as error:
        raise RemoteError(
            f"{shown}: {dest} cannot be written: {error.strerror}; "
            "leave `dest` out, and take the path as `weights` of setup()"
        ) from error


@contextlib.asynccontextmanager
async def telling(download: Download, tell: Tell, *, model: str = "") -> AsyncIterator[None]:
    """Tell how far a download has come, a few times a second, until the end of the block."""

    async def report() -> None:
        while True:
            await asyncio.sleep(_TOLD)
            tell(_progress_of(download, model))

    reporting = asyncio.ensure_future(report())
    try:
        yield
    finally:
        reporting.cancel()
        tell(_progress_of(download, model))


def _progress_of(download: Download, model: str) -> Progress:
    return Progress(
        stage="downloading",
        model=model,
        text=download.describe(),
        source=download.source,
        bytes=download.bytes,
        total_bytes=max(0, download.total_bytes),
    )


def fetch_now(
    work: Callable[[Fetcher, Download], Coroutine[Any, Any, T]],
    fetcher: Fetcher,
    *,
    tell: Tell = lambda _progress: None,
) -> T:
    """Fetch for a command that has no server; `tell` hears how far it has come.

    Raises RemoteError, and KeyboardInterrupt when Ctrl-C ends it.
    """
    download = Download()

    async def run() -> T:
        async with telling(download, tell):
            return await work(fetcher, download)

    return asyncio.run(run())
