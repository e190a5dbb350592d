"""The equal workers of a deployment, taken together: their setup, their health, their slots."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.printed.text import Printed
from geartrain.service.models.own_metrics import DeployedMetrics
from geartrain.service.models.replicas import ModelSetupError, Replica, ReplicaReport, SetupReport, SpawnReplica
from geartrain.service.models.restarts import RestartPolicy
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.permits import PermitPool, SharedPermits

_NOT_READY = {
    Health.UNKNOWN: "Setup has not begun yet. GET /health-check for status.",
    Health.STARTING: "Setup has not finished yet. Wait until it has finished, or GET /health-check for status.",
    Health.SETUP_FAILED: "Setup has failed, so no prediction can be made. GET /health-check for its logs.",
    Health.DEFUNCT: "The model's worker is gone, so no prediction can be made. GET /health-check for the reason; with "
    "--restart on-crash, the server starts another worker.",
}
HEALTHCHECK_TIMEOUT: Final = 5.0  # seconds; observed Cog, section 4
_READY = Health.READY  # to read it from its class takes several times as long
_BEST_FIRST = (Health.READY, Health.STARTING, Health.DEFUNCT, Health.SETUP_FAILED, Health.UNKNOWN)


class RestartReport(msgspec.Struct, frozen=True):
    """Number of restarts of workers, and the reason for the latest."""

    count: int
    last_reason: str | None


class HealthReport(msgspec.Struct, frozen=True):
    """The health of a model now, and what explains it."""

    health: Health
    setup: SetupReport
    healthcheck_error: str | None = None
    defunct_reason: str | None = None
    replicas: tuple[ReplicaReport, ...] = ()  # of a model that has several
    restarts: RestartReport = RestartReport(0, None)


class WorkersObserver(Protocol):
    """Hears what concerns all workers of a deployment."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """A worker has loaded the model, or another one that differs from the one before is ready."""

    def on_health(self, health: Health) -> None:
        """The health of a worker has changed; `health` is that of all of them together."""

    def on_setup_output(self, source: LogSource, data: str) -> None:
        """The load or setup of a worker has written to a stream."""


class Workers:
    """The replicas of one deployment. Their health is that of the best of them."""

    def __init__(
        self,
        spawn: SpawnReplica,
        observer: WorkersObserver,
        *,
        replicas: int = 1,
        restarts: RestartPolicy | None = None,
        own_metrics: DeployedMetrics | None = None,
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`restarts`: whether a crashed worker is followed by another; None: it is not, as documented.

        `own_metrics` takes what the author's own metrics are told of. `labels` say in the log which model it is.
        """
        self.own_metrics = own_metrics or DeployedMetrics()
        self.labels: Mapping[str, str] = labels or {}
        self.health = Health.UNKNOWN
        self.replicas = tuple(
            Replica(self, functools.partial(spawn, index), restarts, clock=clock) for index in range(replicas)
        )
        self.permits: PermitPool | SharedPermits = self.replicas[0].permits  # the slots of the workers that live
        self._observer = observer
        self._has_loaded = False
        self._check = HealthCheck()

    # life

    def spawn(self) -> None:
        """Spawn the workers; needs no running loop. Raises OSError if one cannot be spawned, and ends the others."""
        spawned: list[Replica] = []
        try:
            for replica in self.replicas:
                replica.spawn()
                spawned.append(replica)
        except OSError:
            for replica in spawned:
                replica.worker.kill("another replica could not be started")
            raise

    async def start(self, *, time_limit: float | None = None) -> None:
        """Wait until the workers are set up, each for at most `time_limit` seconds, None for no limit.

        They are ready with the first that is; raises `ModelSetupError` if all of them fail.
        """
        starts = (replica.start(time_limit=time_limit) for replica in self.replicas)
        results = await asyncio.gather(*starts, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if len(errors) == len(self.replicas) or not isinstance(error, ModelSetupError):
                raise error

    async def stop(self, grace: float) -> None:
        """End the workers, with `grace` seconds for those that are ready."""
        await asyncio.gather(*(replica.stop(grace) for replica in self.replicas))

    # owner of its replicas

    def on_replica(self, replica: Replica) -> None:
        """The health of a replica has changed."""
        if replica.health is _READY:
            self._has_loaded = True
            self._observer.on_loaded(replica.info)
        else:
            self.own_metrics.forget(replica)
        if len(self.replicas) == 1:
            self.health = replica.health
            self.permits = replica.permits
        else:
            found = {each.health for each in self.replicas}
            self.health = next(health for health in _BEST_FIRST if health in found)
            self.permits = SharedPermits(each.permits for each in self.replicas if each.health is _READY)
        self._observer.on_health(self.health)

    def on_replica_loaded(self, info: WorkerInfo) -> None:
        """A replica has loaded the model. Only the first counts here: a later one may differ, and has to be ready."""
        if not self._has_loaded:
            self._has_loaded = True
            self._observer.on_loaded(info)

    def on_replica_output(self, source: LogSource, data: str) -> None:
        """The setup of a replica has written to a stream."""
        self._observer.on_setup_output(source, data)

    def on_replica_metrics(self, replica: Replica, reports: Sequence[OwnReport]) -> None:
        """The author's own metrics have changed in the worker of a replica."""
        self.own_metrics.add(replica, reports)

    # queries

    def check_ready(self) -> None:
        """Raise `NOT_READY` unless a prediction can be made."""
        if self.health is not _READY:
            raise self.not_ready()

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""
        return GeartrainError(Code.NOT_READY, _NOT_READY.get(self.health, _NOT_READY[Health.STARTING]))

    @property
    def are_all_ready(self) -> bool:
        """True if each replica can take predictions."""
        return all(replica.health is _READY for replica in self.replicas)

    @property
    def restarts(self) -> RestartReport:
        """The restarts of all replicas together."""
        reasons = [replica.restarts.last_reason for replica in self.replicas if replica.restarts.last_reason]
        return RestartReport(sum(each.restarts.count for each in self.replicas), reasons[-1] if reasons else None)

    @property
    def lost(self) -> str | None:
        """Reason for the loss of a worker, None if all are alive."""
        return next((replica.lost for replica in self.replicas if replica.lost is not None), None)

    @property
    def setup(self) -> SetupReport:
        """Result of setup, over all replicas."""
        if len(self.replicas) == 1:
            return self.replicas[0].setup
        setups = [replica.setup for replica in self.replicas]
        ends = [setup.completed_at for setup in setups]
        return SetupReport(
            started_at=min(setup.started_at for setup in setups),
            completed_at=None if None in ends else max(end for end in ends if end is not None),
            failed=all(setup.failed for setup in setups),
            printed=Printed("".join([*[setup.logs for setup in setups[:-1]], str(setups[-1].printed)])),
            reason=setups[-1].reason,
        )

    async def report(self, *, is_free: Callable[[], bool]) -> HealthReport:
        """Return the health now, after asking the author's healthcheck if there is one.

        `is_free` says whether one more prediction would be admitted, where all is well.
        """
        error = None
        if self.health is _READY:
            ready = [replica for replica in self.replicas if replica.health is _READY]
            error = await self._check.run([each.worker for each in ready if each.info.has_healthcheck])
        replicas = tuple(replica.report() for replica in self.replicas) if len(self.replicas) > 1 else ()
        health, defunct = self.health, None
        if health is not _READY:
            error, defunct = None, self.lost
        elif error is not None:
            health = Health.UNHEALTHY
        elif not is_free():
            health = Health.BUSY
        return HealthReport(health, self.setup, error, defunct, replicas, self.restarts)


class HealthCheck:
    """Runs the healthchecks of workers. Concurrent callers share one run, and so its time limit."""

    def __init__(self) -> None:
        self._run: asyncio.Task[str | None] | None = None
        self._ends_at = 0.0  # on the loop's clock

    async def run(self, workers: Sequence[WorkerPort]) -> str | None:
        """Ask these workers, at most `HEALTHCHECK_TIMEOUT` seconds; return what is wrong, None if all is well."""
        if not workers:
            return None
        if self._run is None or self._run.done():
            self._run = asyncio.ensure_future(_ask_all(workers))
            self._ends_at = asyncio.get_running_loop().time() + HEALTHCHECK_TIMEOUT
        try:
            async with asyncio.timeout_at(self._ends_at):
                return await asyncio.shield(self._run)
        except TimeoutError:
            return f"Healthcheck failed: user-defined healthcheck timed out after {HEALTHCHECK_TIMEOUT} seconds"


async def _ask_all(workers: Sequence[WorkerPort]) -> str | None:
    """Return the complaint of the first unhealthy worker, if any."""
    verdicts = await asyncio.gather(*(worker.healthcheck() for worker in workers))
    return next((verdict.error or "Healthcheck failed" for verdict in verdicts if not verdict.healthy), None)
