"""A worker of batches that does nothing by itself: a test says what becomes of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from geartrain.domain.batching import Batching, BatchPolicy
from geartrain.domain.signature import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.work import (
    BatchJob,
    BatchListener,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    ItemOutcome,
    Job,
    JobListener,
    Succeeded,
    WorkerInfo,
    WorkerObserver,
)

BY_ITEM = Signature(
    inputs=(
        InputField("text", TypeSpec("string")),
        InputField("kind", TypeSpec("string"), required=False, has_default=True, default="a"),
    ),
    output=OutputSpec(TypeSpec("string")),
)
WITH_FILES = Signature(
    inputs=(InputField("text", TypeSpec("string")), InputField("image", TypeSpec("path"))),
    output=OutputSpec(TypeSpec("string")),
)
BY_ROWS = Signature(
    inputs=(InputField("x", TypeSpec("tensor", datatype="INT64", shape=(-1, -1))),),
    output=OutputSpec(TypeSpec("tensor", datatype="INT64", shape=(-1, -1))),
)


class Call:
    """One batch on a slot, until the test ends it."""

    def __init__(self, batch: BatchJob, listener: BatchListener) -> None:
        self.batch = batch
        self.listener = listener
        self.open = set(range(len(batch.jobs)))
        self.was_canceled = False
        self.is_over = False
        self.next: Call | None = None  # what lies ready behind it

    def end(self, ends: list[ItemOutcome]) -> None:
        """Tell of ends as a slot does: what lies ready begins first."""
        self.is_over = not self.open
        if self.is_over and self.next is not None:
            self.next.listener.on_begin()
        self.listener.on_item_ends(ends, idle=self.is_over)

    @property
    def texts(self) -> list[str]:
        """What the items are, in their order."""
        return [json.loads(job.input)["text"] for job in self.batch.jobs]

    def answer(self, *indexes: int, bad: Sequence[int] = ()) -> None:
        """End some items, by default all that have not ended: each with its own text, or as a failure."""
        which = indexes or tuple(sorted(self.open))
        self.open -= set(which)
        ends = []
        for index in which:
            text = json.dumps(self.texts[index].upper()).encode()
            outcome = Failed(f"ValueError: {index}") if index in bad else Succeeded(text, 0.25)
            ends.append(ItemOutcome(index, outcome))
        self.end(ends)

    def cancel(self) -> None:
        """What the worker does when it has heard of a cancel."""
        ends = [ItemOutcome(index, Canceled()) for index in sorted(self.open)]
        self.open.clear()
        self.end(ends)


class HandWorker:
    """`geartrain.service.ports.WorkerPort`, as promised there."""

    def __init__(
        self,
        observer: WorkerObserver,
        *,
        policy: BatchPolicy,
        signature: Signature = BY_ITEM,
        shared: tuple[str, ...] = ("kind",),
        slots: int = 1,
        takes_singles: bool = False,
    ) -> None:
        self.singles: list[tuple[Job, JobListener]] = []
        self.calls: list[Call] = []
        self.running: dict[int, Call] = {}
        self.unstarted: list[Call] = []  # that it died before
        self.discarded: list[FileRef] = []
        self.killed: str | None = None
        self._observer = observer
        batching = Batching(
            policy,
            by_rows=signature is BY_ROWS,
            shared=shared if signature is BY_ITEM else (),
            takes_singles=takes_singles,
        )
        self._info = WorkerInfo(signature, slots, is_async=slots > 1, has_healthcheck=False, batching=batching)

    async def start(self) -> WorkerInfo:
        """It is ready at once."""
        self._observer.on_loaded(self._info)
        return self._info

    def run(self, slot: int, job: Job | BatchJob, listener: JobListener) -> None:
        """Keep a batch until the test ends it."""
        if isinstance(job, Job):
            assert self._info.batching is not None
            assert self._info.batching.takes_singles, "a model that takes batches gets nothing else"
            self.singles.append((job, listener))
            return
        running = self._current(slot)
        call = Call(job, cast("BatchListener", listener))
        self.calls.append(call)
        if running is None:
            self.running[slot] = call
            call.listener.on_begin()
        else:
            assert job.ahead, f"slot {slot} is in use"
            assert running.next is None, "one batch lies ready, not more"
            assert not self._info.is_async
            running.next = call

    def _current(self, slot: int) -> Call | None:
        call = self.running.get(slot)
        while call is not None and call.is_over:
            call = call.next
        return call

    def cancel(self, slot: int, job_id: str) -> None:
        """Note it."""
        call = self._current(slot)
        if call is not None and call.batch.id == job_id:
            call.was_canceled = True

    def discard(self, files: Sequence[FileRef]) -> None:
        """Note it."""
        self.discarded += files

    def kill(self, reason: str) -> None:
        """Note it."""
        self.killed = reason

    async def healthcheck(self) -> HealthVerdict:
        """It is well."""
        return HealthVerdict(healthy=True)

    async def stop(self, grace: float) -> None:
        """There is nothing to end."""

    def die(self) -> None:
        """End as a crashed process does."""
        for slot in self.running:
            call = self._current(slot)
            if call is not None:
                call.is_over = True
                call.listener.on_end(Failed("Worker crashed: gone"), (), idle=False)
            if call is not None and call.next is not None:
                call.next.is_over = True
                self.unstarted.append(call.next)
                self.calls.remove(call.next)
                call.next.listener.on_unstarted()
        self._observer.on_lost("Worker crashed: gone")
