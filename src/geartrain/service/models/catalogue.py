"""The models of a server, by name and version: which there are, and how they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelEntry, ModelRef
from geartrain.service.models.reconciler import Reconciler
from geartrain.service.models.repository import IndexEntry, RepositoryPort, Step
from geartrain.service.models.residency import STAY, Residency, ResidencyPolicy
from geartrain.service.models.waking import Waking
from geartrain.service.models.wanted import ModelControl

if TYPE_CHECKING:
    from geartrain.service.models.nested import ModelCaller


class Readiness:
    """Ready are all models that were to be loaded, in a server that is not about to stop."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        """`entries`: the models by name, those of the catalogue itself."""
        self._entries = entries
        self.is_leaving = False  # the server is about to stop

    def leave(self) -> None:
        """Let the server no longer be ready, though it still serves: it is about to stop."""
        self.is_leaving = True

    @property
    def is_ready(self) -> bool:
        """True if requests should be sent to the server."""
        return not self.is_leaving and all(entry.is_ready for entry in self._entries.values() if entry.is_wanted)

    def reasons(self) -> list[str]:
        """Return the reasons for which the server is not ready, a sentence each; empty if it is."""
        found = ["The server is about to stop."] if self.is_leaving else []
        for name in sorted(self._entries):
            entry = self._entries[name]
            if entry.is_wanted and not entry.is_ready:
                found.append(entry.describe_state())
        return found


class Catalogue:
    """Finds what a request names, and has models loaded, reloaded and unloaded."""

    def __init__(
        self,
        repository: RepositoryPort,
        *,
        default_model: str | None = None,
        grace: float | None = 30.0,
        keep: float = 300.0,
        tell: Callable[[Step], None] = lambda _step: None,
        residency: ResidencyPolicy = STAY,
    ) -> None:
        """`default_model`: the one whose Cog API is at the root; the only one, if there is only one.

        `grace`: the seconds that the requests of a version have to end when it is replaced or unloaded. `keep`: the
        seconds for which a finished prediction can be looked up. `tell` hears of all that becomes of a model.
        `residency`: which models stay loaded.
        """
        self._entries: dict[str, ModelEntry] = {}
        self._default_model = default_model
        self._repository = repository
        self._keep = keep
        self.readiness = Readiness(self._entries)
        self.reconciler = Reconciler(repository, grace=grace, tell=tell, make_room=self._make_room)
        self.residency = Residency(self._entries, self.reconciler, residency, measure=repository.memory)
        self._policy = residency
        self.caller: ModelCaller | None = None  # of models by other models
        self.control: ModelControl = self  # loads and unloads that clients request; see `SharedControl`

    # models and versions

    def find(self, name: str, version: str = "") -> Deployment:
        """Return the deployment of a model version, of the default one without a `version`.

        It need not be ready: later calls may raise `NOT_READY`. Raises `NOT_FOUND` for an unknown version or one that
        is not served; `NOT_READY` for one that could not be loaded, or has been unloaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise _unknown(name)
        if not version:
            if entry.has_default:
                return entry.deployment()
            entry.check_awake()
            raise not_available(name)
        number = normal(version)
        if number in entry.available:
            return entry.available[number]
        entry.check_awake(number)
        if not entry.available:
            raise not_available(name)
        if number not in entry.versions:
            raise _unknown(name, version)
        raise GeartrainError(
            Code.NOT_READY, f"Request for unknown model: '{name}' version {clip(version)} is not at ready state"
        )

    def find_stated(self, name: str, version: str) -> Deployment:
        """Return a deployment as `find` does, also by the version that the files of another server state for it."""
        entry = self._entries.get(name)
        if entry is not None and version and normal(version) not in entry.versions:
            if not entry.available:
                entry.check_awake()
            for deployment in reversed(entry.available.values()):
                if deployment.settings.own_version == version:
                    return deployment
        return self.find(name, version)

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """List what there is; with `ready`, only what can take requests."""
        lines: list[IndexEntry] = []
        for name in sorted(set(self._entries) | set(self._repository.names())):
            entry = self._entries.get(name)
            if entry is not None:
                lines += entry.entries(ready=ready)
            elif not ready:
                lines.append(IndexEntry(name))
        return lines

    # Cog's API

    @property
    def default_model(self) -> str | None:
        """The model whose Cog API is at the root."""
        if self._default_model is None and len(self._entries) == 1:
            return next(iter(self._entries))
        return self._default_model

    def names(self) -> list[str]:
        """Return the models that are known, loaded or not."""
        return sorted(self._entries)

    def entry(self, name: str) -> ModelEntry:
        """Return a model; raise `NOT_FOUND` for what has never been there."""
        entry = self._entries.get(name)
        if entry is None:
            raise _unknown(name)
        return entry

    def refer(self, name: str, version: str = "") -> ModelRef:
        """Return a model, or a version of it, to be looked up for each request.

        Raises `NOT_FOUND` for a version that has never been there. The model need not be there yet.
        """
        number = normal(version)
        if number and number not in self.entry(name).versions:
            raise _unknown(name, version)
        return ModelRef(lambda: self.entry(name), number)

    def refer_default(self) -> ModelRef:
        """Return the model at the root, which may go and come back: then it answers that it is not loaded.

        Raises `NOT_FOUND` where there is no default.
        """
        name = self.default_model
        if name is None:
            raise GeartrainError(Code.NOT_FOUND, "This server has several models, and none of them is the default.")
        absent = ModelEntry(name)
        return ModelRef(cast("Callable[[], ModelEntry]", partial(self._entries.get, name, absent)))

    def deployments(self) -> Iterable[Deployment]:
        """Give every deployment that is available, in order."""
        for name in sorted(self._entries):
            yield from self._entries[name].available.values()

    # coming and going

    def spawn(self, names: Iterable[str] | None = None) -> None:
        """Know every model of the repository, and spawn the workers of these, None for all; needs no running loop.

        Nothing is raised and nothing is told before `reconciler.begin`.
        """
        known = self._repository.names()
        for name in known:
            self._entry(name)
        if len(known) == 1:
            self._default_model = known[0]  # also when others come later
        wanted = known if names is None else set(names)
        for name in known:
            if name in wanted:
                self.reconciler.spawn(self._entries[name])
            elif self._policy.on_demand:
                self.reconciler.note_resting(self._entries[name])
            else:
                self._repository.note(name)

    async def load(self, name: str, *, anew: bool = False) -> None:
        """Load a model of the repository, or load it anew if it has changed on disk; return when it is ready.

        A version that is loaded already is served by its workers until the new ones are ready; if they do not become
        so, for good. What serves well and has not changed is left alone, but not where it shall be loaded `anew`.
        Raises `GeartrainError`: `NOT_FOUND`, `LOAD_FAILED` with the reason.
        """
        if name not in self._entries and name not in await asyncio.to_thread(self._repository.names):
            msg = f"failed to load '{clip(name)}', failed to poll from model repository"
            raise GeartrainError(Code.NOT_FOUND, msg)
        await self.reconciler.load(self._entry(name), anew=anew)

    async def unload(self, name: str) -> None:
        """Take a model out of service; return when its requests have ended. Raises `GeartrainError`: `NOT_FOUND`."""
        entry = self.entry(name)
        noting = asyncio.ensure_future(asyncio.to_thread(self._repository.note, name))
        await self.reconciler.unload(entry)
        await noting

    async def remove(self, name: str) -> None:
        """Unload a model that is no longer in the repository, and forget it; return when its requests have ended.

        It stays if somebody has it loaded meanwhile.
        """
        if name not in self._entries:
            return
        entry = self._entries[name]
        await self.reconciler.unload(entry)
        if not entry.loading.tasks and not entry.is_wanted:
            del self._entries[name]

    def _entry(self, name: str) -> ModelEntry:
        if name not in self._entries:
            entry = self._entries[name] = ModelEntry(name, keep=self._keep)
            if self._policy.wakes:
                entry.waking = Waking(lambda: self.reconciler.wake(entry), limit=max(1, self._policy.waiting))
        return self._entries[name]

    async def _make_room(self, entry: ModelEntry) -> None:
        await self.residency.make_room(entry)


def _unknown(name: str, version: str = "") -> GeartrainError:
    """Create the error for an unknown model or version. Observed Triton, section 3."""
    what = f"'{clip(name)}' version {clip(version)}" if version else f"'{clip(name)}'"
    return GeartrainError(Code.NOT_FOUND, f"Request for unknown model: {what} is not found")


def not_available(name: str) -> GeartrainError:
    """Say that no version of a model is served. Observed Triton, section 3."""
    return GeartrainError(Code.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions")


def normal(version: str) -> str:
    """Take leading zeros off a number: `01` is 1."""
    return version.lstrip("0") or "0" if version[:1] == "0" and version.isdecimal() else version
