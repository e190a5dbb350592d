"""A model in the catalogue: its versions, what has become of each, and which of them is the default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.lifecycle import Health
from geartrain.domain.statistics import ModelStatistics
from geartrain.service.inference import Inference
from geartrain.service.model import Model
from geartrain.service.ports import OutputFilesPort
from geartrain.service.predictions import PredictionService

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]


class LoadError(Exception):
    """A model cannot be loaded; the message says why."""


class VersionPort(Protocol):
    """A version of a model that is being served, or is about to be: its workers are on their way."""

    @property
    def inference(self) -> Inference:
        """Its inferences, and by them its service. Always the same."""

    async def start(self) -> None:
        """Wait until it is ready; raise `ModelSetupError` if it cannot be."""

    async def close(self, grace: float | None, *, hurry: bool = False) -> None:
        """Admit nothing more, give what runs `grace` seconds to end (None: all it needs), and leave nothing behind.

        `hurry`: let nobody wait for webhooks that do not arrive.
        """


class Wanted(msgspec.Struct, frozen=True):
    """The versions of a model that shall be served. `default` None is the latest of them."""

    versions: tuple[str, ...]
    default: str | None = None


class RepositoryPort(Protocol):
    """The models on disk. What it is asked for is as it lies there at that moment."""

    def names(self) -> list[str]:
        """The models that are there."""

    def read(self, name: str) -> Wanted | None:
        """The versions of a model that shall be served, None if it is not there; raises `LoadError`. May block."""

    def note(self, name: str) -> None:
        """Remember that how a model lies there now is no reason to load it. May block."""

    def open(self, name: str, version: str) -> VersionPort:
        """Have the workers of a version on their way; raises `LoadError`."""


class Step(msgspec.Struct, frozen=True):
    """Something has become of a version, or of a model as a whole where it has none."""

    stage: Literal["ready", "setup-failed", "reload-failed", "unloaded"]
    name: str
    version: str = ""
    slots: int = 0
    reason: str = ""


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model version in the repository's index."""

    name: str
    version: str = ""
    state: State | Literal[""] = ""
    reason: str = ""


class Version:
    """One version on a shelf. `served` is there also when its first load has failed: it knows why."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.state: State = "UNAVAILABLE"
        self.reason = ""
        self.served: VersionPort | None = None
        self.leaving: asyncio.Task[None] | None = None  # the one before it, which still has requests

    @property
    def is_ready(self) -> bool:
        """Whether it can take requests."""
        return self._health() is Health.READY

    def _health(self) -> Health | None:
        if self.state != "READY" or self.served is None:
            return None
        return self.served.inference.service.model.health

    def entry(self, name: str) -> IndexEntry:
        """Return its line of the index. One whose workers are gone is no longer available, whatever it was before."""
        health = self._health()
        if health in {None, Health.READY} or self.served is None:
            return IndexEntry(name, self.number, self.state, self.reason)
        replicas = self.served.inference.service.model.replicas
        reason = next((replica.lost for replica in replicas if replica.lost is not None), "")
        return IndexEntry(name, self.number, "UNAVAILABLE", reason)


class Shelf:
    """The versions of one model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[str, Version] = {}
        self.inferences: dict[str, Inference] = {}  # that can be asked for, by version
        self.default: Inference | None = None  # of them, for a request that names no version
        self.wanted: Wanted | None = None  # None: it is not to be served, or not known how
        self.is_wanted = False
        self.fault = ""  # of the model as a whole
        self.lock = asyncio.Lock()  # one load or unload at a time
        self.loads: set[asyncio.Task[None]] = set()

    def version(self, number: str) -> Version:
        """Return a version, which need not have been there before."""
        return self.versions.setdefault(number, Version(number))

    def forget(self, number: str) -> None:
        """Forget a version that has no workers and is no longer wanted."""
        del self.versions[number]

    def numbers(self) -> list[str]:
        """The versions that are wanted, or have been, in the order of their numbers."""
        return sorted(self.versions, key=int)

    def settle(self) -> None:
        """Find out anew what can be asked for.

        The default is the latest that is loaded, even if its worker has died: a crash shall not change the answers.
        A version that is being loaded for the first time is asked only when there is no other.
        """
        there = {
            number: version.served.inference
            for number in self.numbers()
            if (version := self.versions[number]).served is not None and version.state in {"READY", "LOADING"}
        }
        self.inferences = there
        loaded = [number for number in there if self.versions[number].state == "READY"] or list(there)
        default = self.wanted.default if self.wanted is not None else None
        if default is not None:
            self.default = there.get(default)
        else:
            self.default = there[loaded[-1]] if loaded else None

    def service(self, version: str = "") -> PredictionService | None:
        """Return the service of a version, the default one without; also of one that could not be made ready."""
        if version:
            found = self.versions.get(version)
            return None if found is None or found.served is None else found.served.inference.service
        if self.default is not None:
            return self.default.service
        failed = [each.served for each in map(self.versions.__getitem__, self.numbers()) if each.served is not None]
        return failed[-1].inference.service if failed else None

    def absent(self, version: str = "") -> PredictionService:
        """Return a service that admits nothing, because nothing is loaded: its health and its refusals say why."""
        version = version or next(reversed(self.numbers()), "1")
        known = self.versions.get(version)
        reason = self.fault or ("" if known is None or known.reason == "unloaded" else known.reason)
        model = Model(self.name, version=version)
        model.absence = f"The model '{self.name}' is not loaded. POST /v2/repository/models/{self.name}/load loads it."
        if reason:
            model.health = Health.SETUP_FAILED
            model.absence = f"The model '{self.name}' could not be loaded: {reason}"
            setup = model.setup
            setup.failed, setup.completed_at, setup.log_parts = True, setup.started_at, [f"{reason}\n"]
        return PredictionService(model, outputs=_NoOutputs())

    def is_ready(self) -> bool:
        """Whether all of it that is wanted can take requests."""
        if self.fault or self.wanted is None:
            return False
        return all(number in self.versions and self.versions[number].is_ready for number in self.wanted.versions)

    def entries(self, *, ready: bool) -> list[IndexEntry]:
        """Return its lines of the index."""
        if self.fault and not self.inferences:
            return [] if ready else [IndexEntry(self.name, "", "UNAVAILABLE", self.fault)]
        found = [self.versions[number] for number in self.numbers()]
        if not found:
            return [] if ready else [IndexEntry(self.name)]
        return [version.entry(self.name) for version in found if version.is_ready or not ready]

    def statistics(self, numbers: Iterable[str]) -> list[ModelStatistics]:
        """Return the counts of some versions."""
        found = []
        for number in numbers:
            served = self.versions[number].served
            if served is not None:
                found.append(served.inference.service.counts.statistics(self.name, number))
        return found


class _NoOutputs:
    """Where the outputs of a model that is not loaded go."""

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """See `OutputsPort`."""
        raise NotImplementedError

    def of(self, prediction_id: str, prefix: str | None) -> OutputFilesPort:
        """See `OutputsPort`."""
        raise NotImplementedError


def unknown(name: str, version: str = "") -> GeartrainError:
    """Say that there is no such model, or no such version of it. Observed Triton, section 3."""
    what = f"'{name}' version {version}" if version else f"'{name}'"
    return GeartrainError(Code.NOT_FOUND, f"Request for unknown model: {what} is not found")


def not_available(name: str) -> GeartrainError:
    """Say that no version of a model is served. Observed Triton, section 3."""
    return GeartrainError(Code.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions")
