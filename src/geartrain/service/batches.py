"""Batches: requests gathered into one call of the model, and what becomes of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from geartrain.domain.batch_items import BatchItems
from geartrain.domain.batch_queue import BatchQueue
from geartrain.domain.batching import Batching
from geartrain.domain.errors import GeartrainError
from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.lifecycle import Health
from geartrain.domain.prediction import Prediction
from geartrain.domain.signature import Signature
from geartrain.domain.tensors import Tensor
from geartrain.domain.work import BatchJob, Canceled, Failed, FileRef, ItemOutcome, Job, JobListener, Outcome, Succeeded
from geartrain.service.execution import Execution
from geartrain.service.permits import Permit
from geartrain.service.ports import WorkerPort

if TYPE_CHECKING:
    from geartrain.service.predictions import PredictionService

SIZE_METRIC = "batch_size"
_LIGHT = 128 * 1024  # bytes of a batch that may lie ready in its worker's socket


class Batcher:
    """Gathers the predictions of one service, whichever door they came through, and gives batches to free slots."""

    def __init__(self, service: PredictionService, signature: Signature, batching: Batching) -> None:
        self.batching = batching
        self.service = service
        self.waiting = 0  # predictions that are admitted and in no batch yet
        self._items = BatchItems(signature, batching)
        self._queue: BatchQueue[BatchedExecution] = BatchQueue(batching.policy)
        self._timer: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._running: dict[Permit, Batch] = {}
        # With replicas another one might be free before; and an async run would begin at once.
        self._can_run_ahead = len(service.model.replicas) == 1 and not service.model.info.is_async

    def measure(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
        """See `BatchItems.measure`."""
        return self._items.measure(json, tensors)

    def add(self, execution: BatchedExecution) -> None:
        """All that it needs is there: it goes with the next batch that it fits."""
        model = self.service.model
        if model.health not in {Health.READY, Health.STARTING}:
            execution.refuse(model.not_ready())
            return
        self._queue.add(execution, execution.key, execution.rows, now=time.monotonic())
        self.serve()

    def leave(self, execution: BatchedExecution) -> bool:
        """It no longer waits; return whether it did."""
        return self._queue.remove(execution)

    def refuse_all(self) -> None:
        """There will be no worker for those that wait."""
        for execution in self._queue:
            self._queue.remove(execution)
            execution.refuse(self.service.model.not_ready())

    def serve(self) -> None:
        """Start what can be started."""
        model = self.service.model
        while self._queue and model.health is Health.READY and model.permits.idle:
            members = self._queue.take(time.monotonic())
            if not members:
                self._wait()
                return
            permit = model.permits.acquire()
            if permit is None:
                msg = "an idle slot could not be had"
                raise RuntimeError(msg)
            batch = self._running[permit] = self._new_batch(permit, members)
            batch.run()
        if self._can_run_ahead and self._queue:
            self._lay_ahead()

    def _lay_ahead(self) -> None:
        """Give a full batch to a worker that is busy: it need not wait for us when it is free."""
        for permit, batch in self._running.items():
            if batch.successor is None:
                members = self._queue.take_full(only=self._is_light)
                if members:
                    batch.successor = self._new_batch(permit, members)
                    batch.successor.lie_ahead()
                return

    def _is_light(self, execution: BatchedExecution) -> bool:
        """Whether a batch of its like may go through a socket. What is heavier travels in memory that is in use."""
        job = execution.job
        size = len(job.input) + sum([len(tensor.data) for tensor in job.tensors or ()])
        return size * self.batching.policy.max_size <= _LIGHT * execution.rows

    def _new_batch(self, permit: Permit, members: list[BatchedExecution]) -> Batch:
        self._last_id += 1
        return Batch(f"batch-{self._last_id}", self, permit, members=members)

    def give_back(self, batch: Batch, permit: Permit) -> None:
        """A batch has ended. Its slot is idle, or its successor runs there."""
        if batch.successor is not None:
            self._running[permit] = batch.successor
            self.serve()
            return
        del self._running[permit]
        self.service.give_back(permit)

    def has_gone(self, permit: Permit) -> None:
        """The worker of a slot is gone."""
        self._running.pop(permit, None)

    def has_ended(self, rows: int) -> None:
        """A batch of so many rows has ended."""
        self._queue.has_ended(rows, now=time.monotonic())

    def _wait(self) -> None:
        """Look again when the oldest one has waited as long as it may."""
        due = self._queue.due()
        if self._timer is None and due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self.serve()


class BatchedExecution(Execution):
    """A prediction that waits for others to share a call with. Its files are fetched before it does."""

    __slots__ = ("_batch", "_batcher", "_time_limit", "key", "rows")

    def __init__(
        self,
        batcher: Batcher,
        prediction: Prediction,
        job: Job,
        *,
        values: dict[str, Any] | None,
        key: Hashable,
        rows: int,
    ) -> None:
        """`key` and `rows` as `BatchItems.measure` gives them."""
        super().__init__(batcher.service, prediction, job, values=values)
        self.key = key
        self.rows = rows
        self._batcher = batcher
        self._batch: Batch | None = None
        self._time_limit: float | None = None

    @property
    def batch_rows(self) -> int:
        """Its rows."""
        return self.rows

    @property
    def job(self) -> Job:
        """What the worker gets."""
        return self._job

    def enter(self, patience: float | None) -> None:
        """Wait for a batch, at most so many seconds."""
        self._time_limit = patience
        self._batcher.waiting += 1
        if self._values is None:
            self._gather(self._job)
        else:
            self._prepare(self._values, self._gather)

    def _gather(self, job: Job) -> None:
        self._job = job
        self.wait(self._time_limit)
        self._batcher.add(self)

    def leave(self) -> bool:
        """It waits no longer; return whether it did."""
        if self._batch is not None and self._worker is None:
            self._batch.forget(self)
            return True
        return self._batcher.leave(self)

    def join(self, batch: Batch | None) -> None:
        """It is in a batch, which has not begun yet; None: and no longer."""
        self._batch = batch

    def begin_in_batch(self, worker: WorkerPort, at: float, *, rows: int) -> None:
        """It is run now, in a batch of so many rows."""
        self._batcher.waiting -= 1
        self._worker = worker
        self._began_at = at
        if self._patience is not None:
            self._patience.cancel()
        self.prediction.start(at)
        self.prediction.add_metric(SIZE_METRIC, rows, "replace")

    def cancel(self) -> None:
        """Ask for its end. The others of its batch go on."""
        if self._batch is not None and self._worker is not None:
            if self._deliveries is not None and self._deliveries.cut():
                self._cut = True
            if not self._is_over:
                self._batch.drop(self)
        elif self.leave():
            self.on_end(Canceled(), (), idle=False)
        else:
            self._stop_preparation()

    def refuse(self, reason: GeartrainError) -> None:
        """End it before it began. The files that were fetched for it are removed first."""
        self._refusal = reason.code
        self.on_end(Failed(reason.message), (), idle=False)

    def _finish(self, outcome: Outcome, *, idle: bool) -> None:
        if self._worker is None:
            self._batcher.waiting -= 1
        super()._finish(outcome, idle=idle)


class Batch:
    """One call for several predictions: hears the worker (`BatchListener`), and tells each member its part."""

    def __init__(self, batch_id: str, batcher: Batcher, permit: Permit, *, members: list[BatchedExecution]) -> None:
        if permit.worker is None:
            msg = "the permit is of no worker"
            raise RuntimeError(msg)
        self.successor: Batch | None = None  # what lies ready for the same slot
        self._id = batch_id
        self._batcher = batcher
        self._service = batcher.service
        self._permit = permit
        self._worker = permit.worker
        self._sizes = tuple([member.rows for member in members])
        self._rows = sum(self._sizes)
        self._members: list[BatchedExecution | None] = [*members]  # None: it has ended
        self._nobody = _Nobody(self._worker)
        self._began_at: float | None = None
        self._predict_time: float | None = None  # of the run, once an item has told
        self._overdue: asyncio.TimerHandle | None = None
        for member in members:
            member.join(self)

    def run(self) -> None:
        """Have it run."""
        self._worker.run(self._permit.slot, self._job(ahead=False), self)
        if self._members:  # else it was dead, and they wait again
            self.on_begin()

    def lie_ahead(self) -> None:
        """Have it lie ready for when the batch before it has ended."""
        self._worker.run(self._permit.slot, self._job(ahead=True), self)

    def _job(self, *, ahead: bool) -> BatchJob:
        jobs = [member.job for member in self._members if member is not None]
        return BatchJob(self._id, tuple(jobs), self._sizes, ahead=ahead)

    def forget(self, member: BatchedExecution) -> None:
        """It does not wait any longer for this batch, which has not begun."""
        self._members[self._members.index(member)] = None

    def drop(self, member: BatchedExecution) -> None:
        """It is canceled; when no other one is left, so is the run."""
        self._members[self._members.index(member)] = None
        member.on_end(Canceled(), (), idle=False)
        self._stop_if_left()

    def _stop_if_left(self) -> None:
        grace = self._service.cancel_grace
        if not any(self._members) and self._overdue is None:
            self._worker.cancel(self._permit.slot, self._id)
            if grace is not None:
                self._overdue = asyncio.get_running_loop().call_later(grace, self._kill, grace)

    def _kill(self, grace: float) -> None:
        self._worker.kill(f"killed, because a canceled batch had not ended after {grace:g} seconds")

    # the worker's reports

    def on_begin(self) -> None:
        """See `BatchListener`."""
        at = self._began_at = self._service.clock()
        for member in self._members:
            if member is not None:
                member.begin_in_batch(self._worker, at, rows=self._rows)
        self._stop_if_left()

    def on_unstarted(self) -> None:
        """See `BatchListener`: its members wait again."""
        members, self._members = self._members, []
        self._batcher.has_gone(self._permit)
        for member in members:
            if member is not None:
                member.join(None)
                self._batcher.add(member)

    def item(self, index: int) -> JobListener:
        """See `BatchListener`."""
        return self._members[index] or self._nobody

    def on_item_ends(self, ends: Sequence[ItemOutcome], *, idle: bool) -> None:
        """See `BatchListener`."""
        for end in ends:
            if isinstance(end.outcome, Succeeded):
                self._predict_time = end.outcome.predict_time
        if idle:
            self._end()  # before the members hear of it: the next batch runs while they answer
        for end in ends:
            member, self._members[end.index] = self._members[end.index], None
            if member is not None:
                member.on_end(end.outcome, end.files, idle=False)
            elif end.files:
                self._worker.discard(end.files)

    def on_output(self, chunk: bytes, files: tuple[FileRef, ...]) -> None:
        """See `JobListener`: what has no index is of no member."""
        self._nobody.on_output(chunk, files)

    def on_log(self, source: LogSource, data: str) -> None:
        """See `JobListener`."""
        for member in self._members:
            if member is not None:
                member.on_log(source, data)

    def on_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """See `JobListener`."""
        for member in self._members:
            if member is not None:
                member.on_metric(name, value, mode)

    def on_end(self, outcome: Outcome, files: tuple[FileRef, ...], *, idle: bool) -> None:
        """See `JobListener`: all that have not ended do so for the same reason."""
        if self._began_at is None:
            self.on_unstarted()
            return
        members, self._members = self._members, [None] * len(self._members)
        if idle:
            self._end()
        else:
            self._batcher.has_gone(self._permit)
            self._count()
        for member in members:
            if member is not None:
                member.on_end(outcome, (), idle=False)
        self._worker.discard(files)

    def on_idle(self) -> None:
        """See `JobListener`."""
        self._give_back()

    def _end(self) -> None:
        self._count()
        self._batcher.has_ended(self._rows)
        self._give_back()

    def _give_back(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        self._batcher.give_back(self, self._permit)

    def _count(self) -> None:
        took = self._service.clock() - (self._began_at or 0.0)
        self._service.counts.add_batch(self._rows, took, predict_time=self._predict_time)


class _Nobody:
    """Hears what is of a member that has ended."""

    def __init__(self, worker: WorkerPort) -> None:
        self._worker = worker

    def on_output(self, _chunk: bytes, files: tuple[FileRef, ...]) -> None:
        if files:
            self._worker.discard(files)

    def on_log(self, source: LogSource, data: str) -> None:
        """Nobody reads it."""

    def on_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """Nobody reads it."""

    def on_end(self, outcome: Outcome, files: tuple[FileRef, ...], *, idle: bool) -> None:
        """It has ended before."""

    def on_idle(self) -> None:
        """It has no slot."""
