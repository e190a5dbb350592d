"""The execution of a prediction that a store knows: it begins when its row is written, and ends when its end is."""

from __future__ import annotations

from typing import Any, Protocol

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.calls import ItemInput, Succeeded
from geartrain.domain.predictions.lifecycle import ExecutionState
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.scheduling.execution import CANCELED, Execution, Result, SchedulerPort, Ticket
from geartrain.service.scheduling.preparation import NO_ATTACHMENTS, Attachments

_S = ExecutionState


class RunPort(Protocol):
    """Receiver of an execution's steps, which writes its row."""

    @property
    def is_leaving(self) -> bool:
        """True if the server ends, and what has not succeeded is left to the next one."""

    def end(self, draft: Prediction) -> None:
        """The prediction ends as its draft has; its readers are told when that is written."""

    def leave(self) -> None:
        """The prediction stays in the store as it is: the next server runs it again."""


class DurableExecution(Execution):
    """An execution with a row; it differs in its beginning and its end."""

    __slots__ = ("_is_canceled", "_run", "_values")

    def __init__(
        self,
        scheduler: SchedulerPort,
        prediction: Prediction,
        item: ItemInput,
        *,
        ticket: Ticket,
        run: RunPort,
    ) -> None:
        """`run` writes its row."""
        self._run = run
        self._is_canceled = False
        super().__init__(scheduler, prediction, item, ticket=ticket)

    # until its row is written

    @property
    def is_claiming(self) -> bool:
        """True if its row is being written."""
        return self.state is _S.CLAIMING

    def claim(self) -> None:
        """Wait for the row."""
        self._step(_S.CLAIMING)

    def go_on(self, values: dict[str, Any] | None, attachments: Attachments = NO_ATTACHMENTS) -> None:
        """The row is written: run. `values`: the decoded input, if it has files that are to be fetched first."""
        if self._is_canceled:
            self.end(CANCELED, at=self._scheduler.context.clock())
        elif values is None:
            self._scheduler.submit(self)
        else:
            self.prepare(values, attachments)

    def drop(self) -> None:
        """Forget an execution without a row: it never runs. Its readers have not been admitted."""
        self._step(_S.OVER)
        self._let_go()
        self._scheduler.on_over(self)

    def cancel(self) -> None:
        """Cancel the execution; while the row is being written the cancel is noted."""
        if self.is_claiming:
            self._is_canceled = True
        else:
            super().cancel()

    # its end

    def _finish(self, outcome: Result, at: float) -> None:
        if self._run.is_leaving and type(outcome) is not Succeeded:
            prediction = self.prediction
            self.prediction = prediction.draft()
            super()._finish(CANCELED, at)
            self._let_go().leave()
            return
        draft = self.prediction = self.prediction.draft()
        super()._finish(outcome, at)
        self._let_go().end(draft)

    def _let_go(self) -> RunPort:
        """Return the run, which has nothing more to hear: they would keep each other alive."""
        run = self._run
        del self._run
        return run

    def refuse(self, reason: GeartrainError) -> None:
        """Refuse the execution, unless its row is being written."""
        if not self.is_claiming:
            super().refuse(reason)
