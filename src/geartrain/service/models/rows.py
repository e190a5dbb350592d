"""Rows of a data set: their admission, many at a time, and their executions, whose caller needs only their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import FileRef, ItemInput, Outcome, Succeeded
from geartrain.domain.predictions.events import Metric
from geartrain.domain.predictions.inference import NO_SCHEDULE
from geartrain.domain.predictions.lifecycle import TO_EXECUTION_STATE, ExecutionState, Health
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.deployment import Deployment
from geartrain.service.scheduling.execution import Execution, Refused, Ticket

if TYPE_CHECKING:
    from geartrain.service.scheduling.scheduler import Scheduler

_to_over = TO_EXECUTION_STATE[ExecutionState.OVER]


class RowEnds(NamedTuple):
    """Functions that receive the ends of rows: one call for each row, which is given as the caller has given it.

    Attributes:
        on_output: the run gave this output, after so many seconds in the model, and nothing else.
        on_prediction: the run, or what kept it from beginning, has ended in another way.
        on_refused: the model does not take the row.
    """

    on_output: Callable[[Any, Buffer, float], None]
    on_prediction: Callable[[Any, Prediction], None]
    on_refused: Callable[[Any, GeartrainError], None]


class RowGroup(NamedTuple):
    """Rows that were admitted together at a moment, in seconds since the epoch, for a version of a model."""

    ends: RowEnds
    model: str
    version: str
    admitted: float


def takes_rows(deployment: Deployment) -> bool:
    """Return True if rows need nothing before their run: no files, and no look at answers that are kept."""
    return deployment.admission.input_files is None and deployment.answers is None


def begin_rows(deployment: Deployment, rows: Iterable[tuple[Any, bytes]], ends: RowEnds, *, queue: int) -> None:
    """Check rows, each with its input as a JSON object, and have them wait in the queue, which has so many places.

    Raises `GeartrainError` for what concerns all of them, as `Deployment.create` does; then none has begun. Whatever
    else is raised undoes the admission of all.
    """
    workers, scheduler = deployment.workers, deployment.scheduler
    if workers.health is not Health.READY:
        raise workers.not_ready()
    if deployment.executions.is_closed:
        raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new rows.")
    group = RowGroup(ends, deployment.name, deployment.version, scheduler.context.clock())
    ticket = scheduler.admit((), NO_SCHEDULE, size=queue)
    begun: list[RowExecution] = []
    try:
        _admit(deployment, rows, begun, group=group, ticket=ticket)
        scheduler.submit_all(begun)
    except BaseException:
        for execution in begun:
            deployment.undo(execution)
        raise


def _admit(
    deployment: Deployment,
    rows: Iterable[tuple[Any, bytes]],
    begun: list[RowExecution],
    *,
    group: RowGroup,
    ticket: Ticket,
) -> None:
    """Check rows, and add the executions of the good ones to `begun`, each as soon as it has a place."""
    scheduler, check, new_id = deployment.scheduler, deployment.admission.check_plain, deployment.predictions.new_id
    measure, is_batching, live = scheduler.pending.measure, scheduler.is_batching, deployment.executions.live
    is_traced = scheduler.context.traces is not None
    for row, data in rows:
        size = 1
        try:
            check(data)
            if is_batching:
                key, size = measure(data, None)
                if key != ticket.key:
                    ticket = Ticket(key, NO_SCHEDULE, ticket.level)
        except GeartrainError as error:
            group.ends.on_refused(row, error)
            continue
        execution = RowExecution(scheduler, row, ItemInput(new_id(), data, size), ticket=ticket, group=group)
        begun.append(execution)
        live.add(execution)
        if is_traced:
            execution.begin_trace()


class RowExecution(Execution):
    """Execution of one row.

    A row that gives one output has neither a prediction nor a record nor events, and only its call is counted: they are
    half of the time of a row whose model does nothing. They are made when something looks at them, as at a failure, a
    stream, a print or a metric.
    """

    __slots__ = ("_began", "_group", "_has_prediction", "_row")

    is_listed = False

    def __init__(self, scheduler: Scheduler, row: Any, item: ItemInput, *, ticket: Ticket, group: RowGroup) -> None:
        """`row` is passed to the `ends` of the group."""
        self._row = row
        self._group = group
        self._began = 0.0
        self._has_prediction = False
        super().__init__(scheduler, None, item, ticket=ticket)

    def __getattr__(self, name: str) -> Any:
        """Make the prediction and its record when either is first looked at."""
        if name not in {"prediction", "record"} or self._has_prediction:
            raise AttributeError(name)
        group, item = self._group, self.item
        record = PredictionRecord(item.id, group.admitted, group.admitted, model=group.model, version=group.version)
        record.rows, record.input_size = item.rows, len(item.input)
        prediction = Prediction(record, b"{}", group.admitted)  # its input is never shown
        if self._began:
            prediction.start(self._began)
        prediction.log.listen_for_end(partial(group.ends.on_prediction, self._row, prediction))
        self._has_prediction = True
        self.prediction, self.record = prediction, record
        return prediction if name == "prediction" else record

    def begin(self, at: float) -> None:
        """Note that the call has begun, and start the prediction if there is one."""
        self._began = at
        if self._has_prediction:
            self.prediction.start(at)
        super().begin(at)

    def note_size(self, size: Metric) -> None:
        """Leave the size of the call to the counts of calls."""

    def end(self, outcome: Outcome | Refused, files: Sequence[FileRef] = (), *, at: float) -> None:
        """End with one output, or as any prediction does."""
        if type(outcome) is not Succeeded or files or self._has_prediction:
            super().end(outcome, files, at=at)
            return
        output, scheduler = outcome.output, self._scheduler
        if output is None or len(output) > scheduler.context.max_output_size:
            super().end(outcome, at=at)
            return
        if self._timer is not None:
            self._timer.cancel()
        self.state = _to_over(self.state)
        scheduler.on_over(self)
        self._group.ends.on_output(self._row, output, outcome.predict_time)
