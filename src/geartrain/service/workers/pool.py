"""The pool of a deployment's equal workers: their start, health, healthchecks, restarts and slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo, WorkerObserver
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import TO_HEALTH, Health
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.printed.text import Printed
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.scheduler import PermitPool, SharedPermits
from geartrain.service.statistics import DeployedMetrics
from geartrain.service.workers.warmup import WarmUp, WarmUpError

if TYPE_CHECKING:
    from geartrain.service.workers.cost_search import CostSearch

logger = logging.getLogger(__name__)

_NOT_READY: Final = {
    Health.UNKNOWN: "Setup has not begun yet. GET /health-check for status.",
    Health.STARTING: "Setup has not finished yet. Wait until it has finished, or GET /health-check for status.",
    Health.SETUP_FAILED: "Setup has failed, so no prediction can be made. GET /health-check for its logs.",
    Health.DEFUNCT: "The model's worker is gone, so no prediction can be made. GET /health-check for the reason; with "
    "--restart on-crash, the server starts another worker.",
}
HEALTHCHECK_TIMEOUT: Final = 5.0  # seconds; observed Cog, section 4
_BEST_FIRST: Final = (Health.READY, Health.STARTING, Health.DEFUNCT, Health.SETUP_FAILED, Health.UNKNOWN)

SpawnReplica = Callable[[int, WorkerObserver], WorkerPort]
"""Spawns a worker for a replica by its index from 0 on; raises OSError without a process. Needs no running loop."""


class RestartPolicy(msgspec.Struct, frozen=True):
    """Start again after a crash: at most `limit` times in a row, each after twice the wait. Times in seconds."""

    limit: int = 5
    first_delay: float = 0.5
    longest_delay: float = 30.0
    good_for: float = 600.0  # a worker that was ready for so long begins a new row


class StartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Start of the workers of a pool, and their restarts.

    Attributes:
        replicas: the number of equal workers.
        time_limit: seconds for load and setup of a worker, which is killed when they are over; None for no limit.
        warm_up: the examples that each worker runs before it is ready.
        restarts: after a crash; None: the worker stays DEFUNCT, as documented.
        check: the reason against a model that has been loaded, before its setup; "" for none.
        run_timeout: seconds that a run may take; None for no limit.
    """

    replicas: int = 1
    time_limit: float | None = None
    warm_up: WarmUp | None = None
    restarts: RestartPolicy | None = None
    check: Callable[[WorkerInfo], str] = lambda _: ""
    run_timeout: float | None = None


# reports


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


class PoolObserver(Protocol):
    """Receiver of the events of a pool."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """A worker has loaded the model, or another one that differs from the one before is ready."""

    def on_health(self, health: Health) -> None:
        """The health of a worker has changed; `health` is that of all of them together."""

    def on_setup_output(self, text: str, /) -> None:
        """The load or setup of a worker has written to a stream."""

    def on_model_call(self, call: ModelCallPort) -> None:
        """The setup of a worker calls another model."""


class WorkerPool:
    """The equal workers of a deployment, taken together. Their health is that of the best of them."""

    def __init__(
        self,
        spawn: SpawnReplica,
        observer: PoolObserver,
        *,
        policy: StartPolicy | None = None,
        own_metrics: DeployedMetrics | None = None,
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`own_metrics` takes the author's own metrics. `labels` name the model in log records."""
        self.policy = policy or StartPolicy()
        self.own_metrics = own_metrics or DeployedMetrics()
        self.labels: Mapping[str, str] = labels or {}
        self.spawn_replica = spawn
        self.observer = observer
        self.clock = clock
        self.health = Health.UNKNOWN
        self.replicas = tuple(Replica(self, index) for index in range(self.policy.replicas))
        self.permits: PermitPool | SharedPermits = self.replicas[0].permits  # the slots of the workers that live
        self._costs: CostSearch | None = None
        self._has_loaded = False
        self._check = HealthCheck()

    @property
    def costs(self) -> CostSearch:
        """The search for the limit of a call's cost: one for all workers."""
        if self._costs is None:
            from geartrain.service.workers.cost_search import CostSearch  # late: few models have one searched for

            policy = self.policy
            self._costs = CostSearch(policy.warm_up, run_timeout=policy.run_timeout, labels=self.labels)
        return self._costs

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

    async def start(self) -> None:
        """Wait until the workers that were spawned are set up.

        They are ready with the first that is; raises `ModelSetupError` if all of them fail.
        """
        results = await asyncio.gather(*(replica.start() for replica in self.replicas), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if len(errors) == len(self.replicas) or not isinstance(error, ModelSetupError):
                raise error

    async def stop(self, grace: float) -> None:
        """End the workers, with `grace` seconds for those that are ready."""
        await asyncio.gather(*(replica.stop(grace) for replica in self.replicas))

    # for its replicas

    def settle(self, replica: Replica) -> None:
        """Take over the changed health of a replica."""
        if replica.health is Health.READY:
            self._has_loaded = True
            self.observer.on_loaded(replica.info)
        else:
            self.own_metrics.forget(replica)
        if len(self.replicas) == 1:
            self.health = replica.health
            self.permits = replica.permits
        else:
            found = {each.health for each in self.replicas}
            self.health = next(health for health in _BEST_FIRST if health in found)
            self.permits = SharedPermits(each.permits for each in self.replicas if each.health is Health.READY)
        self.observer.on_health(self.health)

    def learn(self, info: WorkerInfo) -> None:
        """Report a loaded model. Only the first counts here: a later one may differ, and has to be ready."""
        if not self._has_loaded:
            self._has_loaded = True
            self.observer.on_loaded(info)

    # queries

    def check_ready(self) -> None:
        """Raise `NOT_READY` unless a prediction can be made."""
        if self.health is not Health.READY:
            raise self.not_ready()

    def not_ready(self) -> GeartrainError:
        """Create the error that says why no prediction can be made."""
        return GeartrainError(Code.NOT_READY, _NOT_READY.get(self.health, _NOT_READY[Health.STARTING]))

    @property
    def are_all_ready(self) -> bool:
        """True if each replica can take predictions."""
        return all(replica.health is Health.READY for replica in self.replicas)

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

        `is_free` returns True if one more prediction would be admitted, where all is well.
        """
        error = None
        if self.health is Health.READY:
            ready = [replica for replica in self.replicas if replica.health is Health.READY]
            error = await self._check.run([each.worker for each in ready if each.info.has_healthcheck])
        replicas = tuple(replica.report() for replica in self.replicas) if len(self.replicas) > 1 else ()
        health, defunct = self.health, None
        if health is not Health.READY:
            error, defunct = None, self.lost
        elif error is not None:
            health = Health.UNHEALTHY
        elif not is_free():
            health = Health.BUSY
        return HealthReport(health, self.setup, error, defunct, replicas, self.restarts)


_NOT_SET_UP: Final = frozenset({Health.STARTING, Health.SETUP_FAILED})


class Replica:
    """A worker, and after a crash the next one if the operator wants that. It observes them (`WorkerObserver`)."""

    def __init__(self, pool: WorkerPool, index: int) -> None:
        self.health = Health.UNKNOWN
        self.setup = SetupReport(pool.clock())
        self.restarts = Restarts(pool.policy.restarts)
        self.permits = PermitPool()
        self.lost: str | None = None  # reason for the loss of the latest worker
        self._pool = pool
        self._index = index
        self._worker: WorkerPort | None = None
        self._faults: list[str] = []  # reasons for which the latest worker cannot become ready
        self._info: WorkerInfo | None = None
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
        """Spawn a worker; raises OSError if no process can be had."""
        self._faults.clear()
        self._worker = self._pool.spawn_replica(self._index, self)

    async def start(self) -> None:
        """Wait until the worker that was spawned is set up; raise `ModelSetupError` if it fails."""
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

    def on_setup_log(self, source: LogSource, data: str) -> None:  # noqa: ARG002 - of `WorkerObserver`
        """Keep the printed text of setup: the health report shows it."""
        self.setup.printed.add(data)
        self._pool.observer.on_setup_output(data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """Report the loaded model, and check its examples before the setup, which may take minutes."""
        self._pool.learn(info)
        fault = self._pool.policy.check(info)
        if not fault and self._pool.policy.warm_up is not None:
            try:
                self._pool.policy.warm_up.check(info.signature)
            except WarmUpError as error:
                fault = str(error)
        if fault:
            self._faults.append(fault)
            self.worker.kill(fault)

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Count the author's own metrics."""
        self._pool.own_metrics.add(self, reports)

    def on_model_call(self, call: ModelCallPort) -> None:
        """Pass on a call of another model by the setup."""
        self._pool.observer.on_model_call(call)

    def on_lost(self, reason: str) -> None:
        """The worker died: for good, as the container runtime has it, unless the operator wants it restarted.

        One that dies while it runs its examples could not be set up, and one that could not be set up is ended.
        """
        if self.health in _NOT_SET_UP:
            self._faults.append(reason)
            return
        now = self._pool.clock()
        self._crashed("the worker is gone", reason, lived=now - (self.setup.completed_at or now))

    # inside

    def _crashed(self, what: str, reason: str, *, lived: float) -> None:
        """Start another worker after a pause, or give up. `lived`: seconds that the crashed one has been ready."""
        self.lost = reason
        labels = self._pool.labels
        delay = self.restarts.next_delay(reason, lived=lived)
        if delay is None:
            self.lost += self.restarts.note
            self._step(Health.DEFUNCT)
            fields = {**labels, "reason": self.lost, "hint": self.restarts.hint}
            logger.error("%s; no further prediction is possible", what, extra=fields)
            return
        logger.error("%s; another is started", what, extra={**labels, "reason": reason, "delay": delay})
        self._restarting = asyncio.ensure_future(self._restart(delay))
        if self.health is not Health.STARTING:  # it is STARTING if the crash was in a restart
            self._step(Health.STARTING)

    async def _restart(self, delay: float) -> None:
        await asyncio.sleep(delay)
        self.setup = SetupReport(self._pool.clock())
        try:
            self.spawn()
        except OSError as error:
            failure = self.setup.fail(f"no worker can be started: {error.strerror or error}", at=self._pool.clock())
            self._crashed("the restarted worker could not be spawned", failure.reason, lived=0)
            return
        worker = self.worker
        try:
            await self._set_up(worker)
        except ModelSetupError as error:
            await worker.stop(0)  # a worker whose setup failed may still be running, with all its memory
            self._crashed("the restarted worker could not be set up", error.reason, lived=0)

    async def _set_up(self, worker: WorkerPort) -> None:
        """Wait until a worker is set up and has run its examples; raise `ModelSetupError` if it fails."""
        policy, clock = self._pool.policy, self._pool.clock
        began = time.monotonic()
        try:
            async with setup_limit(policy.time_limit, worker):
                info = await worker.start()
                if policy.warm_up is not None:
                    await policy.warm_up.run(worker, info, self)
                ends_at = None if policy.time_limit is None else began + policy.time_limit
                if info.batching is not None and info.batching.policy.auto_cost:
                    info = await self._pool.costs.settle(worker, info, self, ends_at=ends_at)
        except TimeoutError:
            await worker.stop(0)
            raise self.setup.fail(f"worker setup timed out after {policy.time_limit:g} seconds", at=clock()) from None
        except WarmUpError as error:
            await worker.stop(0)  # without its examples it is of no use
            raise self.setup.fail(str(error), at=clock()) from error
        except Exception as error:
            raise self.setup.fail(next(iter(self._faults), str(error)), at=clock()) from error
        if self._faults:  # it died after its last example
            raise self.setup.fail(self._faults[0], at=clock())
        self._info = info
        self.permits = PermitPool.of(worker, info.slots)
        self.setup.completed_at = clock()
        self._step(Health.READY)

    def _step(self, health: Health) -> None:
        self.health = TO_HEALTH[health](self.health)
        self._pool.settle(self)


class Restarts:
    """The restarts of one replica so far."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self._row = 0
        self.count = 0
        self.last_reason: str | None = None

    @property
    def note(self) -> str:
        """Addition to the reason of a crash without a restart; empty if restarts are off."""
        policy = self._policy
        return "" if policy is None else f"; no further restart: the limit of restarts in a row is {policy.limit}"

    @property
    def hint(self) -> str:
        """Advice for an operator about a crash without a restart."""
        if self._policy is None:
            return "start the server again; with --restart on-crash another worker follows by itself"
        return "start the server again, or load the model anew"

    def next_delay(self, reason: str, *, lived: float) -> float | None:
        """Note a crash; return the seconds to wait before the next start, or None if there shall be none.

        `lived`: seconds that the worker had been ready; 0 for one that died while it was set up, which is one more
        crash in a row however long that took.
        """
        policy = self._policy
        if policy is None:
            return None
        if lived > policy.good_for:
            self._row = 0
        if self._row >= policy.limit:
            return None
        delay = min(policy.longest_delay, policy.first_delay * 2**self._row)
        self._row += 1
        self.count += 1
        self.last_reason = reason
        return float(delay)


@contextlib.asynccontextmanager
async def setup_limit(seconds: float | None, worker: WorkerPort) -> AsyncIterator[None]:
    """Raise TimeoutError inside the block when the time is up; None disables the limit.

    The time begins anew when it is up while somebody debugs the worker.
    """
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def set_timer(after: float) -> None:
        timers[:] = [loop.call_later(after, on_time_up, after)]

    def on_time_up(after: float) -> None:
        if worker.is_debugged:
            set_timer(after)
        else:
            scope.reschedule(loop.time())

    async with asyncio.timeout(None) as scope:
        if seconds is not None:
            set_timer(seconds)
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


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
