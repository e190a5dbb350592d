"""The predictions that wait for a call: their queue, how they share calls, and for how long."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import BatchItems, BatchPolicy
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.predictions.priorities import Priorities
from geartrain.domain.tensors.tensor import Tensor
from geartrain.service.scheduling.context import TimeLimit
from geartrain.service.scheduling.cutting import Size
from geartrain.service.scheduling.execution import Execution
from geartrain.service.scheduling.queue import BatchQueue, CallQueue, FirstComeQueue, LevelledQueue

_LIGHT: Final = 128 * 1024  # bytes of a call that may be prefetched into its worker's socket
_NEAR: Final = 1.0  # seconds before its time is up, from which on nothing is prefetched
_ONE_BY_ONE: Final = BatchPolicy(max_size=1)
_ONE_ROW: Final = Size(1)
DEFAULT_QUEUE: Final = 1024  # requests that may wait, where requests do


Measure = Callable[[bytes, Sequence[Tensor] | None], tuple[Hashable, int]]
"""Tells what has to be equal in requests that share a call, and the rows of one; see `BatchItems`."""


def _measure_single(_json: bytes, _tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
    """Measure a request that has a call of its own."""
    return (), 1


class Pending:
    """The queue of one scheduler. It asks the scheduler to serve when a delay or the time limit of a level is over."""

    def __init__(self, serve: Callable[[], None], priorities: Priorities, *, sorts_all: bool = False) -> None:
        """`serve` starts what can be started. `sorts_all`: calls are sorted by cost among all that waits."""
        self.queue: CallQueue[Execution] = _new_queue(_ONE_BY_ONE, priorities)
        self.measure: Measure = _measure_single
        self._cost_of: CostRule | None = None
        self.max_size = 1  # rows of a call
        self.max_cost: float | None = None  # of a call, 0 for any; None for requests without a cost
        self.has_levels = bool(priorities.levels)
        self.turn = Turn(serve)
        self._priorities = priorities
        self._sorts_all = sorts_all
        self._expiry = Turn(serve)
        self._has_timeouts = False  # true if there has been a prediction with a timeout

    def configure(self, info: WorkerInfo, *, learns: bool) -> None:
        """Learn how the model takes its predictions, which may change when another worker follows.

        Those that wait go on waiting. `learns`: there is one slot, so that what comes after a call can be laid to it.
        """
        batching = info.batching
        policy = _ONE_BY_ONE if batching is None or not batching.policy.gather else batching.policy
        if not learns:
            policy = msgspec.structs.replace(policy, learn_delay=False)
        if self._sorts_all and (policy.padded or policy.sort):
            policy = msgspec.structs.replace(policy, sort=sys.maxsize)
        self.measure = _measure_single if batching is None else BatchItems(info.signature, batching).measure
        self._cost_of = CostRule(policy.cost, info.signature) if policy.cost else None
        self.max_size = policy.max_size
        self.max_cost = policy.max_cost if policy.cost else None
        waiting, self.queue = self.queue, _new_queue(policy, self._priorities)
        for execution in waiting:
            try:
                key, rows = self.measure(execution.item.input, execution.item.tensors)
            except GeartrainError as error:
                execution.refuse(error)
            else:
                execution.measured(key, rows)
                self._put(execution)

    def add(self, execution: Execution) -> bool:
        """Have an execution wait; return whether `take` may give more than it would have before."""
        execution.wait()
        return self._put(execution)

    def add_all(self, executions: Sequence[Execution]) -> bool:
        """Have executions wait that have come at the same moment and are not nested; return as `add` does."""
        if self.has_levels:
            changes = [self.add(execution) for execution in executions]
            return any(changes)
        cost_of = self._cost_of
        entries: list[tuple[Execution, Hashable, Size]] = []
        for execution in executions:
            execution.wait()
            item = execution.item
            if cost_of is not None:
                size = Size(item.rows, cost_of(item.input, item.tensors))
            else:
                size = _ONE_ROW if item.rows == 1 else Size(item.rows)
            entries.append((execution, execution.ticket.key, size))
        return self.queue.add_all(entries, now=time.monotonic())

    def put_back(self, executions: Sequence[Execution]) -> None:
        """Have executions wait again, before all others; with levels, behind the others of their level."""
        later = () if self.has_levels else tuple(self.queue)
        for execution in later:
            self.queue.remove(execution)
        for execution in executions:
            self.add(execution)
        for execution in later:
            self._put(execution)

    def _put(self, execution: Execution) -> bool:
        ticket, now = execution.ticket, time.monotonic()
        item, cost_of = execution.item, self._cost_of
        size = Size(item.rows) if cost_of is None else Size(item.rows, cost_of(item.input, item.tensors))
        may_run = self.queue.add(
            execution, ticket.key, size, now=now, level=ticket.level, is_ahead=ticket.schedule.is_nested
        )
        if self.has_levels:
            self._expiry.at(self.queue.next_expiry(), now)
        return may_run

    def place_of(self, execution: Execution) -> int:
        """Return the place in the queue, 1 for the next one.

        0: its time is up, so that it has left the queue, and its timer is about to end it.
        """
        return next((place for place, each in enumerate(self.queue, 1) if each is execution), 0)

    def note_timeout(self, execution: Execution) -> bool:
        """Take note of a prediction that has a timeout; return whether its time is up."""
        self._has_timeouts = True
        return execution.is_overdue(time.monotonic())

    def take(self) -> list[Execution]:
        """Return the predictions to run together now, if any; otherwise schedule the next look."""
        while self.queue:
            now = time.monotonic()
            members = self.queue.take(now)
            if not members:
                due = self.queue.due()
                if due is not None:
                    self.turn.at(due, now)
                return []
            if self._has_timeouts:
                members = [member for member in members if not member.is_overdue(now)]
            if members:
                return members
        return []

    def take_full(self) -> list[Execution]:
        """Return a call that nothing could be added to, and that is light enough to be handed to a busy worker."""
        return self.queue.take_full(only=lambda execution: self.is_light(execution, 0))

    def take_light(self, number: int, others: int) -> list[Execution]:
        """Return so many of the next ones, up to the first that is not light: each has a call of its own.

        `others`: see `is_light`.
        """
        return self.queue.take_several(number, only=lambda execution: self.is_light(execution, others))

    def is_light(self, execution: Execution, others: int) -> bool:
        """True if a call of its like may go through a socket. What is heavier travels in memory that is in use.

        `others`: how many of its like may lie there, behind a first one; 0 for that one. Together they are half as
        large, so that a withdrawal still has room behind them.

        One whose time is nearly up stays here, where a busy loop cannot be late to take it back.
        """
        item = execution.item
        if self._has_timeouts and execution.is_overdue(time.monotonic() + _NEAR):
            return False
        size = len(item.input)
        if item.tensors:
            size += sum([len(tensor.data) for tensor in item.tensors])
        return size * self.max_size * (2 * others or 1) <= _LIGHT * item.rows

    def expire(self) -> None:
        """End those that have waited as long as their level allows."""
        now = time.monotonic()
        for execution in self.queue.expire(now):
            execution.refuse(GeartrainError(Code.QUEUE_TIMED_OUT, "Request timeout expired"))
        self._expiry.at(self.queue.next_expiry(), now)

    def end_call(self, rows: int, took: float) -> None:
        """Note that a call of so many rows has ended after `took` seconds."""
        self.queue.end_call(rows, took=took, now=time.monotonic())


def _new_queue(policy: BatchPolicy, priorities: Priorities) -> CallQueue[Execution]:
    if priorities.levels:
        return LevelledQueue(policy, priorities.levels)
    if policy.max_size == 1:
        return FirstComeQueue()
    return BatchQueue(policy)


class Turn:
    """Calls the scheduler at the end of this turn of the loop, or when a delay is over: once, however often asked."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._is_set = False
        self._timer: TimeLimit | None = None

    @property
    def has_timer(self) -> bool:
        """True if a delay is running."""
        return self._timer is not None

    def at_end(self) -> None:
        """Serve at the end of this turn of the loop."""
        if not self._is_set:
            self._is_set = True
            asyncio.get_running_loop().call_soon(self._on_end)

    def at(self, moment: float, now: float) -> None:
        """Serve at a moment, if not before; both on any one clock, and infinity for never."""
        if moment == inf:
            return
        seconds = max(0.0, moment - now)
        if self._timer is not None:
            if self._timer.ends_at <= time.monotonic() + seconds:
                return
            self._timer.cancel()
        self._timer = TimeLimit(seconds, self._on_timer)

    def _on_end(self) -> None:
        self._is_set = False
        self._serve()

    def _on_timer(self) -> None:
        self._timer = None
        self._serve()
