"""A worker that is there only while there is something to run: for work that is rare, and big when it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    CallListener,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    ItemEnd,
    ItemEvent,
    ModelCallPort,
    Outcome,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.predictions.events import Log, LogSource
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.context import no_models
from geartrain.service.workers.pool import setup_limit

logger = logging.getLogger(__name__)

_GRACE = 1.0  # seconds that a worker without work has to end by itself


class Spawn(Protocol):
    """Spawns workers of one model."""

    def __call__(self, observer: WorkerObserver, *, inspect: bool) -> WorkerPort:
        """Spawn one; `inspect` for one that only tells its signature."""


class OnDemandWorker:
    """A `WorkerPort` with one slot, and behind it, one after another, workers that are spawned for a call.

    Its `start` loads the model and runs no setup. Setup is part of the first call: what it writes stands in the logs of
    that call, and the call fails if it fails. Afterwards the worker stays for `idle_limit` seconds (None disables the
    limit), and for as long as files of its outputs are being read. One that dies is followed by another with the next
    call.
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
        self._call: _RunningCall | None = None
        self._unread: dict[str, WorkerPort] = {}  # the files of outputs by token, and who has them
        self._timer: asyncio.TimerHandle | None = None

    # the port

    async def start(self) -> WorkerInfo:
        """Learn the signature; raise an exception whose text is the reason if the model cannot be loaded."""
        inspected = self._spawn(self, inspect=True)
        try:
            info = await inspected.start()
        finally:
            await inspected.stop(0)
        return msgspec.structs.replace(info, slots=1, has_healthcheck=False)

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Run a call, after the setup of a worker for it if there is none; `listener` hears of both."""
        self._stop_clock()
        running = self._call = _RunningCall(self, listener)
        if self._child is not None:
            self._child.run(slot, call, running)
        else:
            self._starting = asyncio.ensure_future(self._set_up_and_run(slot, call, running))
            self._starting.add_done_callback(self._on_started)

    @property
    def may_prefetch(self) -> bool:
        """No call waits in a worker that may be on its way to its end."""
        return False

    @property
    def is_debugged(self) -> bool:
        """True if a person may have stopped the worker that is there in a debugger."""
        return self._child is not None and self._child.is_debugged

    def cancel(self, slot: int, call_id: str) -> None:
        """Ask for the end of a call; a worker that is being set up for it is killed."""
        if self._child is not None:
            self._child.cancel(slot, call_id)
        elif self._starting is not None and not self._starting.cancelling():
            self._starting.cancel()

    def discard(self, files: Sequence[FileRef]) -> None:
        """Release the files of an output."""
        for file in files:
            holder = self._unread.pop(file.token, None)
            if holder is not None:
                holder.discard((file,))
        self._rest()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of the worker that is there."""
        return () if self._child is None else self._child.pids

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
        """Attribute what setup prints to the call that caused it."""
        if self._call is None:
            self._on_load_output(source, data)
        else:
            self._call.on_event(ItemEvent(ALL, Log(source, data)))

    def on_loaded(self, info: WorkerInfo) -> None:
        """The signature is known since `start`."""

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Ignore the reports: trainings have no metrics."""

    def on_model_call(self, call: ModelCallPort) -> None:
        """Refuse a call of another model by the setup of a training."""
        no_models(call)

    def on_lost(self, reason: str) -> None:
        """The worker has died; its call, if it had one, has failed already, and the slot is as good as ever."""
        logger.error("the worker is gone; the next call starts another", extra={"reason": reason})
        self._child = None
        self._stop_clock()
        if self._call is not None:
            self._call.on_idle()

    # its beginning

    async def _set_up_and_run(self, slot: int, call: CallInput, running: _RunningCall) -> None:
        if self._ending is not None:
            await asyncio.wait((self._ending,))  # its resources, memory above all, are needed now
        child = self._spawn(self, inspect=False)
        try:
            async with setup_limit(self._setup_limit, child):
                await child.start()
        except BaseException:
            await child.stop(0)
            raise
        self._child = child  # in the same step as its start ended: from now on its death is told to us
        child.run(slot, call, running)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        error = None if task.cancelled() else task.exception()
        if self._call is None or (error is None and not task.cancelled()):
            return
        outcome: Outcome = Canceled() if error is None else Failed(self._describe(error))
        self._call.on_end((ItemEnd(ALL, outcome),), idle=True)

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
        """Note that the call is over and the slot is free."""
        self._call = None
        self._rest()

    def _rest(self) -> None:
        self._stop_clock()
        if self._child is not None and self._call is None and not self._unread and self._idle_limit is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_limit, self._end, _GRACE)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, grace: float) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._ending = asyncio.ensure_future(child.stop(grace))


class _RunningCall:
    """The listener of a call, which tells the worker as well when it may rest.

    The call begins when it is given to the worker, so that what the setup for it prints is heard.
    """

    def __init__(self, worker: OnDemandWorker, listener: CallListener) -> None:
        self._worker = worker
        self._listener = listener
        listener.on_begin()

    def on_begin(self) -> None:
        """It has begun before."""

    def on_unstarted(self) -> None:
        """End the call: the worker that was set up for it has died before it could begin."""
        self.on_end((ItemEnd(ALL, Failed("Worker crashed: it died before the call began")),), idle=True)

    def on_event(self, report: ItemEvent) -> None:
        """Note the files, and pass the report on."""
        self._worker.keep_files(report.files)
        self._listener.on_event(report)

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        """Note the files, free the worker if it is idle, and pass the ends on."""
        for end in ends:
            self._worker.keep_files(end.files)
        if idle:
            self._worker.free()
        self._listener.on_end(ends, idle=idle)

    def on_model_call(self, call: ModelCallPort) -> None:
        """Pass on a call of another model."""
        self._listener.on_model_call(call)

    def on_idle(self) -> None:
        """Free the worker, and pass it on."""
        self._worker.free()
        self._listener.on_idle()
