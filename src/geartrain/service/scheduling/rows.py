"""Executions of the rows of a data set, whose caller needs only their ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.calls import FileRef, ItemInput, Outcome, Succeeded
from geartrain.domain.predictions.events import Metric
from geartrain.domain.predictions.lifecycle import TO_EXECUTION_STATE, ExecutionState
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.scheduling.execution import Execution, Refused, Ticket

if TYPE_CHECKING:
    from geartrain.service.scheduling.scheduler import Scheduler

_to_over = TO_EXECUTION_STATE[ExecutionState.OVER]


class RowListener(ABC):
    """Receives the end of each row: one call for each. `row` is what the caller gave."""

    @abstractmethod
    def on_output(self, row: Any, output: Buffer, predict_time: float) -> None:
        """The run gave this output, after so many seconds in the model, and nothing else."""

    @abstractmethod
    def on_prediction(self, row: Any, prediction: Prediction) -> None:
        """The run, or what kept it from beginning, has ended in another way."""

    @abstractmethod
    def on_refused(self, row: Any, error: GeartrainError) -> None:
        """The model does not take the row."""


class RowGroup(NamedTuple):
    """Rows that were admitted together at a moment, in seconds since the epoch, for a version of a model."""

    listener: RowListener
    model: str
    version: str
    admitted: float


class RowExecution(Execution):
    """Execution of one row.

    A row that gives one output has neither a prediction nor a record nor events, and only its call is counted: they are
    half of the time of a row whose model does nothing. They are made when something looks at them, as at a failure, a
    stream, a print or a metric.
    """

    __slots__ = ("_began", "_group", "_has_prediction", "_row")

    is_listed = False

    def __init__(self, scheduler: Scheduler, row: Any, item: ItemInput, *, ticket: Ticket, group: RowGroup) -> None:
        """`row` is passed to the listener of the group."""
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
        prediction.log.listen_for_end(partial(group.listener.on_prediction, self._row, prediction))
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
        self._group.listener.on_output(self._row, output, outcome.predict_time)
