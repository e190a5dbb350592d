"""One batch under way: what the worker says of it, told to each of its members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geartrain.domain.events import LogSource, Metric, MetricMode
from geartrain.domain.work import BatchJob, Canceled, FileRef, ItemOutcome, JobListener, Outcome, Succeeded
from geartrain.service.permits import Permit
from geartrain.service.ports import WorkerPort

if TYPE_CHECKING:
    from geartrain.service.batches import BatchedExecution, Batcher


SIZE_METRIC = "batch_size"


def size_metric(rows: int) -> Metric:
    """What each prediction of a batch of so many rows is told of it."""
    return Metric(SIZE_METRIC, rows, "replace")


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

    def run(self, *, lone: bool) -> None:
        """Have it run; `lone` as in `BatchJob`."""
        self._worker.run(self._permit.slot, self._job(lone=lone), self)

    def lie_ahead(self) -> None:
        """Have it lie ready for when the batch before it has ended."""
        self._worker.run(self._permit.slot, self._job(ahead=True), self)

    def _job(self, *, ahead: bool = False, lone: bool = False) -> BatchJob:
        jobs = [member.job for member in self._members if member is not None]
        return BatchJob(self._id, tuple(jobs), self._sizes, ahead=ahead, lone=lone)

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
        size = size_metric(self._rows)
        for member in self._members:
            if member is not None:
                member.begin_in_batch(self._worker, at, size)
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
        at = self._service.clock()
        for end in ends:
            member, self._members[end.index] = self._members[end.index], None
            if member is not None:
                member.end_in_batch(end, at)
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
        if self._began_at is None and not idle:
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
        self._batcher.has_ended(self._rows, requests=len(self._sizes))
        self._give_back()

    def _give_back(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        self._batcher.give_back(self, self._permit)

    def _count(self) -> None:
        if self._began_at is not None:
            took = self._service.clock() - self._began_at
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
