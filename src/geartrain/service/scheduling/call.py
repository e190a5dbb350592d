"""One invocation of `run()`, for one prediction or several: what the worker says of it, told to its members.

The scheduler learns from the end of each call: `Pace`, `Lookahead` and `Demand`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Final

from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    FileRef,
    ItemEnd,
    ItemEvent,
    ModelCallPort,
    Outcome,
    Succeeded,
)
from geartrain.domain.predictions.events import Metric
from geartrain.domain.predictions.lifecycle import TO_CALL_STATE, CallState, ExecutionState
from geartrain.service.scheduling.execution import CANCELED, Execution
from geartrain.service.scheduling.tracing import Assignment

if TYPE_CHECKING:
    from geartrain.service.scheduling.nested import NestedCalls
    from geartrain.service.scheduling.scheduler import Permit, Scheduler

SIZE_METRIC = "batch_size"
# Members of enumerations as globals: see the scheduler.
_ASSIGNED, _RUNNING, _ENDED, _OVER = CallState.ASSIGNED, CallState.RUNNING, CallState.ENDED, CallState.OVER
_DELIVERING, _WITHDRAWN = CallState.DELIVERING, CallState.WITHDRAWN
_to_running, _to_over = TO_CALL_STATE[_RUNNING], TO_CALL_STATE[_OVER]
_IN_RUN = frozenset({CallState.RUNNING, CallState.CANCELING, CallState.KILLED})


_numbers = itertools.count(1)  # of batches

_Part = tuple[Execution, Outcome, Sequence[FileRef]]
"""A member that is over, how, and the files of its output."""


class Call:
    """Hears the worker (`CallListener`), and tells each member its part.

    A call of a model that takes batches ends a canceled member at once, and is stopped when no member is left; its slot
    is free when the run is over. A call of any other model has one member, which ends when its run does. If no call has
    been prefetched behind it, its slot is free when its output files have been delivered, so that a slow destination
    slows down what fills it.
    """

    __slots__ = (
        "_is_prefetched",
        "_members",
        "_predict_time",
        "_scheduler",
        "_since",
        "_timer",
        "began_at",
        "call_id",
        "nested",
        "permit",
        "rows",
        "size",
        "state",
        "took",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        permit: Permit,
        members: Sequence[Execution],
        *,
        prefetched: bool = False,
    ) -> None:
        """`prefetched`: another call runs on the slot, and this one begins when that is over."""
        self.permit = permit
        self.size = size = len(members)
        if size == 1:
            first = members[0]
            self.call_id = first.item.id
            self.rows = first.item.rows
            self._members = {0: first}  # those that have not ended, by their index
        else:
            self.call_id = f"batch-{next(_numbers)}"
            self.rows = sum([member.item.rows for member in members])
            self._members = dict(enumerate(members))
        self.state = _ASSIGNED
        self._scheduler = scheduler
        self.began_at = 0.0  # until it is known
        self._since = 0.0  # the same moment on the clock that cannot be set
        self.took = 0.0  # seconds, once its run is over
        self._predict_time: float | None = None  # of the run in the worker, once it has told
        self._timer: asyncio.TimerHandle | None = None  # kills a worker that ignores a cancel
        self.nested: NestedCalls | None = None  # calls of other models by its run, if there have been any
        self._is_prefetched = prefetched
        for member in members:
            member.assign(self, prefetched=prefetched)

    def start(self, *, single_client: bool = False, at: float = 0.0) -> None:
        """Hand the call to its worker; `single_client` as of `CallInput`.

        `at`: the moment at which the call begins, if that is known; otherwise the clock says it.
        """
        self.began_at = at
        if at:
            self._since = self._scheduler.context.steady()
        members = self._members
        items = (members[0].item,) if self.size == 1 else tuple([member.item for member in members.values()])
        call = CallInput(self.call_id, items, self._is_prefetched, single_client, self._scheduler.is_apart)
        if single_client:
            self._run_single(call)
        else:
            self.permit.worker.run(self.permit.slot, call, self)

    def _run_single(self, call: CallInput) -> None:
        """Have the worker run the call of a single client, which may be awaited on the spot.

        It may give more meanwhile than a log holds. That is for readers that join in this turn of the loop, once the
        prediction has been returned to its creator.
        """
        first = self._members[0]
        logs = (first.prediction.log,) if first.shared is None else (first.prediction.log, *first.shared.logs)
        for log in logs:
            log.hold()
        try:
            self.permit.worker.run(self.permit.slot, call, self)
        finally:
            for log in logs:
                if not log.settle():
                    asyncio.get_running_loop().call_soon(log.release)

    def _step(self, wanted: CallState) -> None:
        self.state = TO_CALL_STATE[wanted](self.state)

    # towards its members

    def withdraw(self, member: Execution) -> None:
        """Take a member out of a call that has not begun."""
        self._remove(member)
        if not self._members:
            self._step(_WITHDRAWN)
            self.permit.worker.cancel(self.permit.slot, self.call_id)

    def cancel(self, member: Execution) -> None:
        """Cancel a member of a call that runs."""
        if self._scheduler.is_batching:
            self._remove(member)
            member.end(CANCELED, at=self._scheduler.context.clock())
            if not self._members:
                self._stop()
        elif member.state is ExecutionState.RUNNING:
            member.begin_cancel()
            self._stop()

    def discard(self, files: Sequence[FileRef]) -> None:
        """Release the files of an output."""
        self.permit.worker.discard(files)

    def on_member_over(self) -> None:
        """Free the slot that was held for the files of this member."""
        if self.state is _DELIVERING:
            self._end()

    def elapsed(self) -> float:
        """Return the seconds since the call began, on the clock that cannot be set; 0 before."""
        return self._scheduler.context.steady() - self._since if self._since else 0.0

    def _remove(self, member: Execution) -> None:
        self._members = {index: each for index, each in self._members.items() if each is not member}

    def _stop(self) -> None:
        if self.state is not _RUNNING:
            return
        self._step(CallState.CANCELING)
        self.permit.worker.cancel(self.permit.slot, self.call_id)
        if self.nested is not None:
            self.nested.end()
        self._limit_stop()

    def _limit_stop(self) -> None:
        """Kill the worker if the call does not stop in time."""
        grace = self._scheduler.context.cancel_grace
        if grace is not None:
            self._timer = asyncio.get_running_loop().call_later(grace, self._kill, grace)

    @property
    def is_debugged(self) -> bool:
        """True if a person may have stopped its run in a debugger."""
        return self.permit.worker.is_debugged

    def _kill(self, grace: float) -> None:
        if self.is_debugged:
            self._limit_stop()
            return
        if self.state is not _ENDED:
            self._step(CallState.KILLED)
        self.permit.worker.kill(f"killed, because a canceled prediction had not ended after {grace:g} seconds")

    # calls of other models

    @property
    def members(self) -> Sequence[Execution]:
        """The members that have not ended."""
        return tuple(self._members.values())

    def on_model_call(self, call: ModelCallPort) -> None:
        """Make the prediction of another model that the run calls."""
        self._scheduler.context.on_model_call(call, self)

    # from the worker

    def on_begin(self) -> None:
        """Begin the members, unless the call has been withdrawn."""
        if self.state is _WITHDRAWN:
            self.permit.worker.cancel(self.permit.slot, self.call_id)
            self._limit_stop()
            return
        self.state = _to_running(self.state)
        scheduler = self._scheduler
        at = self.began_at = self.began_at or scheduler.context.clock()
        self._since = self._since or scheduler.context.steady()
        if scheduler.context.traces is not None:
            self._seat_members()
        for member in self._members.values():
            member.begin(at)
        if scheduler.is_batching:
            size = Metric(SIZE_METRIC, self.rows, "replace")
            for member in self._members.values():
                member.note_size(size)

    def _seat_members(self) -> None:
        """Tell the traces of the members where they run, and with whom."""
        members, permit = self._members.values(), self.permit
        pid = next(iter(permit.worker.pids), 0)
        traces = [member.trace for member in members if member.trace is not None]
        for trace in traces:
            others = tuple(each.run for each in traces if each is not trace)
            trace.assign(Assignment(permit.slot, pid, self.size, self.rows, others))

    def on_unstarted(self) -> None:
        """Give the members back to the queue."""
        self._step(CallState.UNSTARTED)
        members = list(self._members.values())
        self._members.clear()
        self._scheduler.requeue(self, members)

    def on_event(self, report: ItemEvent) -> None:
        """Pass a report to its member, or to all members."""
        member = self._members.get(report.item)
        if member is not None:
            member.on_event(report)
        elif report.item == ALL:
            for each in tuple(self._members.values()):
                each.on_event(report)
        elif report.files:
            self.discard(report.files)

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:  # noqa: C901, PLR0912 - on the path of each prediction
        """End members. With `idle` the slot has its next call before any of them hears of it."""
        scheduler, members = self._scheduler, self._members
        # The end of this run is the beginning of the next one: one moment to write, 3 % of a request in a queue.
        at = (scheduler.began_after(self) if idle and scheduler.prefetched else 0.0) or scheduler.context.clock()
        over: list[_Part] = []
        has_files = False  # to deliver, or still on their way
        for end in ends:
            outcome = end.outcome
            if type(outcome) is Succeeded:
                self._predict_time = outcome.predict_time
            member = members.pop(end.item, None)
            if member is None:
                has_files = self._end_rest(end, over) or has_files
            else:
                over.append((member, outcome, end.files))
                if end.files or (member.delivery is not None and member.delivery.is_pending):
                    has_files = True
        if self.state in _IN_RUN and (idle or not members):
            self._count()
        if self.nested is not None and (idle or not members):
            if self.nested.is_cut:  # the end of such a call may reach the run before the cancel does
                over = [(member, CANCELED, files) for member, _, files in over]
            self.nested.end()
        if idle:
            if self._timer is not None:
                self._timer.cancel()
            if not has_files or scheduler.is_batching or scheduler.is_followed(self):
                self.state = _to_over(self.state)
                scheduler.release(self)
            else:
                self._step(_DELIVERING)
        elif not members and self.state is not _ENDED:
            self._step(_ENDED)
            scheduler.on_call_ended(self)
        for member, outcome, files in over:
            member.end(outcome, files, at=at)

    def _end_rest(self, end: ItemEnd, over: list[_Part]) -> bool:
        """Handle an end of all members, or of one that has ended before.

        Returns whether files of one of them are still on their way.
        """
        if end.item != ALL:
            if end.files:
                self.discard(end.files)
            return False
        outcome = CANCELED if self.state is CallState.KILLED else end.outcome
        rest = tuple(self._members.values())
        over += [(member, outcome, ()) for member in rest]
        self._members.clear()
        return any(member.delivery is not None and member.delivery.is_pending for member in rest)

    def on_idle(self) -> None:
        """Free the slot: the run has ended, after all members of the call."""
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.state = _to_over(self.state)
        self._scheduler.release(self)

    def _count(self) -> None:
        scheduler = self._scheduler
        took = self.took = scheduler.context.steady() - self._since
        scheduler.pace.note(took / self.size)
        if scheduler.can_prefetch:
            scheduler.lookahead.note(took if self._predict_time is None else self._predict_time)
        counts = scheduler.context.counts
        counts.runs += 1
        if scheduler.is_batching:
            counts.add_batch(self.rows, took, predict_time=self._predict_time)


LONGEST_WAIT: Final = 3600  # seconds that a client is told to wait, at most
_WEIGHT: Final = 0.125  # of the latest prediction, in an average that forgets
_FADING: Final = 0.98  # share of the longest time that each prediction leaves
_AHEAD: Final = 0.5e-3  # seconds of runs that may lie in the socket of a worker
_MOST_AHEAD: Final = 32  # calls


class Pace:
    """The recent time of a prediction in a slot, in seconds: a moving average over calls.

    Of a call with several predictions each counts for its part. `longest` is the longest of late, which fades.
    """

    __slots__ = ("longest", "seconds")

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0  # until the first has ended

    def note(self, seconds: float) -> None:
        """Note that a prediction has taken so many seconds of a slot."""
        recent = self.seconds
        self.seconds = recent + (seconds - recent) * _WEIGHT if recent else seconds
        self.longest = max(seconds, self.longest * _FADING)

    def retry_after(self, ahead: int, slots: int) -> int:
        """Return in how many seconds there is likely to be a slot for one that has so many predictions before it.

        It is at least 1, and at most `LONGEST_WAIT`.
        """
        return min(max(1, ceil(self.seconds * (ahead + 1) / max(1, slots))), LONGEST_WAIT)


class Lookahead:
    """The number of calls that may lie in a worker's socket, learned from the seconds that runs take in the worker."""

    __slots__ = ("_seconds", "depth")

    def __init__(self) -> None:
        self.depth = 1
        self._seconds = 0.0  # of a run: an average that forgets; 0 until the first has ended

    def note(self, seconds: float) -> None:
        """Note that a run has taken so many seconds."""
        recent = self._seconds
        recent = self._seconds = recent + (seconds - recent) * _WEIGHT if recent else seconds
        if recent > _AHEAD / 2:
            self.depth = 1
        else:
            self.depth = int(_AHEAD / recent) if recent > _AHEAD / _MOST_AHEAD else _MOST_AHEAD


_ENOUGH: Final = 3  # calls that ended while no other waited or ran, before a single client is assumed
_DOUBT: Final = 64  # calls for which several clients are assumed, once they have been seen
_CHECK_EVERY: Final = 8  # calls


class Demand:
    """An estimate that learns from the end of each call.

    A call of a single client may be awaited on the spot (`bridge.wakeup`). The server sees no other client meanwhile,
    so several clients could look like one. Therefore every eighth call is taken for one of several clients, and several
    clients that were seen once are assumed for 64 calls.
    """

    __slots__ = ("_calls", "is_single")

    def __init__(self) -> None:
        self.is_single = False  # a call that begins now is likely to be the only one until it ends
        self._calls = 0  # in a row that ended while no other waited or ran; negative while several clients are assumed

    def end_call(self, *, alone: bool) -> None:
        """Note the end of a call. `alone`: it was of one prediction, and no other one was waiting or running."""
        self._calls = calls = self._calls + 1 if alone else _ENOUGH - _DOUBT
        self.is_single = calls >= _ENOUGH and calls % _CHECK_EVERY != 0
