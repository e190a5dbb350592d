"""A worker that is there only while there is something to run: for work that is rare, and big when it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.work import (
    BatchJob,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    Job,
    JobListener,
    Outcome,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.service.ports import WorkerPort

logger = logging.getLogger(__name__)

_GRACE = 1.0  # seconds that a worker without work has to end by itself


class Spawn(Protocol):
    """Spawns workers of one model."""

    def __call__(self, observer: WorkerObserver, *, inspect: bool) -> WorkerPort:
        """Spawn one; `inspect` for one that only tells its signature."""


class OnDemandWorker:
    """A `WorkerPort` with one slot, and behind it, one after another, workers that are spawned for a job.

    Its `start` loads the model and runs no setup. Setup is part of the first job: what it writes stands in the logs of
    that job, and the job fails if it fails. Afterwards the worker stays for `idle_limit` seconds (None: for ever), and
    for as long as files of its outputs are being read. One that dies is followed by another with the next job.
    """

    def __init__(
        self,
        spawn: Spawn,
        *,
        on_load_output: Callable[[LogSource, str], None],
        idle_limit: float | None,
        setup_limit: float | None = None,
    ) -> None:
        """`setup_limit` bounds the setup of a worker, in seconds; `on_load_output` hears what `start` lets out."""
        self._spawn = spawn
        self._on_load_output = on_load_output
        self._idle_limit = idle_limit
        self._setup_limit = setup_limit
        self._child: WorkerPort | None = None  # that is set up
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._job: _RunningJob | None = None
        self._unread: dict[str, WorkerPort] = {}  # the files of outputs by token, and who has them
        self._timer: asyncio.TimerHandle | None = None

    # the port

    async def start(self) -> WorkerInfo:
        """Learn the signature; raise `SetupError` with the reason if the model cannot be loaded."""
        inspected = self._spawn(self, inspect=True)
        try:
            info = await inspected.start()
        finally:
            await inspected.stop(0)
        return msgspec.structs.replace(info, slots=1, has_healthcheck=False)

    def run(self, slot: int, job: Job | BatchJob, listener: JobListener) -> None:
        """Run a job, after the setup of a worker for it if there is none; `listener` hears of both."""
        self._stop_clock()
        running = self._job = _RunningJob(self, listener)
        if self._child is not None:
            self._child.run(slot, job, running)
        else:
            self._starting = asyncio.ensure_future(self._set_up_and_run(slot, job, running))
            self._starting.add_done_callback(self._on_started)

    def cancel(self, slot: int, job_id: str) -> None:
        """Ask for the end of a job; a worker that is being set up for it is killed."""
        if self._child is not None:
            self._child.cancel(slot, job_id)
        elif self._starting is not None and not self._starting.cancelling():
            self._starting.cancel()

    def discard(self, files: Sequence[FileRef]) -> None:
        """Let go of an output's files."""
        for file in files:
            holder = self._unread.pop(file.token, None)
            if holder is not None:
                holder.discard((file,))
        self._rest()

    def kill(self, reason: str) -> None:
        """End the worker that is there at once; what it runs fails for that reason."""
        if self._child is not None:
            self._child.kill(reason)

    async def healthcheck(self) -> HealthVerdict:
        """It is well, whatever the author's own check would say: there may be no worker to ask."""
        return HealthVerdict(healthy=True)

    async def stop(self, grace: float) -> None:
        """End whatever is there."""
        self._stop_clock()
        if self._starting is not None:
            if not self._starting.cancelling():
                self._starting.cancel()
            await asyncio.wait((self._starting,))
        if self._child is not None:
            self._end(grace)
        if self._ending is not None:
            await self._ending

    # its worker's observer

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """What setup prints belongs to the job that it is for."""
        if self._job is None:
            self._on_load_output(source, data)
        else:
            self._job.on_log(source, data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """The signature is known since `start`."""

    def on_lost(self, reason: str) -> None:
        """The worker has died; its job, if it had one, has failed already, and the slot is as good as ever."""
        logger.error("the worker is gone; the next job starts another", extra={"reason": reason})
        self._child = None
        self._stop_clock()
        if self._job is not None:
            self._job.on_idle()

    # its beginning

    async def _set_up_and_run(self, slot: int, job: Job | BatchJob, running: _RunningJob) -> None:
        if self._ending is not None:
            await asyncio.wait((self._ending,))  # what it holds, memory above all, is needed now
        child = self._spawn(self, inspect=False)
        try:
            async with asyncio.timeout(self._setup_limit):
                await child.start()
        except BaseException:
            await child.stop(0)
            raise
        self._child = child  # in the same step as its start ended: from now on its death is told to us
        child.run(slot, job, running)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        error = None if task.cancelled() else task.exception()
        if self._job is None or (error is None and not task.cancelled()):
            return
        outcome: Outcome = Canceled() if error is None else Failed(self._describe(error))
        self._job.on_end(outcome, (), idle=True)

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and self._setup_limit is not None:
            return f"worker setup timed out after {self._setup_limit:g} seconds"
        return str(error) or type(error).__name__

    # its end

    def keep_files(self, files: tuple[FileRef, ...]) -> None:
        """These files of an output lie in the worker's folder until they are discarded."""
        if self._child is not None:
            self._unread.update(dict.fromkeys((file.token for file in files), self._child))

    def free(self) -> None:
        """The job is over and the slot is free."""
        self._job = None
        self._rest()

    def _rest(self) -> None:
        self._stop_clock()
        if self._child is not None and self._job is None and not self._unread and self._idle_limit is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_limit, self._end, _GRACE)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, grace: float) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._ending = asyncio.ensure_future(child.stop(grace))


class _RunningJob:
    """A job's listener, with the worker listening in: it has to know when it may rest."""

    def __init__(self, worker: OnDemandWorker, listener: JobListener) -> None:
        self._worker = worker
        self._listener = listener

    def on_output(self, chunk: bytes, files: tuple[FileRef, ...]) -> None:
        """See `JobListener`."""
        self._worker.keep_files(files)
        self._listener.on_output(chunk, files)

    def on_log(self, source: LogSource, data: str) -> None:
        """See `JobListener`."""
        self._listener.on_log(source, data)

    def on_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """See `JobListener`."""
        self._listener.on_metric(name, value, mode)

    def on_end(self, outcome: Outcome, files: tuple[FileRef, ...], *, idle: bool) -> None:
        """See `JobListener`."""
        self._worker.keep_files(files)
        if idle:
            self._worker.free()
        self._listener.on_end(outcome, files, idle=idle)

    def on_idle(self) -> None:
        """See `JobListener`."""
        self._worker.free()
        self._listener.on_idle()
