"""A version of a model: what has become of it, and the deployment that serves it."""

from __future__ import annotations

import asyncio
from typing import Final

from geartrain.domain.predictions.lifecycle import DORMANT, TO_VERSION_STATE, Health, VersionState
from geartrain.domain.state_machine import IllegalStepError
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.models.repository import IndexEntry, State

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
AVAILABLE: Final = frozenset({_S.READY, _S.RELOADING, _S.LOADING})  # requests may name it: it is served, or will be
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
        return self.state in DORMANT or (self.is_loaded and self.deployment.workers.health is Health.READY)

    def entry(self) -> IndexEntry:
        """Return its line of the index. One whose workers are gone is no longer available, whatever it was before."""
        if self.is_loaded and not self.is_ready:
            return IndexEntry(self.record.name, self.number, "UNAVAILABLE", self.deployment.workers.lost or "")
        return IndexEntry(self.record.name, self.number, _INDEX_STATES[self.state], self.reason)
