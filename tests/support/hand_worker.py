"""A worker that does nothing by itself: a test says what becomes of each call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from geartrain.domain.predictions.batching import Batching, BatchPolicy
from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    CallListener,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    ItemEnd,
    Succeeded,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec

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


class HandCall:
    """One call on a slot, until the test ends it."""

    def __init__(self, call: CallInput, listener: CallListener) -> None:
        self.input = call
        self.listener = listener
        self.open = set(range(len(call.items)))
        self.was_canceled = False
        self.was_withdrawn = False  # canceled before it began
        self.is_over = False
        self.next: HandCall | None = None  # what was prefetched just behind it

    def end(self, ends: list[ItemEnd]) -> None:
        """Tell of ends as a slot does: what was prefetched begins first."""
        self.is_over = not self.open
        if self.is_over and self.next is not None:
            self.next.listener.on_begin()
        self.listener.on_end(ends, idle=self.is_over)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of the items, in their order."""
        return tuple(item.rows for item in self.input.items)

    @property
    def texts(self) -> list[str]:
        """What the items are, in their order."""
        return [json.loads(item.input)["text"] for item in self.input.items]

    def answer(self, *indexes: int, bad: Sequence[int] = (), took: float = 0.25) -> None:
        """End some items, by default all that have not ended: each with its own text, or as a failure.

        `took`: seconds of the run, as the worker reports them.
        """
        which = indexes or tuple(sorted(self.open))
        self.open -= set(which)
        ends = []
        for index in which:
            text = json.dumps(self.texts[index].upper()).encode()
            outcome = Failed(f"ValueError: {index}") if index in bad else Succeeded(text, took)
            ends.append(ItemEnd(index, outcome))
        self.end(ends)

    def cancel(self) -> None:
        """Do what the worker does when it has heard of a cancel."""
        ends = [ItemEnd(index, Canceled()) for index in sorted(self.open)]
        self.open.clear()
        self.end(ends)


class HandWorker:
    """`geartrain.service.ports.WorkerPort`, as promised there."""

    def __init__(
        self,
        observer: WorkerObserver,
        *,
        policy: BatchPolicy | None = None,
        signature: Signature = BY_ITEM,
        shared: tuple[str, ...] = ("kind",),
        slots: int = 1,
    ) -> None:
        """`policy`: None for a model without batches."""
        self.calls: list[HandCall] = []
        self.running: dict[int, HandCall] = {}
        self.unstarted: list[HandCall] = []  # that it died before
        self.discarded: list[FileRef] = []
        self.killed: str | None = None
        self.asked_for_debugger = 0  # times that somebody has asked whether it is debugged
        self.debugged_until = 0  # as many times the answer is yes
        self._observer = observer
        batching = None
        if policy is not None:
            batching = Batching(policy, by_rows=signature is BY_ROWS, shared=shared if signature is BY_ITEM else ())
        self._info = WorkerInfo(signature, slots, is_async=slots > 1, has_healthcheck=False, batching=batching)

    async def start(self) -> WorkerInfo:
        """It is ready at once."""
        self._observer.on_loaded(self._info)
        return self._info

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Keep a call until the test ends it."""
        assert len(call.items) == 1 or self._info.batching is not None, "this model takes one prediction at a time"
        running = self._current(slot)
        new = HandCall(call, listener)
        self.calls.append(new)
        if running is None:
            assert not call.prefetch
            self.running[slot] = new
            listener.on_begin()
        else:
            assert call.prefetch, f"slot {slot} is in use"
            assert not self._info.is_async
            while running.next is not None:
                running = running.next
            running.next = new

    @property
    def is_debugged(self) -> bool:
        """See `WorkerPort`."""
        self.asked_for_debugger += 1
        return self.asked_for_debugger <= self.debugged_until

    @property
    def may_prefetch(self) -> bool:
        """Whether calls may wait behind another one: always."""
        return True

    def _current(self, slot: int) -> HandCall | None:
        call = self.running.get(slot)
        while call is not None and call.is_over:
            call = call.next
        return call

    def cancel(self, slot: int, call_id: str) -> None:
        """Note it."""
        running = call = self._current(slot)
        while call is not None:
            if call.input.id == call_id:
                call.was_canceled = True
                call.was_withdrawn = call.was_withdrawn or call is not running
            call = call.next

    def discard(self, files: Sequence[FileRef]) -> None:
        """Note it."""
        self.discarded += files

    pids = ()

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
                call.listener.on_end((ItemEnd(ALL, Failed("Worker crashed: gone")),), idle=False)
            following = []
            while call is not None and call.next is not None:
                call = call.next
                following.append(call)
            for each in reversed(following):
                each.is_over = True
                self.unstarted.append(each)
                self.calls.remove(each)
                each.listener.on_unstarted()
        self._observer.on_lost("Worker crashed: gone")
