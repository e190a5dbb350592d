"""Batches: predictions gathered into calls of the model, and how each of them waits, joins and leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from geartrain.domain.batch_items import BatchItems
from geartrain.domain.batch_queue import BatchQueue
from geartrain.domain.batching import Batching
from geartrain.domain.errors import GeartrainError
from geartrain.domain.events import Metric
from geartrain.domain.lifecycle import Health
from geartrain.domain.prediction import Prediction
from geartrain.domain.signature import Signature
from geartrain.domain.solitude import Solitude
from geartrain.domain.tensors import Tensor
from geartrain.domain.work import Canceled, Failed, ItemOutcome, Job, Outcome, Succeeded
from geartrain.service.batch_run import Batch, size_metric
from geartrain.service.execution import Execution
from geartrain.service.permits import Permit
from geartrain.service.ports import WorkerPort

if TYPE_CHECKING:
    from geartrain.service.predictions import PredictionService

_LIGHT = 128 * 1024  # bytes of a batch that may lie ready in its worker's socket


class Batcher:
    """Gathers the predictions of one service, whichever door they came through, and gives batches to free slots."""

    def __init__(
        self, service: PredictionService, signature: Signature, batching: Batching, *, solitude: Solitude
    ) -> None:
        self.batching = batching
        self.service = service
        self.waiting = 0  # predictions that are admitted and in no batch yet
        self._items = BatchItems(signature, batching)
        self._queue: BatchQueue[BatchedExecution] = BatchQueue(batching.policy, solitude)
        self._timer: asyncio.TimerHandle | None = None
        self._will_serve = False  # at the end of this turn of the loop
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
        queue = self._queue
        may_run = queue.add(execution, execution.key, execution.rows, now=time.monotonic())
        if queue.is_lone() or queue.rows >= self.batching.policy.max_size:
            self.serve()
        elif (may_run or self._timer is None) and not self._will_serve:
            self._will_serve = True
            self.end_of_turn(self._serve_turn)

    @staticmethod
    def end_of_turn(callback: Callable[[], None]) -> None:
        """Call something at the end of this turn of the loop."""
        asyncio.get_running_loop().call_soon(callback)

    def _serve_turn(self) -> None:
        """At the end of a turn of the loop: who has come in the same one shares a batch."""
        self._will_serve = False
        self.serve()

    def run_alone(self, execution: BatchedExecution, now: float) -> bool:
        """Run a request at once and by itself, if the model takes that and nobody else seems to ask."""
        if not self.batching.takes_singles or self._queue or not self._queue.is_lone():
            return False
        permit = self.service.model.permits.acquire()
        if permit is None or permit.worker is None:
            return False
        execution.begin_alone(permit, permit.worker, now)
        return True

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
            if permit is None or permit.worker is None:
                msg = "an idle slot could not be had"
                raise RuntimeError(msg)
            batch = self._running[permit] = self._new_batch(permit, members)
            batch.run(lone=len(members) == 1 and self._queue.is_lone())
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
        self.has_gone(permit)  # unless its end came before: while it still cleaned up
        self.service.give_back(permit)

    def has_gone(self, permit: Permit) -> None:
        """Nothing runs on a slot, or nothing that can still be told of."""
        self._running.pop(permit, None)

    def has_ended(self, rows: int, *, requests: int = 1) -> None:
        """A batch of so many rows has ended."""
        self._queue.has_ended(rows, requests=requests, now=time.monotonic())

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

    def begin_in_batch(self, worker: WorkerPort, at: float, size: Metric) -> None:
        """It is run now, in a batch whose size it is told."""
        self._batcher.waiting -= 1
        if self._patience is not None:
            self._patience.cancel()
        self._start(worker, at, size)

    def begin_alone(self, permit: Permit, worker: WorkerPort, at: float) -> None:
        """It is run now, by itself, and has not waited."""
        self._permit = permit
        self._start(worker, at, size_metric(self.rows))
        worker.run(permit.slot, self._job, self)

    def _start(self, worker: WorkerPort, at: float, size: Metric) -> None:
        self._worker = worker
        self._began_at = at
        self.prediction.start(at)
        self.prediction.record(size)

    def end_in_batch(self, end: ItemOutcome, at: float) -> None:
        """Its part of the run is over, at the same moment as those of the others."""
        self._ended_at = at
        if end.files or self._folder is not None or self._behind is not None:
            self.on_end(end.outcome, end.files, idle=False)
            self._ended_at = 0.0  # what is still on its way takes longer
        else:
            self._finish(end.outcome, idle=False)

    def cancel(self) -> None:
        """Ask for its end. The others of its batch go on."""
        if self._permit is not None:
            super().cancel()
        elif self._batch is not None and self._worker is not None:
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
        elif self._permit is not None:
            took = self._service.clock() - self._began_at
            predict_time = outcome.predict_time if isinstance(outcome, Succeeded) else None
            self._service.counts.add_batch(self.rows, took, predict_time=predict_time)
            self._batcher.has_ended(self.rows)
        super()._finish(outcome, idle=idle)
