"""The execution of one prediction: preparing it, waiting for a call, running, ending."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import (
    INLINE,
    Canceled,
    Failed,
    FileRef,
    ItemEvent,
    ItemInput,
    Outcome,
    Succeeded,
)
from geartrain.domain.predictions.events import Log, Metric, Output
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.predictions.lifecycle import TO_EXECUTION_STATE, ExecutionState
from geartrain.domain.predictions.prediction import CLIENT_LEFT, Prediction
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.ports import FolderPort
from geartrain.service.scheduling.context import TimeLimit
from geartrain.service.scheduling.failures import NOT_DELIVERED, NOT_RUN, RUN_FAILED, TIMED_OUT, log_failure, log_fault
from geartrain.service.scheduling.files import Attachments, Delivery, Digests, Preparation
from geartrain.service.statistics import Fault

if TYPE_CHECKING:
    from geartrain.service.scheduling.answers import SharedRun
    from geartrain.service.scheduling.call import Call
    from geartrain.service.scheduling.nested import NestedRun
    from geartrain.service.scheduling.scheduler import Scheduler
    from geartrain.service.scheduling.tracing import PredictionTrace

CANCELED = Canceled()
ABANDONED: Final = Canceled()  # because its last client has left; compared by identity
_S = ExecutionState
_NO_RECEIVER: Final = frozenset({None, INLINE})
_WITHOUT_SLOT = frozenset({_S.ADMITTED, _S.PREPARING, _S.WAITING, _S.PREFETCHED})
# Members of enumerations as globals: see the scheduler.
_ADMITTED, _ASSIGNED, _PREFETCHED, _WAITING = _S.ADMITTED, _S.ASSIGNED, _S.PREFETCHED, _S.WAITING
_SHARING = _S.SHARING
_RUNNING, _CLOSING, _OVER = _S.RUNNING, _S.CLOSING, _S.OVER
_BEGUN = frozenset({_S.RUNNING, _S.CANCELING, _S.CLOSING})
_to_assigned, _to_running, _to_over = (TO_EXECUTION_STATE[state] for state in (_ASSIGNED, _RUNNING, _OVER))
_to_waiting, _to_prefetched = TO_EXECUTION_STATE[_WAITING], TO_EXECUTION_STATE[_PREFETCHED]


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
        "nested",
        "output_prefix",
        "prediction",
        "record",
        "results",
        "shared",
        "state",
        "ticket",
        "trace",
    )

    # It has a prediction from the beginning, which is in the table of predictions by its id.
    is_listed = True
    has_row = False  # in a store

    def __init__(self, scheduler: Scheduler, prediction: Prediction | None, item: ItemInput, *, ticket: Ticket) -> None:
        """Without a prediction, a subclass makes it when it is needed."""
        if prediction is not None:
            self.prediction = prediction
            self.record = prediction.record
        self.item = item
        self.ticket = ticket
        self.state = _ADMITTED
        self.is_kept = False  # so that a client can ask for the prediction after its end
        self.output_prefix: str | None = None  # the URL that its client wants its output files at
        self.trace: PredictionTrace | None = None
        self.nested: NestedRun | None = None  # the call of a model that it was made for
        self.results: FolderPort | None = None  # its output files stay there, for the model that called it
        self.shared: SharedRun | None = None  # its run is one for equal requests, or it shares that
        self._scheduler = scheduler
        self._call: Call | None = None
        self._room = scheduler.context.max_output_size  # bytes that its outputs may still have
        self._preparation: Preparation | None = None
        self.delivery: Delivery | None = None
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
        traces, request = self._scheduler.context.traces, self.record.request
        self.trace = None if traces is None else traces.trace(request)
        if self.trace is not None:
            self.item = msgspec.structs.replace(self.item, request=self.trace.request_of_run(request))
            self.trace.follow(self.prediction)

    def prepare(
        self,
        values: dict[str, Any],
        attachments: Attachments | None,
        then: Callable[[Execution, Digests], None] | None = None,
    ) -> None:
        """Fetch the files of the decoded input, and submit the execution when they are there.

        Where the files have digests, `then` is called in place of submitting it.
        """
        context = self._scheduler.context
        folder = attachments.folder if attachments is not None and attachments.files else context.new_folder()
        preparation = self._preparation = Preparation(
            context.input_files() if self.nested is None else context.own_files(),
            folder,
            attachments=attachments,
            has_digests=then is not None,
            on_ready=functools.partial(self._on_ready, then),
            on_end=self._on_unprepared,
        )
        self._step(_S.PREPARING)
        self.record.ready = 0.0
        with nullcontext() if self.trace is None else self.trace.preparing():
            preparation.begin(values)

    def _on_ready(
        self, then: Callable[[Execution, Digests], None] | None, local: bytes, digests: Digests | None
    ) -> None:
        try:
            self.item = msgspec.structs.replace(self.item, input=local)
            self.record.ready = self._scheduler.context.clock()
            if then is None or digests is None:
                self._scheduler.submit(self)
            else:
                then(self, digests)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends a prediction that a client waits for
            self.fail(log_fault(self.prediction, error))

    def take_files(self, other: Execution) -> None:
        """Run on the input of another execution, and remove its files at the end."""
        self.item = msgspec.structs.replace(self.item, input=other.item.input)
        self._preparation, other._preparation = other._preparation, None

    def _on_unprepared(self, outcome: Outcome) -> None:
        self.end(outcome, at=self._scheduler.context.clock())

    def wait(self) -> None:
        """Wait in the queue."""
        before = self.state
        self.state = _to_waiting(before)
        if before not in _WITHOUT_SLOT:
            self._scheduler.waiting += 1

    def share(self, run: SharedRun) -> None:
        """Get the answer of another run."""
        self._step(_SHARING)
        self.shared = run
        if self._preparation is not None:
            self._preparation.begin_removal()

    @property
    def place(self) -> int:
        """Its place in the queue, 1 for the next one; 0 if it does not wait there."""
        return self._scheduler.pending.place_of(self) if self.state is _WAITING else 0

    def measured(self, key: Hashable, rows: int) -> None:
        """Note what another worker makes of it; see `Ticket`."""
        self.ticket = msgspec.structs.replace(self.ticket, key=key)
        self.item = msgspec.structs.replace(self.item, rows=rows)
        self.record.rows = rows

    def assign(self, call: Call, *, prefetched: bool) -> None:
        """Make this prediction a member of a call, which has a slot or is `prefetched`."""
        self._call = call
        before = self.state
        if prefetched:
            self.state = _to_prefetched(before)
            if before not in _WITHOUT_SLOT:
                self._scheduler.waiting += 1
            return
        self.state = _to_assigned(before)
        if before in _WITHOUT_SLOT:
            self._scheduler.waiting -= 1

    def refuse(self, reason: GeartrainError) -> None:
        """End an execution that has not begun, because there is nothing to wait for any more."""
        self._withdraw(self.state)
        self.end(Refused(reason.code, reason.message), at=self._scheduler.context.clock())

    def cancel(self) -> None:
        """Cancel this prediction. Repeating it is harmless."""
        if self._timer is not None:
            self._timer.cancel()
        match self.state:
            case _S.PREPARING:
                if self._preparation is not None:
                    self._preparation.cancel()
            case _S.WAITING | _S.SHARING | _S.ASSIGNED | _S.PREFETCHED:
                self._withdraw(self.state)
                self.end(CANCELED, at=self._scheduler.context.clock())
            case _S.RUNNING | _S.CANCELING | _S.CLOSING:
                if self.delivery is not None:
                    self.delivery.cut()
                if self._call is not None and self.state is not _CLOSING:
                    self._call.cancel(self)

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
            self._withdraw(state)

    def fail(self, reason: str) -> None:
        """End an execution that could not be begun; cancel it if it has."""
        if self._has_begun:
            self.cancel()
        elif self.state is not _OVER:
            self._withdraw(self.state)
            self.end(Failed(reason), at=self._scheduler.context.clock())

    @property
    def _has_begun(self) -> bool:
        """True if its run, or the fetch of its files, has begun, so that its end comes from there."""
        return self.state in _BEGUN or (self._preparation is not None and self._preparation.is_pending)

    def abandon(self) -> None:
        """Cancel this prediction because its last client has left, unless its cancel was requested before."""
        if self.state is not _S.CANCELING and self._stopped_as is CANCELED:
            self._stopped_as = ABANDONED
        self.cancel()

    @property
    def is_abandoned(self) -> bool:
        """True if it is being canceled only because its last client has left."""
        return self._stopped_as is ABANDONED

    def _withdraw(self, state: ExecutionState) -> None:
        """Leave the queue, or the call that has not begun, in which it is in `state`."""
        if state is _WAITING:
            self._scheduler.leave(self)
        elif state is _SHARING and self.shared is not None:
            self.shared.leave(self)
        elif self._call is not None and state in {_ASSIGNED, _PREFETCHED}:
            self._call.withdraw(self)

    @property
    def call(self) -> Call | None:
        """The call that it is a member of, once it has one."""
        return self._call

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of its model."""
        return self._scheduler

    # its time

    @property
    def seconds_left(self) -> float | None:
        """The seconds until its time is up; None for no limit."""
        return None if self._timer is None else self._timer.ends_at - time.monotonic()

    def _bound(self, seconds: float) -> None:
        """End it when so many seconds are over, unless its time is up before."""
        if self._timer is not None:
            if self._timer.ends_at <= time.monotonic() + seconds:
                return
            self._timer.cancel()
        self._timer = TimeLimit(seconds, self._on_time_up, seconds)

    def _on_time_up(self, limit: float) -> None:
        if self.state is _RUNNING and self._call is not None and self._call.is_debugged:  # its time begins anew
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
        if self.is_listed:
            self.prediction.start(at)
        limit = scheduler.context.run_timeout
        if limit is not None:
            self._bound(limit)

    def note_size(self, size: Metric) -> None:
        """Note the size of the call, which has begun."""
        self.prediction.apply(size)

    def begin_cancel(self) -> None:
        """Note that the run has been asked to stop, and that its end is awaited."""
        self._step(_S.CANCELING)

    def on_event(self, report: ItemEvent) -> None:
        """Take an output, printed text or a metric of the run."""
        event = report.event
        is_pending = self.delivery is not None and self.delivery.is_pending
        if type(event) is Output:
            if not self.record.first_output:
                self._note_first_output()
            if report.files or is_pending:
                self._deliver(event.chunk, report.files)
                return
            self._room -= len(event.chunk)
            if self._room >= 0:
                self.prediction.add(event)
            else:
                self._refuse_outputs()
        elif type(event) is Log:
            self._scheduler.context.on_print(self.prediction, event.source, event.data)
            if self.delivery is not None and is_pending:
                self.delivery.after(lambda: self.prediction.print(event))
            else:
                self.prediction.print(event)
        elif type(event) is Metric:
            if self.delivery is not None and is_pending:
                self.delivery.after(lambda: self.prediction.apply(event))
            else:
                self.prediction.apply(event)

    def _deliver(self, chunk: Buffer, files: Sequence[FileRef]) -> None:
        """Add an output when its files, and those of the outputs before it, have been delivered."""
        if files:
            with nullcontext() if self.trace is None else self.trace.delivering():
                self._begin_delivery().give(bytes(chunk), files, self._add_output)
        elif self.delivery is not None:
            self.delivery.after(lambda: self._add_output(chunk))

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

    def _discard(self, files: Sequence[FileRef]) -> None:
        if self._call is not None:
            self._call.discard(files)

    def _begin_delivery(self) -> Delivery:
        if self.delivery is None:
            outputs = self._scheduler.context.outputs()
            if self.results is None:
                # A receiver of files is told an id that a client knows.
                prediction_id = self.prediction.id if self.shared is None else self.shared.first_id
                files = functools.partial(outputs.of, prediction_id, self.output_prefix, self.record.request)
            else:
                files = functools.partial(outputs.kept_in, self.results.path)
            self.delivery = Delivery(files, self._discard, packed=self._is_packed(), on_error=self.cancel)
        return self.delivery

    def _is_packed(self) -> bool:
        """True if its outputs are JSON and tensors in one piece."""
        return self.item.tensors is not None and self._scheduler.context.gives_tensors()

    # its end

    def end(self, outcome: Outcome | Refused, files: Sequence[FileRef] = (), *, at: float) -> None:
        """The run is over, or there will be none. What is still on its way is delivered first."""
        if self._timer is not None:
            self._timer.cancel()
        if not files and self._preparation is None and (self.delivery is None or not self.delivery.is_pending):
            self._finish(outcome, at)
            return
        self.record.run_ended = at
        self._ran = 0.0 if self._call is None else self._call.elapsed()
        delivered: list[bytes] = []
        if isinstance(outcome, Succeeded) and outcome.output is not None and files:
            with nullcontext() if self.trace is None else self.trace.delivering():
                self._begin_delivery().give(bytes(outcome.output), files, delivered.append)
        elif files:
            self._discard(files)
        self._close(outcome, delivered)

    def end_as(self, source: Prediction) -> None:
        """End with the answer of another prediction, without a run."""
        if self._timer is not None:
            self._timer.cancel()
        if self._preparation is None:
            self._finish_as(source)
            return
        self._step(_S.CLOSING)

        async def close() -> None:
            if self._preparation is not None:
                await self._preparation.remove_files()
            self._finish_as(source)

        self._begin_delivery().after(close)

    def _finish_as(self, source: Prediction) -> None:
        self._step(_OVER)
        self._scheduler.on_over(self)
        self._preparation = self.delivery = self.shared = None  # see `_finish`
        self.prediction.end_like(source, at=self._scheduler.context.clock())

    def _close(self, outcome: Outcome | Refused, delivered: list[bytes]) -> None:
        self._step(_S.CLOSING)

        async def close() -> None:
            if self._preparation is not None:
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
        if before is _CLOSING and self._call is not None:
            # Before the log says so: a reader of the end may use the slot at once.
            self._call.on_member_over()
        of_run = outcome
        if self.delivery is not None:
            outcome = _outcome_of_delivery(self.delivery, outcome)
            self.delivery = None  # it refers to this execution: without the cycle, both are freed at once
        self._preparation = self.shared = None  # see the delivery
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
            if self.trace is not None:
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
        if not self.record.began or self._call is None:
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

    def _count_fault(self, fault: Fault, at: float) -> None:
        self._scheduler.context.counts.add_fault(fault, self.record, at=at)


def _outcome_of_delivery(delivery: Delivery, outcome: Result) -> Result:
    """Return the outcome of a prediction whose outputs could not be delivered, or were cut short by a cancel."""
    if delivery.error is not None:
        return Undelivered(delivery.error)
    return CANCELED if delivery.is_cut else outcome
