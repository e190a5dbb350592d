"""Reloads models whose files change, for whoever is writing them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import GeartrainError
from geartrain.project.formats import known_suffixes
from geartrain.project.repository import Repository
from geartrain.project.source import code_file
from geartrain.server.options import Progress, ServeOptions

if TYPE_CHECKING:
    from geartrain.service.catalogue import Catalogue

logger = logging.getLogger("geartrain.server")

SOURCES: Final = frozenset({".py", ".yaml", ".yml"})  # what a model writes into its own folder shall not reload it
_PULSE: Final = 200  # milliseconds: the first tells that changes are seen from now on


@contextlib.asynccontextmanager
async def watching(options: ServeOptions, catalogue: Catalogue | None) -> AsyncIterator[None]:
    """Reload models when their files change, if the operator wants that, until the end of the block."""
    if not options.reload or catalogue is None:
        yield
        return
    watch = asyncio.ensure_future(_Watch(options, catalogue).run())
    watch.add_done_callback(_report)
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


def counts(path: pathlib.Path) -> bool:
    """Whether a file that has changed is a part of a model: code, settings, or a model file where there is no code."""
    if path.suffix in SOURCES:
        return True
    is_file = path.suffix.lower() in known_suffixes() or path.name == "saved_model.pb"
    return is_file and code_file(path.parent) is None


def _report(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()) is not None:
        logger.error("files are no longer watched; models are not reloaded by themselves", exc_info=error)


class _Watch:
    """The models, and what is being done about them."""

    def __init__(self, options: ServeOptions, catalogue: Catalogue) -> None:
        self._options = options
        self._catalogue = catalogue
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._changed: set[str] = set()  # while their load was under way

    async def run(self) -> None:
        """Watch until canceled."""
        from watchfiles import DefaultFilter, awatch

        source = self._options.source
        root = source.root
        usual = DefaultFilter()
        changes = awatch(
            root,
            watch_filter=lambda change, path: counts(pathlib.Path(path)) and usual(change, path),
            yield_on_timeout=True,
            rust_timeout=_PULSE,
        )
        is_first = True
        async for found in changes:
            if is_first:
                self._options.on_progress(Progress(stage="watching", text=str(root)))
                is_first = False
            for name in self._names(path for _, path in found):
                self._on_change(name)

    def _names(self, paths: Iterable[str]) -> set[str]:
        """Return the models that the files belong to."""
        source = self._options.source
        if not isinstance(source, Repository):
            return {source.name for _ in paths}
        return {name for path in paths if (name := source.name_of(pathlib.Path(path))) is not None}

    def _on_change(self, name: str) -> None:
        if name in self._busy:
            self._changed.add(name)
            return
        task = self._busy[name] = asyncio.ensure_future(self._reload(name))
        task.add_done_callback(lambda _: self._on_reloaded(name))

    def _on_reloaded(self, name: str) -> None:
        del self._busy[name]
        if name in self._changed:
            self._changed.discard(name)
            self._on_change(name)

    async def _reload(self, name: str) -> None:
        """Do what the files ask for; what goes wrong is told by the catalogue."""
        with contextlib.suppress(GeartrainError):
            if isinstance(self._options.source, Repository) and name not in self._options.source.names():
                await self._catalogue.unload(name)
            elif self._catalogue.is_wanted(name) or (self._options.load is None and not self._catalogue.knows(name)):
                await self._catalogue.load(name)
