"""A served model: its workers, their slots, what it takes and gives, and its health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.events import LogSource
from geartrain.domain.lifecycle import Health
from geartrain.domain.signature import Signature
from geartrain.domain.tensorview import TensorView
from geartrain.domain.validation import InputValidator
from geartrain.domain.work import WorkerInfo
from geartrain.service.ports import WorkerPort
from geartrain.service.replicas import ModelSetupError, Replica, ReplicaReport, SetupReport
from geartrain.service.restarts import RestartPolicy
from geartrain.service.scheduling.permits import PermitPool, SharedPermits

__all__ = ["HealthReport", "Model", "ModelSetupError", "Noun", "SetupReport"]

Noun = Literal["prediction", "training"]

HEALTHCHECK_TIMEOUT = 5.0  # seconds; observed Cog, section 4

_NOT_READY = {
    Health.UNKNOWN: "Setup has not begun yet. GET /health-check for status.",
    Health.STARTING: "Setup has not finished yet. Wait until it has finished, or GET /health-check for status.",
    Health.SETUP_FAILED: "Setup has failed, so no prediction can be made. GET /health-check for its logs.",
    Health.DEFUNCT: "The model's worker is gone, so no prediction can be made. GET /health-check for the reason.",
}
_READY = Health.READY  # to read it from its class takes several times as long
_BEST_FIRST = (Health.READY, Health.STARTING, Health.DEFUNCT, Health.SETUP_FAILED, Health.UNKNOWN)


class HealthReport(msgspec.Struct, frozen=True):
    """The answer to "how are you?"."""

    health: Health
    setup: SetupReport
    healthcheck_error: str | None = None
    defunct_reason: str | None = None
    replicas: tuple[ReplicaReport, ...] = ()  # of a model that has several


class RestartReport(msgspec.Struct, frozen=True):
    """How often workers have been restarted, and why the latest one was."""

    count: int
    last_reason: str | None


class Model:
    """One model version and the workers that run it: it is as well as the best of them.

    With one replica, as usual, it hears the worker as its `WorkerObserver`; with several, each replica does.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "1",
        restarts: RestartPolicy | None = None,
        noun: Noun = "prediction",
        replicas: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`restarts`: whether a crashed worker is followed by another; by default it is not, as documented.

        `noun` is what its runs are called.
        """
        self.name = name
        self.noun = noun
        self.version = version
        self.health = Health.UNKNOWN
        self.absence: str | None = None  # why it has no worker, and none on its way
        self.replicas = tuple(Replica(self, restarts, clock) for _ in range(replicas))
        self.loaded = asyncio.Event()  # its signature is known
        self.on_setup_output: Callable[[LogSource, str], None] | None = None
        self.on_health: Callable[[Health], None] | None = None
        self.has_room: Callable[[], bool] = lambda: self.permits.idle > 0
        self._info: WorkerInfo | None = None
        self._validator: InputValidator | None = None
        self._plain_validator: InputValidator | None = None
        self._view: TensorView | None = None
        self.permits: PermitPool | SharedPermits = self.replicas[0].permits  # the slots of the workers that live
        self._check: asyncio.Task[str | None] | None = None
        self._check_ends = 0.0  # on the loop's clock

    # life

    async def start(self, *workers: WorkerPort, time_limit: float | None = None) -> None:
        """Take workers that are being set up, one for each replica, and wait until they are.

        It is ready with the first that is; raises `ModelSetupError` if all of them fail. `time_limit` in seconds bounds
        the whole of load and setup; a worker is killed when it runs out.
        """
        if len(workers) == 1:
            await self.replicas[0].start(workers[0], time_limit=time_limit)
            return
        starts = [
            replica.start(worker, time_limit=time_limit) for replica, worker in zip(self.replicas, workers, strict=True)
        ]
        results = await asyncio.gather(*starts, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if len(errors) == len(workers) or not isinstance(error, ModelSetupError):
                raise error

    async def stop(self, grace: float) -> None:
        """End the workers."""
        await asyncio.gather(*(replica.stop(grace) for replica in self.replicas))

    # its replicas

    def on_replica(self, replica: Replica) -> None:
        """The health of a replica has changed."""
        if replica.health is Health.READY and replica.info is not None:
            self._learn(replica.info)
        if len(self.replicas) == 1:
            self.health = replica.health
            self.permits = replica.permits
        else:
            found = {each.health for each in self.replicas}
            self.health = next(health for health in _BEST_FIRST if health in found)
            self.permits = SharedPermits(each.permits for each in self.replicas if each.health is Health.READY)
        if self.on_health is not None:
            self.on_health(self.health)

    def _learn(self, info: WorkerInfo) -> None:
        if self._info is None or info.signature != self._info.signature:
            self._validator = InputValidator(info.signature)
            self._plain_validator = None
            self._view = None
        self._info = info
        self.loaded.set()

    def on_replica_loaded(self, info: WorkerInfo) -> None:
        """A replica has loaded the model. Only the first counts here: a later one may differ, and has to be ready."""
        if self._info is None:
            self._learn(info)

    def on_replica_output(self, source: LogSource, data: str) -> None:
        """The setup of a replica has written to a stream."""
        if self.on_setup_output is not None:
            self.on_setup_output(source, data)

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """See `WorkerObserver`."""
        self.replicas[0].on_setup_log(source, data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """See `WorkerObserver`."""
        self.replicas[0].on_loaded(info)

    def on_lost(self, reason: str) -> None:
        """See `WorkerObserver`."""
        self.replicas[0].on_lost(reason)

    @property
    def setup(self) -> SetupReport:
        """How setup went, of all replicas together."""
        if len(self.replicas) == 1:
            return self.replicas[0].setup
        setups = [replica.setup for replica in self.replicas]
        ends = [setup.completed_at for setup in setups]
        return SetupReport(
            started_at=min(setup.started_at for setup in setups),
            completed_at=None if None in ends else max(end for end in ends if end is not None),
            failed=all(setup.failed for setup in setups),
            log_parts=[part for setup in setups for part in setup.log_parts],
        )

    @property
    def restarts(self) -> RestartReport:
        """The restarts of all replicas together."""
        reasons = [replica.restarts.last_reason for replica in self.replicas if replica.restarts.last_reason]
        return RestartReport(sum(each.restarts.count for each in self.replicas), reasons[-1] if reasons else None)

    # what the service needs

    @property
    def info(self) -> WorkerInfo:
        """What the worker said of itself; raises `NOT_READY` before the model is loaded."""
        if self._info is None:
            raise self.not_ready()
        return self._info

    @property
    def signature(self) -> Signature:
        """The model's inputs and output; raises `NOT_READY` before the model is loaded."""
        return self.info.signature

    @property
    def validator(self) -> InputValidator:
        """The check of inputs; raises `NOT_READY` before the model is loaded."""
        if self._validator is None:
            raise self.not_ready()
        return self._validator

    @property
    def plain_validator(self) -> InputValidator:
        """The check of the inputs that are no tensors, for a request that brings its tensors as such."""
        if self._plain_validator is None:
            plain = tuple(field for field in self.signature.inputs if field.type.kind != "tensor")
            self._plain_validator = InputValidator(msgspec.structs.replace(self.signature, inputs=plain))
        return self._plain_validator

    @property
    def view(self) -> TensorView:
        """The model's inputs and outputs as tensors; raises `NOT_READY` before the model is loaded."""
        if self._view is None:
            self._view = TensorView(self.signature)
        return self._view

    @property
    def slots(self) -> int:
        """How many predictions can run at once when setup is done; raises `NOT_READY` before the model is loaded."""
        return self.permits.size or self.info.slots * len(self.replicas)

    @property
    def worker(self) -> WorkerPort:
        """A worker of a model that is ready; raises `NOT_READY` otherwise."""
        if self.health is Health.READY:
            for replica in self.replicas:
                if replica.worker is not None and replica.health is Health.READY:
                    return replica.worker
        raise self.not_ready()

    def check_ready(self) -> None:
        """Raise `NOT_READY` unless a prediction can be made."""
        if self.health is not _READY:
            raise self.not_ready()

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""
        return GeartrainError(Code.NOT_READY, self.absence or _NOT_READY.get(self.health, _NOT_READY[Health.STARTING]))

    # health

    async def report(self) -> HealthReport:
        """Return the health now, after asking the author's healthcheck if there is one."""
        error = None
        if self.health is Health.READY and self.info.has_healthcheck:
            error = await self._run_check()
        return self._report(error)

    def _report(self, error: str | None) -> HealthReport:
        replicas = tuple(replica.report() for replica in self.replicas) if len(self.replicas) > 1 else ()
        if self.health is not Health.READY:
            lost = next((replica.lost for replica in self.replicas if replica.lost is not None), None)
            return HealthReport(self.health, self.setup, defunct_reason=lost, replicas=replicas)
        if error is not None:
            return HealthReport(Health.UNHEALTHY, self.setup, healthcheck_error=error, replicas=replicas)
        return HealthReport(Health.READY if self.has_room() else Health.BUSY, self.setup, replicas=replicas)

    async def _run_check(self) -> str | None:
        """Return what is wrong, if anything. Concurrent callers share one run, and so its time limit."""
        now = asyncio.get_running_loop().time()
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._ask())
            self._check_ends = now + HEALTHCHECK_TIMEOUT
        try:
            async with asyncio.timeout_at(self._check_ends):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return f"Healthcheck failed: user-defined healthcheck timed out after {HEALTHCHECK_TIMEOUT} seconds"

    async def _ask(self) -> str | None:
        """Ask every worker that lives; the first that is not well speaks for all."""
        living = [each.worker for each in self.replicas if each.worker is not None and each.health is Health.READY]
        verdicts = await asyncio.gather(*(worker.healthcheck() for worker in living))
        return next((verdict.error or "Healthcheck failed" for verdict in verdicts if not verdict.healthy), None)
