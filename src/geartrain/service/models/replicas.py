"""One of the equal workers of a model: its setup, its death, and its restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from geartrain.domain.predictions.calls import WorkerInfo, WorkerObserver
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import TO_HEALTH, Health
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.printed.text import Printed
from geartrain.service.models.restarts import RestartPolicy, Restarts
from geartrain.service.models.setup_limit import setup_limit
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.permits import PermitPool

logger = logging.getLogger(__name__)


class SetupReport(msgspec.Struct):
    """Result of setup. Times in seconds since the epoch."""

    started_at: float
    completed_at: float | None = None
    failed: bool = False
    printed: Printed = msgspec.field(default_factory=Printed)
    reason: str = ""  # reason for a failure

    @property
    def logs(self) -> str:
        """Printed text of load and setup, and the reason for which they failed."""
        return f"{self.printed}{self.reason}\n" if self.reason else str(self.printed)

    def fail(self, reason: str, *, at: float) -> ModelSetupError:
        """Note that setup has failed, and return the error that says so."""
        self.completed_at = at
        self.failed = True
        logs = self.logs
        self.reason = reason
        return ModelSetupError(reason, logs)


class ModelSetupError(Exception):
    """The model could not be made ready: the reason, and all that setup printed."""

    def __init__(self, reason: str, logs: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.logs = logs


class ReplicaReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Health of one of several replicas, with a reason if it is not well."""

    status: Health
    reason: str | None = None


Spawn = Callable[[WorkerObserver], WorkerPort]
"""Spawns a worker that is heard by an observer; raises OSError if no process can be had. Needs no running loop."""

SpawnReplica = Callable[[int, WorkerObserver], WorkerPort]
"""As `Spawn`, for one of several replicas, by its index from 0 on."""


class ReplicaOwner(Protocol):
    """The workers that a replica is one of."""

    labels: Mapping[str, str]  # of their model, in the log

    def on_replica(self, replica: Replica) -> None:
        """Its health has changed."""

    def on_replica_loaded(self, info: WorkerInfo) -> None:
        """Its worker has loaded the model and begins its setup."""

    def on_replica_output(self, source: LogSource, data: str) -> None:
        """Its setup has written to a stream."""

    def on_replica_metrics(self, replica: Replica, reports: Sequence[OwnReport]) -> None:
        """The author's own metrics have changed in its worker."""


class Replica:
    """A worker, and after a crash the next one if the operator wants that. It observes them (`WorkerObserver`)."""

    def __init__(
        self, owner: ReplicaOwner, spawn: Spawn, policy: RestartPolicy | None, *, clock: Callable[[], float]
    ) -> None:
        """`policy`: whether a crashed worker is followed by another; None: it is not, as documented."""
        self.health = Health.UNKNOWN
        self.setup = SetupReport(clock())
        self.restarts = Restarts(policy)
        self.permits = PermitPool()
        self.lost: str | None = None  # reason for the loss of the latest worker
        self._owner = owner
        self._spawn = spawn
        self._worker: WorkerPort | None = None
        self._info: WorkerInfo | None = None
        self._clock = clock
        self._time_limit: float | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def worker(self) -> WorkerPort:
        """The latest worker; raises RuntimeError before the first one is spawned."""
        if self._worker is None:
            msg = "no worker has been spawned"
            raise RuntimeError(msg)
        return self._worker

    @property
    def info(self) -> WorkerInfo:
        """Return the self-description of the latest ready worker; raise RuntimeError before the first one."""
        if self._info is None:
            msg = "no worker has been ready"
            raise RuntimeError(msg)
        return self._info

    def spawn(self) -> None:
        """Spawn the first worker; raises OSError if no process can be had."""
        self._worker = self._spawn(self)

    async def start(self, *, time_limit: float | None = None) -> None:
        """Wait until the worker that was spawned is set up; raise `ModelSetupError` if it fails.

        `time_limit` in seconds bounds the whole of load and setup; the worker is killed when it runs out.
        """
        self._time_limit = time_limit
        self._step(Health.STARTING)
        try:
            await self._set_up(self.worker)
        except ModelSetupError:
            self._step(Health.SETUP_FAILED)
            raise

    async def stop(self, grace: float) -> None:
        """End the worker: at once, unless it is ready and has `grace` seconds."""
        if self._restarting is not None:
            self._restarting.cancel()
        if self._worker is not None:
            await self._worker.stop(grace if self.health is Health.READY else 0)

    def report(self) -> ReplicaReport:
        """Return the health of this replica."""
        if self.health is Health.READY:
            return ReplicaReport(Health.READY if self.permits.idle else Health.BUSY)
        return ReplicaReport(self.health, self.lost or (self.setup.reason.strip() if self.setup.failed else None))

    # the worker's observer

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Keep what setup prints: the health report shows it."""
        self.setup.printed.add(data)
        self._owner.on_replica_output(source, data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """Tell the model what the worker has loaded, before its setup."""
        self._owner.on_replica_loaded(info)

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Pass them on."""
        self._owner.on_replica_metrics(self, reports)

    def on_lost(self, reason: str) -> None:
        """The worker died: for good, as the container runtime has it, unless the operator wants it restarted."""
        now = self._clock()
        self._crashed("the worker is gone", reason, lived=now - (self.setup.completed_at or now))

    # inside

    def _crashed(self, what: str, reason: str, *, lived: float) -> None:
        """Start another worker after a pause, or give up. `lived`: seconds that the crashed one has been ready."""
        self.lost = reason
        delay = self.restarts.next_delay(reason, lived=lived)
        if delay is None:
            self.lost += self.restarts.note
            self._step(Health.DEFUNCT)
            fields = {**self._owner.labels, "reason": self.lost, "hint": self.restarts.hint}
            logger.error("%s; no further prediction is possible", what, extra=fields)
            return
        logger.error("%s; another is started", what, extra={**self._owner.labels, "reason": reason, "delay": delay})
        self._restarting = asyncio.ensure_future(self._restart(delay))
        if self.health is not Health.STARTING:  # it is STARTING if the crash was in a restart
            self._step(Health.STARTING)

    async def _restart(self, delay: float) -> None:
        await asyncio.sleep(delay)
        self.setup = SetupReport(self._clock())
        try:
            worker = self._spawn(self)
        except OSError as error:
            failure = self.setup.fail(f"no worker can be started: {error.strerror or error}", at=self._clock())
            self._crashed("the restarted worker could not be spawned", failure.reason, lived=0)
            return
        try:
            await self._set_up(worker)
        except ModelSetupError as error:
            await worker.stop(0)  # a worker whose setup failed may still be running, with all its memory
            self._crashed("the restarted worker could not be set up", error.reason, lived=0)

    async def _set_up(self, worker: WorkerPort) -> None:
        """Wait until a worker is set up; raise `ModelSetupError` if it fails."""
        self._worker = worker
        try:
            async with setup_limit(self._time_limit, worker):
                info = await worker.start()
        except TimeoutError:
            await worker.stop(0)
            raise self.setup.fail(
                f"worker setup timed out after {self._time_limit:g} seconds", at=self._clock()
            ) from None
        except Exception as error:
            raise self.setup.fail(str(error), at=self._clock()) from error
        self._info = info
        self.permits = PermitPool.of(worker, info.slots)
        self.setup.completed_at = self._clock()
        self._step(Health.READY)

    def _step(self, health: Health) -> None:
        self.health = TO_HEALTH[health](self.health)
        self._owner.on_replica(self)
