"""Fetches models and weights that lie elsewhere, in threads beside the loop of the server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from geartrain.domain.remote.progress import Download
from geartrain.domain.remote.reference import RemoteReference, is_remote
from geartrain.outbound.concurrency import in_own_loop
from geartrain.outbound.remote.source import RemoteError
from geartrain.project.digest import Digests, ModelAlone
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import remote_model
from geartrain.project.setting_values import Weights
from geartrain.project.settings import read_settings
from geartrain.project.source import ModelSource
from geartrain.server.options import CacheOptions, Progress, ServeOptions

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


class Downloads:
    """Fetches for the models of a block, in which what it has fetched stays. See `project.fetched.Fetch`."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def model(self, reference: RemoteReference) -> Path:
        """Return the fetched folder of a model; raises ProjectError."""
        return self._fetch(lambda fetcher, download: fetcher.fetch(reference, download))

    def weights(self, weights: Sequence[Weights], folder: Path) -> Sequence[Path]:
        """Put weights into the folder of their model; return the one without a place there; raises ProjectError."""
        return self._fetch(lambda fetcher, download: fetcher.fetch_weights(weights, folder, download))

    def _fetch(self, work: Callable[[Fetcher, Download], Coroutine[Any, Any, T]]) -> T:
        fetcher = Fetcher(CacheOptions())
        self._held.callback(fetcher.close)
        with ThreadPoolExecutor(1) as thread:  # the caller may be a coroutine, with a loop of its own
            try:
                return thread.submit(fetch_now, work, fetcher).result()
            except RemoteError as error:
                raise ProjectError(error.message) from None


class Elsewhere:
    """Fetches a model that lies elsewhere as a whole, and the `weights` of models."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._fetcher = Fetcher(options.cache)
        self._digests = Digests()
        self._models: dict[str, Path] = {}  # that have been fetched, by name
        self._weights: dict[str, Path] = {}  # that setup() gets, by the model

    @property
    def _is_whole(self) -> bool:
        """True if the model that is served alone lies elsewhere as a whole."""
        return self._options.target is not None and is_remote(self._options.target)

    def has_part_of(self, name: str) -> bool:
        """True if a model, or something that it needs, lies elsewhere. May block."""
        try:
            return self._is_whole or bool(read_settings(self._folder(name)).weights)
        except ProjectError:
            return False  # reading the model reports it

    async def fetch(self, name: str, download: Download) -> None:
        """Bring what lies elsewhere of a model; raises RemoteError and ProjectError."""
        async with telling(download, self._options.on_progress, model=name):
            if self._is_whole:
                self._models[name] = await self._fetcher.fetch(remote_model(self._options.target or ""), download)
            folder = self._folder(name)
            weights = read_settings(folder).weights
            found = await self._fetcher.fetch_weights(weights, folder, download)
        self._weights.pop(name, None)
        for path in found:
            self._weights[name] = path

    def target(self, name: str) -> str | None:
        """Return the target of a model that is served alone: its fetched copy, or the named one."""
        return str(self._models[name]) if name in self._models else self._options.target

    def shown(self, name: str) -> str:
        """Return the place of a model that is served alone, for an error."""
        return remote_model(self._options.target or "").shown if self._is_whole else str(self._folder(name))

    def content(self, name: str, on_disk: ModelAlone | Repository) -> str:
        """Return the digest of the files of a model, with those that have been fetched; "" says nothing. May block."""
        found = self._digests.of_content(self._folder(name)) if self._is_whole else on_disk.content(name)
        return f"{found} {self._weights.get(name, '')}" if found else ""

    def named(self, name: str, source: ModelSource | ProjectError) -> ModelSource | ProjectError:
        """Return a model under its name, with the weights that have been fetched for its setup()."""
        if isinstance(source, ProjectError):
            return source
        variables = source.variables
        if name in self._weights and variables.weights is None:
            variables = dataclasses.replace(variables, weights=str(self._weights[name]))
        return msgspec.structs.replace(source, name=name, variables=variables)

    def close(self) -> None:
        """Let go of what has been fetched."""
        self._fetcher.close()

    def _folder(self, name: str) -> Path:
        """Return the folder whose `geartrain.yaml` is that of a model."""
        source = self._options.source
        if isinstance(source, Repository):
            return source.folder(name)
        fetched = self._models.get(name, source.root)
        return fetched.parent if fetched.is_file() else fetched
