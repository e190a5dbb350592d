"""A served model: its worker, its slots, what it takes and gives, and its health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.events import LogSource
from geartrain.domain.lifecycle import Health, next_health
from geartrain.domain.signature import Signature
from geartrain.domain.validation import InputValidator
from geartrain.domain.work import WorkerInfo
from geartrain.service.permits import PermitPool
from geartrain.service.ports import WorkerPort
from geartrain.service.restarts import RestartPolicy, Restarts

logger = logging.getLogger(__name__)

Noun = Literal["prediction", "training"]

HEALTHCHECK_TIMEOUT = 5.0  # seconds; observed Cog, section 4

_NOT_READY = {
    Health.UNKNOWN: "Setup has not begun yet. GET /health-check for status.",
    Health.STARTING: "Setup has not finished yet. Wait until it has finished, or GET /health-check for status.",
    Health.SETUP_FAILED: "Setup has failed, so no prediction can be made. GET /health-check for its logs.",
    Health.DEFUNCT: "The model's worker is gone, so no prediction can be made. GET /health-check for the reason.",
}


class SetupReport(msgspec.Struct):
    """How setup went. Times in seconds since the epoch."""

    started_at: float
    completed_at: float | None = None
    failed: bool = False
    log_parts: list[str] = []

    @property
    def logs(self) -> str:
        """What load and setup have printed, and why they failed."""
        return "".join(self.log_parts)


class HealthReport(msgspec.Struct, frozen=True):
    """The answer to "how are you?"."""

    health: Health
    setup: SetupReport
    healthcheck_error: str | None = None
    defunct_reason: str | None = None


class ModelSetupError(Exception):
    """The model could not be made ready: the reason, and all that setup printed."""

    def __init__(self, reason: str, logs: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.logs = logs


class Model:
    """One model version and the worker that runs it. Hears the worker as its `WorkerObserver`."""

    def __init__(
        self,
        name: str,
        *,
        version: str = "1",
        restarts: RestartPolicy | None = None,
        noun: Noun = "prediction",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`restarts`: whether a crashed worker is followed by another; by default it is not, as documented.

        `noun` is what its runs are called.
        """
        self.name = name
        self.noun = noun
        self.version = version
        self.health = Health.UNKNOWN
        self.setup = SetupReport(clock())
        self.on_setup_output: Callable[[LogSource, str], None] | None = None
        self.on_health: Callable[[Health], None] | None = None
        self.respawn: Callable[[], WorkerPort] | None = None
        self.restarts = Restarts(restarts, clock)
        self._time_limit: float | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._clock = clock
        self._worker: WorkerPort | None = None
        self._info: WorkerInfo | None = None
        self._validator: InputValidator | None = None
        self._permits = PermitPool(0)
        self._lost: str | None = None
        self._check: asyncio.Task[str | None] | None = None
        self._check_ends = 0.0  # on the loop's clock

    # life

    async def start(self, worker: WorkerPort, *, time_limit: float | None = None) -> None:
        """Take a worker that is being set up, and wait until it is; raise `ModelSetupError` if it fails.

        `time_limit` in seconds bounds the whole of load and setup; the worker is killed when it runs out.
        """
        self._time_limit = time_limit
        self._worker = worker
        if self.health is not Health.STARTING:  # as it is between a crash and the next start
            self._step(Health.STARTING)
        try:
            async with asyncio.timeout(time_limit):
                info = await worker.start()
        except TimeoutError:
            await worker.stop(0)
            raise self._setup_failed(f"worker setup timed out after {time_limit:g} seconds") from None
        except Exception as error:
            raise self._setup_failed(str(error)) from error
        self._info = info
        self._validator = InputValidator(info.signature)
        self._permits = PermitPool(info.slots)
        self.setup.completed_at = self._clock()
        self._step(Health.READY)

    async def stop(self, grace: float) -> None:
        """End the worker."""
        if self._restarting is not None:
            self._restarting.cancel()
        if self._worker is not None:
            await self._worker.stop(grace)

    def _step(self, health: Health) -> None:
        self.health = next_health(self.health, health)
        if self.on_health is not None:
            self.on_health(health)

    def _setup_failed(self, reason: str) -> ModelSetupError:
        setup = self.setup
        setup.completed_at = self._clock()
        setup.failed = True
        logs = setup.logs
        setup.log_parts.append(f"{reason}\n")
        self._step(Health.SETUP_FAILED)
        return ModelSetupError(reason, logs)

    # the worker's observer

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Keep what setup prints: health shows it."""
        self.setup.log_parts.append(data)
        if self.on_setup_output is not None:
            self.on_setup_output(source, data)

    def on_lost(self, reason: str) -> None:
        """The worker died: for good, as the container runtime has it, unless the operator wants it restarted."""
        self._lost = reason
        delay = self.restarts.next_delay(reason)
        if delay is None or self.respawn is None:
            self._step(Health.DEFUNCT)
            logger.error("the worker is gone; no further prediction is possible", extra={"reason": reason})
        else:
            logger.error("the worker is gone; another is started", extra={"reason": reason, "delay": delay})
            self._restarting = asyncio.ensure_future(self._restart(delay, self.respawn))
            self._step(Health.STARTING)

    async def _restart(self, delay: float, respawn: Callable[[], WorkerPort]) -> None:
        await asyncio.sleep(delay)
        self.setup = SetupReport(self._clock())
        try:
            await self.start(respawn(), time_limit=self._time_limit)
        except ModelSetupError as error:
            logger.error("the restarted worker could not be set up", extra={"reason": error.reason})  # noqa: TRY400

    # what the service needs

    @property
    def info(self) -> WorkerInfo:
        """What the worker said of itself; raises `NOT_READY` before setup is done."""
        if self._info is None:
            raise self.not_ready()
        return self._info

    @property
    def signature(self) -> Signature:
        """The model's inputs and output; raises `NOT_READY` before setup is done."""
        return self.info.signature

    @property
    def validator(self) -> InputValidator:
        """The check of inputs; raises `NOT_READY` before setup is done."""
        if self._validator is None:
            raise self.not_ready()
        return self._validator

    @property
    def permits(self) -> PermitPool:
        """The slots."""
        return self._permits

    @property
    def worker(self) -> WorkerPort:
        """The worker of a model that is ready; raises `NOT_READY` otherwise."""
        if self.health is not Health.READY or self._worker is None:
            raise self.not_ready()
        return self._worker

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""
        return GeartrainError(Code.NOT_READY, _NOT_READY.get(self.health, _NOT_READY[Health.STARTING]))

    # health

    async def report(self) -> HealthReport:
        """Return the health now, after asking the author's healthcheck if there is one."""
        error = None
        if self.health is Health.READY and self.info.has_healthcheck:
            error = await self._run_check()
        return self._report(error)

    def _report(self, error: str | None) -> HealthReport:
        if self.health is not Health.READY:
            return HealthReport(self.health, self.setup, defunct_reason=self._lost)
        if error is not None:
            return HealthReport(Health.UNHEALTHY, self.setup, healthcheck_error=error)
        return HealthReport(Health.READY if self._permits.idle else Health.BUSY, self.setup)

    async def _run_check(self) -> str | None:
        """Return what is wrong, if anything. Concurrent callers share one run, and so its time limit."""
        now = asyncio.get_running_loop().time()
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._ask(self.worker))
            self._check_ends = now + HEALTHCHECK_TIMEOUT
        try:
            async with asyncio.timeout_at(self._check_ends):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return f"Healthcheck failed: user-defined healthcheck timed out after {HEALTHCHECK_TIMEOUT} seconds"

    @staticmethod
    async def _ask(worker: WorkerPort) -> str | None:
        verdict = await worker.healthcheck()
        return None if verdict.healthy else verdict.error or "Healthcheck failed"
