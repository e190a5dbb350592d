"""The execution of one prediction: preparing it, waiting for a call, running, ending."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import INLINE, Canceled, Failed, FileRef, ItemInput, Outcome, Succeeded
from geartrain.domain.predictions.events import LogSource, Metric
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.predictions.lifecycle import TO_EXECUTION_STATE, ExecutionState
from geartrain.domain.predictions.prediction import CLIENT_LEFT, Prediction
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.scheduling.context import RunContext
from geartrain.service.scheduling.delivery import NO_DELIVERY, Delivery, NoDelivery
from geartrain.service.scheduling.failures import NOT_DELIVERED, NOT_RUN, RUN_FAILED, TIMED_OUT, log_failure
from geartrain.service.scheduling.preparation import (
    NO_ATTACHMENTS,
    NO_PREPARATION,
    Attachments,
    NoPreparation,
    Preparation,
)
from geartrain.service.scheduling.time_limit import TimeLimit
from geartrain.service.scheduling.tracing import NO_TRACE, TracePort
from geartrain.service.statistics import Fault

CANCELED = Canceled()
ABANDONED: Final = Canceled()  # because its last client has left; compared by identity
_S = ExecutionState
_NO_RECEIVER: Final = frozenset({None, INLINE})
_WITHOUT_SLOT = frozenset({_S.ADMITTED, _S.PREPARING, _S.WAITING, _S.PREFETCHED})
# To read a member of an enumeration from its class takes several times as long as a global name.
_ADMITTED, _ASSIGNED, _PREFETCHED, _WAITING = _S.ADMITTED, _S.ASSIGNED, _S.PREFETCHED, _S.WAITING
_RUNNING, _CLOSING, _OVER = _S.RUNNING, _S.CLOSING, _S.OVER
_BEGUN = frozenset({_S.RUNNING, _S.CANCELING, _S.CLOSING})
_to_assigned, _to_running, _to_over = (TO_EXECUTION_STATE[state] for state in (_ASSIGNED, _RUNNING, _OVER))


class Refused(msgspec.Struct, frozen=True):
    """The outcome of a prediction that waited and will never run."""

    code: Code
    message: str


class Undelivered(msgspec.Struct, frozen=True):
    """The outcome of a prediction whose outputs could not be delivered."""

    message: str


class TimedOut(msgspec.Struct, frozen=True):
    """The outcome of a prediction whose time is up, while it waited or ran; `limit` in seconds is what it had."""

    limit: float


Result = Outcome | Refused | Undelivered


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A place in the queue: what has to be equal in predictions that share a call, and what the client says of it.

    `level` is the index of its priority level.
    """

    key: Hashable = ()
    schedule: SchedulePolicy = NO_SCHEDULE
    level: int = 0


NO_TICKET: Final = Ticket()  # ticket of a prediction alone in its call, without requests of its client


class CallPort(Protocol):
    """The call that an execution is a member of."""

    @property
    def is_debugged(self) -> bool:
        """True if a person may have stopped its run in a debugger."""

    def withdraw(self, member: Execution) -> None:
        """Take a member out of a call that has not begun."""

    def cancel(self, member: Execution) -> None:
        """Cancel a member of a call that runs."""

    def discard(self, files: Sequence[FileRef]) -> None:
        """Release the files of an output."""

    def on_member_over(self) -> None:
        """A member is about to reach its terminal state."""

    def elapsed(self) -> float:
        """Return the seconds since the call began, on the clock that cannot be set; 0 before."""


class QueuePort(Protocol):
    """Queue of executions."""

    def place_of(self, execution: Execution) -> int:
        """Return the place of one that waits, 1 for the next one."""


class SchedulerPort(Protocol):
    """The scheduler of an execution."""

    context: RunContext
    waiting: int

    @property
    def pending(self) -> QueuePort:
        """Queue of executions that wait for a call."""

    def submit(self, execution: Execution) -> None:
        """Run an execution that is ready, or have it wait for a call."""

    def leave(self, execution: Execution) -> None:
        """Take an execution out of the queue."""

    def on_over(self, execution: Execution) -> None:
        """An execution is about to reach its terminal state."""


class _NoCall:
    """In place of a call, for an execution that has none."""

    is_debugged = False

    def withdraw(self, member: Execution) -> None:
        """Do nothing: there is no call to leave."""

    def cancel(self, member: Execution) -> None:
        """Do nothing: there is no run to cancel."""

    def discard(self, files: Sequence[FileRef]) -> None:
        """Do nothing: there are no files."""

    def on_member_over(self) -> None:
        """Do nothing: a single execution has no waiter."""

    def elapsed(self) -> float:
        """Return 0: nothing has begun."""
        return 0.0


_NO_CALL = _NoCall()


class Execution:
    """Moves one prediction through the states of `EXECUTION_STEPS`, and writes its log.

    Outputs with files take time: the files become URLs first. What comes after such an output waits behind it, so the
    log keeps the order of the run. Without files nothing waits, and there is no task.
    """

    __slots__ = (
        "_call",
        "_preparation",
        "_ran",
        "_room",
        "_scheduler",
        "_stopped_as",
        "_timer",
        "delivery",
        "is_kept",
        "item",
        "output_prefix",
        "prediction",
        "record",
        "state",
        "ticket",
        "trace",
    )

    def __init__(self, scheduler: SchedulerPort, prediction: Prediction, item: ItemInput, *, ticket: Ticket) -> None:
        self.prediction = prediction
        self.record = prediction.record
        self.item = item
        self.ticket = ticket
        self.state = _ADMITTED
        self.is_kept = False  # so that a client can ask for the prediction after its end
        self.output_prefix: str | None = None  # the URL that its client wants its output files at
        self.trace: TracePort = NO_TRACE
        self._scheduler = scheduler
        self._call: CallPort = _NO_CALL
        self._room = scheduler.context.max_output_size  # bytes that its outputs may still have
        self._preparation: Preparation | NoPreparation = NO_PREPARATION
        self.delivery: Delivery | NoDelivery = NO_DELIVERY
        self._stopped_as: Canceled | TimedOut | Failed = CANCELED  # outcome after a request to stop
        self._ran: float | None = None  # seconds of its run, if it has ended before its outputs are delivered
        self._timer: TimeLimit | None = None  # ends it when its time is up
        timeout = ticket.schedule.timeout
        if timeout is not None:
            self._bound(timeout)
        scheduler.waiting += 1  # the last step: a failed one leaves nothing to undo

    def _step(self, wanted: ExecutionState) -> None:
        """Go to another state, and count as waiting while there is no slot.

        Steps of each prediction that lead to a slot, or to the end, do the same themselves.
        """
        before = self.state
        self.state = TO_EXECUTION_STATE[wanted](before)
        self._scheduler.waiting += (wanted in _WITHOUT_SLOT) - (before in _WITHOUT_SLOT)

    # before its run

    def begin_trace(self) -> None:
        """Have its spans recorded, if its request is sampled. The worker is told the id of its run."""
        request = self.record.request
        self.trace = self._scheduler.context.traces.trace(request)
        self.item = msgspec.structs.replace(self.item, request=self.trace.request_of_run(request))
        self.trace.follow(self.prediction)

    def prepare(self, values: dict[str, Any], attachments: Attachments = NO_ATTACHMENTS) -> None:
        """Fetch the files of the decoded input, and submit the execution when they are there."""
        context = self._scheduler.context
        folder = attachments.folder if attachments.files else context.new_folder()
        self._preparation = Preparation(
            context.input_files(),
            folder,
            attachments=attachments,
            on_ready=self._on_ready,
            on_end=self._on_unprepared,
        )
        self._step(_S.PREPARING)
        self.record.ready = 0.0
        with self.trace.preparing():
            self._preparation.begin(values)

    def _on_ready(self, local: bytes) -> None:
        self.item = msgspec.structs.replace(self.item, input=local)
        self.record.ready = self._scheduler.context.clock()
        self._scheduler.submit(self)

    def _on_unprepared(self, outcome: Outcome) -> None:
        self.end(outcome, at=self._scheduler.context.clock())

    def wait(self) -> None:
        """Wait in the queue."""
        self._step(_WAITING)

    @property
    def place(self) -> int:
        """Its place in the queue, 1 for the next one; 0 if it does not wait there."""
        return self._scheduler.pending.place_of(self) if self.state is _WAITING else 0

    def measured(self, key: Hashable, rows: int) -> None:
        """Note what another worker makes of it; see `Ticket`."""
        self.ticket = msgspec.structs.replace(self.ticket, key=key)
        self.item = msgspec.structs.replace(self.item, rows=rows)
        self.record.rows = rows

    def assign(self, call: CallPort, *, prefetched: bool) -> None:
        """Make this prediction a member of a call, which has a slot or is `prefetched`."""
        self._call = call
        if prefetched:
            self._step(_PREFETCHED)
            return
        before = self.state
        self.state = _to_assigned(before)
        if before in _WITHOUT_SLOT:
            self._scheduler.waiting -= 1

    def refuse(self, reason: GeartrainError) -> None:
        """End an execution that has not begun, because there is nothing to wait for any more."""
        self._withdraw()
        self.end(Refused(reason.code, reason.message), at=self._scheduler.context.clock())

    def cancel(self) -> None:
        """Cancel this prediction. Repeating it is harmless."""
        if self._timer is not None:
            self._timer.cancel()
        match self.state:
            case _S.PREPARING:
                self._preparation.cancel()
            case _S.WAITING | _S.ASSIGNED | _S.PREFETCHED:
                self._withdraw()
                self.end(CANCELED, at=self._scheduler.context.clock())
            case _S.RUNNING | _S.CANCELING:
                self.delivery.cut()
                self._call.cancel(self)
            case _S.CLOSING:
                self.delivery.cut()

    def undo(self) -> None:
        """Give back what a failed admission has taken: its time limit, its place, its call.

        Its prediction does not end: no client has received it. One that has begun to fetch files or to run is canceled,
        and gives the rest back at its end.
        """
        if self._timer is not None:
            self._timer.cancel()
        self.is_kept = False
        state = self.state
        if self._has_begun:
            self.cancel()
        elif state is not _OVER:
            self._step(_OVER)
            if state is _WAITING:
                self._scheduler.leave(self)
            elif state in {_ASSIGNED, _PREFETCHED}:
                self._call.withdraw(self)

    def fail(self, reason: str) -> None:
        """End an execution that could not be begun; cancel it if it has."""
        if self._has_begun:
            self.cancel()
        elif self.state is not _OVER:
            self._withdraw()
            self.end(Failed(reason), at=self._scheduler.context.clock())

    @property
    def _has_begun(self) -> bool:
        """True if its run, or the fetch of its files, has begun, so that its end comes from there."""
        return self.state in _BEGUN or (self.state is _S.PREPARING and self._preparation.has_begun)

    def abandon(self) -> None:
        """Cancel this prediction because its last client has left, unless its cancel was requested before."""
        if self.state is not _S.CANCELING and self._stopped_as is CANCELED:
            self._stopped_as = ABANDONED
        self.cancel()

    @property
    def is_abandoned(self) -> bool:
        """True if it is being canceled only because its last client has left."""
        return self._stopped_as is ABANDONED

    def _withdraw(self) -> None:
        if self.state is _WAITING:
            self._scheduler.leave(self)
        elif self.state in {_ASSIGNED, _PREFETCHED}:
            self._call.withdraw(self)

    # its time

    def _bound(self, seconds: float) -> None:
        """End it when so many seconds are over, unless its time is up before."""
        if self._timer is not None:
            if self._timer.ends_at <= time.monotonic() + seconds:
                return
            self._timer.cancel()
        self._timer = TimeLimit(seconds, self._on_time_up, seconds)

    def _on_time_up(self, limit: float) -> None:
        if self.state is _RUNNING and self._call.is_debugged:  # its time begins anew
            self._timer = TimeLimit(limit, self._on_time_up, limit)
            return
        self._stopped_as = TimedOut(limit)
        self.cancel()

    def is_overdue(self, now: float) -> bool:
        """True if its time is up at `now`, on the clock of `time.monotonic()`: its timer is about to end it."""
        return self._timer is not None and self._timer.ends_at <= now

    def expire(self) -> None:
        """End it before its run, because its time is up."""
        self._stopped_as = TimedOut(self.ticket.schedule.timeout or 0.0)
        self.end(CANCELED, at=self._scheduler.context.clock())

    # its run

    def begin(self, at: float) -> None:
        """Note that the call has begun."""
        before, scheduler = self.state, self._scheduler
        self.state = _to_running(before)
        if before is _PREFETCHED:
            scheduler.waiting -= 1
        self.prediction.start(at)
        limit = scheduler.context.run_timeout
        if limit is not None:
            self._bound(limit)

    def begin_cancel(self) -> None:
        """Note that the run has been asked to stop, and that its end is awaited."""
        self._step(_S.CANCELING)

    def on_output(self, chunk: bytes, files: Sequence[FileRef]) -> None:
        """The run gave a chunk of JSON text, empty if one of the files holds it."""
        if not self.record.first_output:
            self._note_first_output()
        if files:
            with self.trace.delivering():
                self._begin_delivery().give(chunk, files, self._add_output)
        elif self.delivery.is_pending:
            self.delivery.after(lambda: self._add_output(chunk))
        else:  # `_add_output` inlined: 3 % of a token of a stream
            self._room -= len(chunk)
            if self._room >= 0:
                self.prediction.add_output(chunk)
            else:
                self._refuse_outputs()

    def _add_output(self, chunk: Buffer) -> None:
        self._room -= len(chunk)
        if self._room >= 0:
            self.prediction.add_output(chunk)
        else:
            self._refuse_outputs()

    def _refuse_outputs(self) -> None:
        if type(self._stopped_as) is not Failed:  # once
            self._refuse_output()
            self.cancel()

    def _refuse_output(self) -> None:
        """Give back what the run has given: it is too large, and the prediction fails."""
        limit = self._scheduler.context.max_output_size
        self._stopped_as = Failed(f"the output is larger than the limit of {limit} bytes (--max-output-size)")
        self.prediction.forget_outputs()

    def _note_first_output(self) -> None:
        context, record = self._scheduler.context, self.record
        record.first_output = context.clock()
        context.counts.histograms.first_output.observe(record.first_output - record.admitted)

    def on_log(self, source: LogSource, data: str) -> None:
        """The run wrote to a stream."""
        self._scheduler.context.on_print(self.prediction, source, data)
        if self.delivery.is_pending:
            self.delivery.after(lambda: self.prediction.add_log(source, data))
        else:
            self.prediction.add_log(source, data)

    def on_metric(self, metric: Metric) -> None:
        """The run recorded a metric."""
        if self.delivery.is_pending:
            self.delivery.after(lambda: self.prediction.apply(metric))
        else:
            self.prediction.apply(metric)

    def _begin_delivery(self) -> Delivery:
        if isinstance(self.delivery, NoDelivery):
            outputs = self._scheduler.context.outputs()
            prediction = self.prediction
            files = functools.partial(outputs.of, prediction.id, self.output_prefix, self.record.request)
            self.delivery = Delivery(files, self._call.discard, packed=self._is_packed(), on_error=self.cancel)
        return self.delivery

    def _is_packed(self) -> bool:
        """True if its outputs are JSON and tensors in one piece."""
        return self.item.tensors is not None and self._scheduler.context.gives_tensors()

    # its end

    def end(self, outcome: Outcome | Refused, files: Sequence[FileRef] = (), *, at: float) -> None:
        """The run is over, or there will be none. What is still on its way is delivered first."""
        if self._timer is not None:
            self._timer.cancel()
        if not (files or self.delivery.is_pending or self._preparation.has_files):
            self._finish(outcome, at)
            return
        self.record.run_ended = at
        self._ran = self._call.elapsed()
        delivered: list[bytes] = []
        if isinstance(outcome, Succeeded) and outcome.output is not None and files:
            with self.trace.delivering():
                self._begin_delivery().give(bytes(outcome.output), files, delivered.append)
        elif files:
            self._call.discard(files)
        self._close(outcome, delivered)

    def _close(self, outcome: Outcome | Refused, delivered: list[bytes]) -> None:
        self._step(_S.CLOSING)

        async def close() -> None:
            await self._preparation.remove_files()
            final = outcome
            if delivered and isinstance(outcome, Succeeded):
                final = Succeeded(delivered[0], outcome.predict_time)
            self._finish(final, self._scheduler.context.clock())

        self._begin_delivery().after(close)

    def _finish(self, outcome: Result, at: float) -> None:
        before, scheduler = self.state, self._scheduler
        self.state = _to_over(before)
        if before in _WITHOUT_SLOT:
            scheduler.waiting -= 1
        scheduler.on_over(self)
        if before is _CLOSING:
            # Before the log says so: a reader of the end may use the slot at once.
            self._call.on_member_over()
        of_run = outcome
        if self.delivery is not NO_DELIVERY:
            outcome = self._outcome_of_delivery(outcome)
            self.delivery = NO_DELIVERY  # it refers to this execution: without the cycle, both are freed at once
        self._preparation = NO_PREPARATION  # see the delivery
        prediction = self.prediction
        if type(outcome) is Succeeded:
            output, predict_time, context = outcome.output, outcome.predict_time, scheduler.context
            size = context.max_output_size - self._room if output is None else len(output)
            if size <= context.max_output_size:
                context.counts.add_success(self.record, predict_time, size, at=at)
                # Of a whole output it makes no difference whether it is packed.
                packed = output is None and self._is_packed()
                prediction.succeed(output, at=at, predict_time=predict_time, packed=packed)
            else:  # a run may end well before it is canceled for that
                self._refuse_output()
                self._finish_stopped(at, predict_time)
            return
        self._finish_without_success(
            outcome, at, of_run.predict_time if type(of_run) is Succeeded else self._run_time()
        )

    def _finish_without_success(self, outcome: Result, at: float, predict_time: float) -> None:
        prediction = self.prediction
        if type(outcome) is Failed:
            self._finish_failed(outcome, at, predict_time)
        elif type(outcome) is Undelivered:
            self._count_fault("OTHER", at)
            self.trace.undelivered()
            prediction.fail(outcome.message, at=at, predict_time=predict_time)
            # A client that names the receiver can name one that takes nothing.
            log_failure(
                prediction, NOT_DELIVERED, level=logging.ERROR if self.output_prefix in _NO_RECEIVER else logging.INFO
            )
        elif type(outcome) is Refused:
            self._count_fault("REJECTED", at)
            prediction.fail(outcome.message, at=at, predict_time=predict_time, code=outcome.code)
        else:
            self._finish_stopped(at, predict_time)

    def _finish_failed(self, outcome: Failed, at: float, predict_time: float) -> None:
        """Reach the terminal state of a prediction whose run raised, or refused its input."""
        prediction = self.prediction
        if outcome.code is not None:
            self._count_fault("REJECTED", at)
            prediction.fail(outcome.error, at=at, predict_time=predict_time, code=outcome.code)
            return
        self._count_fault("BACKEND" if self.record.began else "OTHER", at)
        prediction.fail(outcome.error, at=at, predict_time=predict_time)
        if self.record.began:
            log_failure(prediction, RUN_FAILED, level=logging.ERROR)
        else:
            log_failure(prediction, NOT_RUN)

    def _run_time(self) -> float:
        """Return the seconds of a run that has not succeeded, 0 without a run."""
        if not self.record.began:
            return 0.0
        return self._call.elapsed() if self._ran is None else self._ran

    def _finish_stopped(self, at: float, predict_time: float) -> None:
        """Reach the terminal state of a prediction that was told to stop."""
        stopped_as = self._stopped_as
        if type(stopped_as) is Failed:
            self._count_fault("BACKEND", at)
            self.prediction.fail(stopped_as.error, at=at, predict_time=predict_time)
            log_failure(self.prediction, RUN_FAILED, level=logging.ERROR)
        elif type(stopped_as) is TimedOut:
            self._count_fault("OTHER" if self.record.began else "REJECTED", at)
            self.prediction.fail(
                f"timed out after {stopped_as.limit:g} s", at=at, predict_time=predict_time, code=Code.TIMED_OUT
            )
            log_failure(self.prediction, TIMED_OUT)
        else:
            self._count_fault("CANCELED", at)
            error = CLIENT_LEFT if stopped_as is ABANDONED else None
            self.prediction.cancel(at=at, predict_time=predict_time, error=error)

    def _outcome_of_delivery(self, outcome: Result) -> Result:
        """Return the outcome of a prediction whose outputs could not be delivered, or were cut short by a cancel."""
        if self.delivery.error is not None:
            return Undelivered(self.delivery.error)
        return CANCELED if self.delivery.is_cut else outcome

    def _count_fault(self, fault: Fault, at: float) -> None:
        self._scheduler.context.counts.add_fault(fault, self.record, at=at)
