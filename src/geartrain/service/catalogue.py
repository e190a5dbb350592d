"""The models of a server, by name and version: which there are, and how they come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.lifecycle import Health
from geartrain.domain.statistics import ModelStatistics
from geartrain.service.inference import Inference
from geartrain.service.loads import Loads
from geartrain.service.model import Model
from geartrain.service.predictions import PredictionService
from geartrain.service.shelves import (
    IndexEntry,
    LoadError,
    RepositoryPort,
    Shelf,
    State,
    Step,
    VersionPort,
    Wanted,
    not_available,
    unknown,
)

__all__ = [
    "Catalogue",
    "IndexEntry",
    "LoadError",
    "RepositoryPort",
    "State",
    "Step",
    "VersionPort",
    "Wanted",
]

logger = logging.getLogger(__name__)

_NO_REPOSITORY = "'{}' cannot be {}: no model repository is served"


class Catalogue:
    """Finds what a request names, and has models loaded, reloaded and unloaded.

    Without a repository there are only the models that `add` has put in, and they stay.
    """

    def __init__(
        self,
        repository: RepositoryPort | None = None,
        *,
        default_model: str | None = None,
        grace: float | None = 30.0,
        tell: Callable[[Step], None] = lambda _step: None,
    ) -> None:
        """`default_model`: the one whose Cog API is at the root; the only one, if there is only one.

        `grace`: the seconds that the requests of a version have to end when it is replaced or unloaded. `tell` hears of
        all that becomes of a model.
        """
        self._shelves: dict[str, Shelf] = {}
        self._default_model = default_model
        self._repository = repository
        self._loads = None if repository is None else Loads(repository, grace=grace, tell=tell, settle=self._settle)
        self._listeners: list[Callable[[str], None]] = []

    def add(self, inference: Inference) -> None:
        """Serve a model version that somebody else starts and ends."""
        model = inference.service.model
        shelf = self._shelves.setdefault(model.name, Shelf(model.name))
        version = shelf.version(model.version)
        version.state, version.served = "READY", _Fixed(inference)
        shelf.is_wanted, shelf.wanted = True, Wanted(tuple(shelf.numbers()))
        self._settle(shelf)

    # what is there

    def find(self, name: str, version: str = "") -> Inference:
        """Return a model version, the default one without a `version`.

        It need not be ready: whoever goes on with it may meet `NOT_READY`. Raises `NOT_FOUND` when there is none, or
        none that is served; `NOT_READY` when that version could not be loaded, or has been unloaded.
        """
        shelf = self._shelves.get(name)
        if shelf is None:
            raise unknown(name)
        found = shelf.inferences.get(_normal(version)) if version else shelf.default
        if found is not None:
            return found
        if not version or not shelf.inferences:
            raise not_available(name)
        if _normal(version) not in shelf.versions:
            raise unknown(name, version)
        raise GeartrainError(
            Code.NOT_READY, f"Request for unknown model: '{name}' version {version} is not at ready state"
        )

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a model that can be asked for, in the order of their numbers; raise `NOT_FOUND`."""
        shelf = self._shelves.get(name)
        if shelf is None:
            raise unknown(name)
        if not shelf.inferences:
            raise not_available(name)
        return tuple(shelf.inferences)

    def describe(self, name: str, version: str = "") -> tuple[Model, tuple[str, ...]]:
        """Return a model version whose inputs and outputs are asked for, and the versions to name with it.

        As `find` and `versions`, but a version whose setup has failed is found too: its signature was known before.
        Raises `NOT_FOUND` and `NOT_READY`. The signature of what is returned may not be known yet.
        """
        try:
            found = self.find(name, version)
        except GeartrainError:
            failed = self._failed(name, version)
            if failed is None:
                raise
            return failed, (failed.version,)
        model = found.service.model
        return model, (model.version,) if version else self.versions(name)

    def _failed(self, name: str, version: str) -> Model | None:
        """Return a model version that has been loaded, and whose setup has failed."""
        shelf = self._shelves.get(name)
        service = None if shelf is None else shelf.service(_normal(version))
        if service is None or not service.model.loaded.is_set() or service.model.health is not Health.SETUP_FAILED:
            return None
        return service.model

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model version can take requests; False also for one that is not there."""
        shelf = self._shelves.get(name)
        if shelf is None:
            return False
        number = _normal(version) if version else ("" if shelf.default is None else shelf.default.service.model.version)
        return number in shelf.versions and shelf.versions[number].is_ready

    def all_ready(self) -> bool:
        """Whether every model that was to be loaded can take requests."""
        return all(shelf.is_ready() for shelf in self._shelves.values() if shelf.is_wanted)

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """List what there is; with `ready`, only what can take requests."""
        names = set(self._shelves) | set(() if self._repository is None else self._repository.names())
        entries: list[IndexEntry] = []
        for name in sorted(names):
            shelf = self._shelves.get(name)
            if shelf is not None:
                entries += shelf.entries(ready=ready)
            elif not ready:
                entries.append(IndexEntry(name))
        return entries

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return the counts of one model version, or of all that fit; raise `NOT_FOUND`."""
        if not name:
            return [each for key in sorted(self._shelves) for each in self._statistics(key)]
        inference = self.find(name, version)
        return self._statistics(name, inference.service.model.version if version else "")

    def _statistics(self, name: str, version: str = "") -> list[ModelStatistics]:
        shelf = self._shelves[name]
        return shelf.statistics((version,) if version else shelf.inferences)

    # what Cog's API needs

    @property
    def default_model(self) -> str | None:
        """The model whose Cog API is at the root."""
        if self._default_model is None and len(self._shelves) == 1:
            return next(iter(self._shelves))
        return self._default_model

    def names(self) -> list[str]:
        """Return the models that are known, loaded or not."""
        return sorted(self._shelves)

    def knows(self, name: str) -> bool:
        """Whether there is or has been such a model."""
        return name in self._shelves

    def is_wanted(self, name: str) -> bool:
        """Whether a model is to be served, well or not."""
        shelf = self._shelves.get(name)
        return shelf is not None and shelf.is_wanted

    def service(self, name: str, version: str = "") -> PredictionService:
        """Return the service of a model version, as `find` does, but also one whose health says why it is not served.

        Raises `NOT_FOUND` for what has never been there.
        """
        shelf = self._shelves.get(name)
        if shelf is None:
            raise unknown(name)
        number = _normal(version) if version else ""
        if number and number not in shelf.versions:
            raise unknown(name, version)
        return shelf.service(number) or shelf.absent(number)

    def inferences(self) -> Iterable[Inference]:
        """Give every model version that is served, in order."""
        for name in sorted(self._shelves):
            yield from self._shelves[name].inferences.values()

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Have `listener` told the name of each model of which another version is served from now on, or none."""
        self._listeners.append(listener)

    def _settle(self, shelf: Shelf) -> None:
        shelf.settle()
        for listener in self._listeners:
            listener(shelf.name)

    # coming and going

    def begin(self, names: Iterable[str] | None = None) -> None:
        """Know every model of the repository, and begin to load these, None for all of them; nothing is raised."""
        if self._loads is None or self._repository is None:
            return
        known = self._repository.names()
        for name in known:
            self._shelves.setdefault(name, Shelf(name))
        if len(known) == 1:
            self._default_model = known[0]  # also when others come later
        for name in known if names is None else set(known).intersection(names):
            self._loads.begin(self._shelves[name])

    async def load(self, name: str) -> None:
        """Load a model of the repository, or load it anew; return when it is ready.

        A version that is loaded already is served by its workers until the new ones are ready; if they do not become
        so, for good. Raises `GeartrainError`: `NOT_FOUND`, `LOAD_FAILED` with the reason, `UNSUPPORTED`.
        """
        if self._loads is None or self._repository is None:
            raise GeartrainError(Code.UNSUPPORTED, _NO_REPOSITORY.format(name, "loaded"))
        shelf = self._shelves.get(name)
        if shelf is None:
            if name not in await asyncio.to_thread(self._repository.names):
                msg = f"failed to load '{name}', failed to poll from model repository"
                raise GeartrainError(Code.NOT_FOUND, msg)
            shelf = self._shelves.setdefault(name, Shelf(name))
        await self._loads.load(shelf)

    async def unload(self, name: str) -> None:
        """Take a model out of service; return when its requests have ended. Raises `GeartrainError`: `NOT_FOUND`."""
        if self._loads is None or self._repository is None:
            raise GeartrainError(Code.UNSUPPORTED, _NO_REPOSITORY.format(name, "unloaded"))
        shelf = self._shelves.get(name)
        if shelf is None:
            raise unknown(name)
        noting = asyncio.ensure_future(asyncio.to_thread(self._repository.note, name))
        await self._loads.unload(shelf)
        await noting

    async def remove(self, name: str) -> None:
        """Unload a model that is no longer in the repository, and forget it; return when its requests have ended.

        It stays if somebody has it loaded meanwhile.
        """
        shelf = self._shelves.get(name)
        if self._loads is None or shelf is None:
            return
        await self._loads.unload(shelf)
        if not shelf.loads and not shelf.is_wanted:
            del self._shelves[name]

    # at the end

    def services(self) -> list[PredictionService]:
        """Every service that may have live predictions, also of versions that have been replaced."""
        return [] if self._loads is None else [served.inference.service for served in self._loads.alive]

    def close(self) -> None:
        """Load nothing more, and admit nothing more."""
        if self._loads is not None:
            self._loads.close()
        for service in self.services():
            service.close()

    async def stop(self, *, hurry: bool) -> None:
        """End what has been loaded; `hurry`: let nobody wait for webhooks that do not arrive."""
        if self._loads is not None:
            await self._loads.stop(hurry=hurry)


class _Fixed:
    """A version that is started and ended by somebody else."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference

    async def start(self) -> None:
        """See `VersionPort`."""

    async def close(self, grace: float | None, *, hurry: bool = False) -> None:
        """See `VersionPort`."""


def _normal(version: str) -> str:
    """Take leading zeros off: `01` is 1."""
    return version.lstrip("0") or "0" if version[:1] == "0" else version
