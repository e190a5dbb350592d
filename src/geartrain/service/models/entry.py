"""A model by its name: its versions, which of them serve, and the predictions of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import DORMANT, TO_VERSION_STATE, Health, VersionState
from geartrain.domain.predictions.statistics import ModelStatistics
from geartrain.domain.printed.text import Printed
from geartrain.domain.remote.progress import Download
from geartrain.domain.state_machine import IllegalStepError
from geartrain.domain.versions import order_of
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.models.predictions import Predictions
from geartrain.service.models.repository import NOTHING, IndexEntry, State
from geartrain.service.models.waking import ModelAsleepError, Waking
from geartrain.service.workers.pool import HealthReport, SetupReport

_S = VersionState
_INDEX_STATES: Final[dict[VersionState, State]] = {
    _S.ABSENT: "UNAVAILABLE",
    _S.LOADING: "LOADING",
    _S.READY: "READY",
    _S.RELOADING: "READY",
    _S.FAILED: "UNAVAILABLE",
    _S.REFUSED: "UNAVAILABLE",
    _S.UNLOADING: "UNLOADING",
    _S.RESTING: "READY",  # it takes requests; the reason says that the first one waits
    _S.WAKING: "READY",
}
_LOADED: Final = frozenset({_S.READY, _S.RELOADING})
_AVAILABLE: Final = frozenset({_S.READY, _S.RELOADING, _S.LOADING})  # requests may name it: it is served, or will be
_DEPLOYED: Final = frozenset({_S.READY, _S.RELOADING, _S.LOADING, _S.FAILED, _S.UNLOADING, _S.WAKING})
_ON_DEMAND: Final = "not loaded; a request loads it"


class Version:
    """Moves through the states of `VERSION_STEPS`. It stays, with its record, when another deployment serves it."""

    def __init__(self, record: VersionRecord) -> None:
        self.record = record
        self.number = record.number
        self.state = _S.ABSENT
        self.reason = ""  # reason for which it is not served, or not in the version on disk
        self.leaving: set[asyncio.Future[None]] = set()  # the ends of the deployments before this one
        self._deployment: Deployment | None = None
        self.coming: tuple[Deployment, ...] = ()  # the one whose workers are on their way

    def _step(self, wanted: VersionState, reason: str = "") -> None:
        self.state = TO_VERSION_STATE[wanted](self.state)
        self.reason = reason
        self.coming = ()
        if wanted not in _DEPLOYED:
            self._deployment = None

    # its steps

    def begin(self, deployment: Deployment) -> tuple[Deployment, ...]:
        """Note that workers are on their way: the first ones, or those that shall replace the present ones.

        The first ones serve from now on. Returns those whose setup failed before, which are no longer needed.
        """
        if self.is_loaded:
            self._step(_S.RELOADING, self.reason)
            self.coming = (deployment,)
            return ()
        failed = (self.deployment,) if self.has_deployment else ()
        self._step(*((_S.WAKING, self.reason) if self.state in DORMANT else (_S.LOADING, "")))
        self._deployment = deployment
        self.coming = (deployment,)
        return failed

    def refuse(self, reason: str) -> tuple[Deployment, ...]:
        """Note that no worker could be spawned; return what failed before. A version that is served goes on."""
        if self.is_loaded:
            self.reason = f"reload failed: {reason}"
            return ()
        failed = (self.deployment,) if self.has_deployment else ()
        self._step(_S.REFUSED, reason)
        return failed

    def finish(self, deployment: Deployment) -> tuple[Deployment, ...]:
        """Have a deployment that is ready serve from now on; return those that it replaces."""
        replaced = () if self.deployment is deployment else (self.deployment,)
        self._step(_S.READY)
        self._deployment = deployment
        return replaced

    def fail(self, reason: str) -> bool:
        """Note that the workers could not be set up; return whether those before still serve."""
        if self.state is _S.RELOADING:
            self._step(_S.READY, f"reload failed: {reason}")
            return True
        self._step(_S.FAILED, reason)
        return False

    def give_up(self) -> None:
        """Note that a load has been canceled; the workers before, if there were any, still serve."""
        if self.state is _S.RELOADING:
            self._step(_S.READY, self.reason)
        elif self.state is _S.WAKING:
            self._step(_S.RESTING, _ON_DEMAND)
        else:
            self._step(_S.ABSENT, "unloaded")

    def begin_unload(self) -> bool:
        """Admit nothing more; return whether there is a deployment to be ended, and `finish_unload` to be called."""
        if self.has_deployment:
            self._step(_S.UNLOADING)
            return True
        if self.state in {_S.REFUSED, _S.RESTING}:
            self._step(_S.ABSENT)
        self.reason = "unloaded"
        return False

    def finish_unload(self) -> None:
        """Note that the deployment is gone."""
        self._step(_S.ABSENT, "unloaded")

    def rest(self) -> tuple[Deployment, ...]:
        """Have no workers until a request needs them; return the deployment that is to be ended, if there is one."""
        if self.state is _S.WAKING:  # that is `give_up`, whose caller ends what is on its way
            raise IllegalStepError("a version of a model", self.state, _S.RESTING)
        resting = (self.deployment,) if self.is_loaded else ()
        self._step(_S.RESTING, _ON_DEMAND)
        return resting

    # queries

    @property
    def deployment(self) -> Deployment:
        """The deployment that serves, or the one that failed; raises RuntimeError where there is none."""
        if self._deployment is None:
            msg = f"version {self.number} has no deployment: it is {self.state}"
            raise RuntimeError(msg)
        return self._deployment

    @property
    def has_deployment(self) -> bool:
        """True if workers of it are there: they serve, are on their way, or say why they do not."""
        return self.state in _DEPLOYED

    @property
    def is_loaded(self) -> bool:
        """True if it is served; its workers may have died since."""
        return self.state in _LOADED

    @property
    def is_ready(self) -> bool:
        """True if it can take requests."""
        return self.state in DORMANT or (self.is_loaded and self.deployment.is_ready)

    def entry(self) -> IndexEntry:
        """Return its line of the index. One whose workers are gone is no longer available, whatever it was before."""
        if self.is_loaded and not self.is_ready:
            reason = self.deployment.workers.lost or self.deployment.find_fault()
            return IndexEntry(self.record.name, self.number, "UNAVAILABLE", reason)
        return IndexEntry(self.record.name, self.number, _INDEX_STATES[self.state], self.reason)


class Loading:
    """The loads and unloads of one model, one at a time: the lock that each of them takes, and the tasks of loads.

    `download` is of what a load fetches from elsewhere; `began` is when it began, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        self.done = NOTHING  # deployments of the latest load; empty if it failed
        self.download = Download()
        self.began = 0.0

    def begin_download(self, source: str) -> None:
        """Note that the load at hand looks for what lies elsewhere."""
        self.began = self.began if self.download.is_active else time.time()
        self.download.begin(source)

    @property
    def is_idle(self) -> bool:
        """True if none is under way."""
        return not (self.tasks or self.lock.locked())


class ModelEntry:
    """One model. It stays, with its predictions and counts, while deployments come and go."""

    def __init__(self, name: str, *, keep: float = 300.0) -> None:
        """`keep`: the seconds for which a finished prediction can still be looked up."""
        self.name = name
        self.predictions = Predictions(keep=keep)
        self.versions: dict[str, Version] = {}
        self.available: dict[str, Deployment] = {}  # that requests may name, by version
        self.wanted = NOTHING
        self.is_wanted = False  # true if it is to be served, well or not
        self.fault = ""  # of the model as a whole
        self.loading = Loading()
        self.has_default = False  # true if a version serves requests that name none
        self.waking: Waking | None = None  # None: requests do not load it
        self.default: tuple[Deployment, ...] = ()  # the deployment for them; also one that failed, to say why

    # its versions

    def version(self, number: str) -> Version:
        """Return a version, which need not have been there before."""
        if number not in self.versions:
            self.versions[number] = Version(VersionRecord(self.name, number, self.predictions))
        return self.versions[number]

    def forget(self, number: str) -> None:
        """Forget a version that has no workers and is no longer wanted."""
        del self.versions[number]

    def numbers(self) -> list[str]:
        """The versions that are wanted, or have been, in the order of their numbers."""
        return sorted(self.versions, key=order_of)

    def settle(self) -> None:
        """Find out anew which deployments serve.

        The default is the latest that is loaded, even if its worker has died: a crash shall not change the answers. A
        version that is being loaded for the first time is asked only when there is no other, and one that failed only
        for what it has to say.
        """
        versions = [self.versions[number] for number in self.numbers()]
        self.available = {each.number: each.deployment for each in versions if each.state in _AVAILABLE}
        default = self.wanted.default
        if default is not None:
            chosen = [each for each in versions if each.state in _AVAILABLE and each.number == default]
        else:
            loaded = [each for each in versions if each.is_loaded]
            chosen = (loaded or [each for each in versions if each.state in _AVAILABLE])[-1:]
        failed = [each for each in versions if each.has_deployment and each.state not in DORMANT][-1:]
        self.default = tuple(each.deployment for each in chosen or failed)
        self.has_default = bool(chosen)

    def served(self) -> list[str]:
        """The versions that serve requests, or rest until a request needs them, in the order of their numbers."""
        return [each for each in self.numbers() if each in self.available or self.versions[each].state in DORMANT]

    # for requests

    def deployment(self, version: str = "") -> Deployment:
        """Return the deployment of a version, or the default one; also one that could not be made ready.

        Raises `NOT_READY`, with the reason, where there is none.
        """
        if not version:
            if self.default:
                return self.default[0]
        elif version in self.versions and self.versions[version].has_deployment:
            self.check_awake(version)
            return self.versions[version].deployment
        self.check_awake(version)
        raise GeartrainError(Code.NOT_READY, self._absence(version))

    def check_awake(self, version: str = "") -> None:
        """Raise `ModelAsleepError` where the requests for a version, or for the default one, load it."""
        if version:
            asked = [self.versions[version]] if version in self.versions else []
        else:
            asked = [] if self.default else list(self.versions.values())
        if any(each.state in DORMANT for each in asked):
            raise ModelAsleepError(self.name, self.waking)
        if is_downloading(self):
            reason = self.loading.download.describe()
            raise GeartrainError(Code.NOT_READY, f"The model '{self.name}' is not ready. {reason}")

    def _reason(self, version: str) -> str:
        """Return the reason for which no version is loaded; empty if none is wanted."""
        number = version or next(reversed(self.numbers()), "")
        known = self.versions.get(number)
        return self.fault or ("" if known is None or known.reason == "unloaded" else known.reason)

    def _absence(self, version: str) -> str:
        reason = self._reason(version)
        if reason:
            return f"The model '{self.name}' could not be loaded: {reason}"
        return f"The model '{self.name}' is not loaded. POST /v2/repository/models/{self.name}/load loads it."

    async def report(self, version: str = "") -> HealthReport:
        """Return the health of a version, or of the default one; of one that is not there, too."""
        try:
            deployment = self.deployment(version)
        except ModelAsleepError:
            return HealthReport(Health.READY, SetupReport(time.time()))
        except GeartrainError:
            if is_downloading(self):
                printed = Printed(f"{self.loading.download.describe()}\n")
                return HealthReport(Health.STARTING, SetupReport(self.loading.began, printed=printed))
            reason, now = self._reason(version), time.time()
            if not reason:
                return HealthReport(Health.UNKNOWN, SetupReport(now))
            return HealthReport(Health.SETUP_FAILED, SetupReport(now, now, failed=True, reason=reason))
        return await deployment.report()

    # descriptions

    @property
    def is_ready(self) -> bool:
        """True if all of it that is wanted can take requests."""
        if self.fault or not self.wanted.versions:
            return False
        return all(number in self.versions and self.versions[number].is_ready for number in self.wanted.versions)

    def describe_state(self) -> str:
        """Return a sentence that says how its versions are."""
        lines = self.entries(ready=False)
        states = [f"{line.version or 'no version'} {(line.state or 'unavailable').lower()}" for line in lines]
        reasons = [line.reason for line in lines if line.reason]
        return f"Model '{self.name}': {', '.join(states)}{''.join(f'; {reason}' for reason in reasons)}."

    def entries(self, *, ready: bool) -> list[IndexEntry]:
        """Return its lines of the index."""
        if is_downloading(self):
            reason = self.loading.download.describe().removesuffix(".")
            return [] if ready else [IndexEntry(self.name, "", "LOADING", reason)]
        if self.fault and not self.available:
            return [] if ready else [IndexEntry(self.name, "", "UNAVAILABLE", self.fault)]
        found = [self.versions[number] for number in self.numbers()]
        if not found:
            return [] if ready else [IndexEntry(self.name)]
        return [version.entry() for version in found if version.is_ready or not ready]

    def statistics(self, numbers: Iterable[str]) -> list[ModelStatistics]:
        """Return the counts of some versions."""
        return [self.versions[number].record.counts.statistics(self.name, number) for number in numbers]


def is_downloading(entry: ModelEntry) -> bool:
    """True if there is nothing of a model yet but a download."""
    return entry.loading.download.is_active and not entry.available


class ModelRef:
    """A model and a version as a route names them. What they are is looked up for each request."""

    __slots__ = ("_find", "version")

    def __init__(self, find: Callable[[], ModelEntry], version: str = "") -> None:
        """`find` raises `NOT_FOUND` where there is no such model; without a `version` it is the default one."""
        self._find = find
        self.version = version

    @property
    def entry(self) -> ModelEntry:
        """The model now; raises `NOT_FOUND`."""
        return self._find()

    @property
    def predictions(self) -> Predictions:
        """The predictions of the model; raises `NOT_FOUND`."""
        return self._find().predictions

    @property
    def deployment(self) -> Deployment:
        """Return the current deployment; raise `NOT_FOUND`, or `NOT_READY` with the reason."""
        entry = self._find()
        if entry.default and not self.version:  # nearly all
            return entry.default[0]
        return entry.deployment(self.version)

    async def report(self) -> HealthReport:
        """Return the health now; raises `NOT_FOUND`."""
        return await self._find().report(self.version)
