"""Clients that hold a live prediction, and the rules for canceling it when the last of them has left."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction
    from geartrain.service.scheduling.execution import Execution


class Holder(StrEnum):
    """A client's part in a prediction."""

    WAITING = "waiting"  # for the answer at the end of the run
    READING = "reading"  # events of a stream
    RECONNECTING = "reconnecting"  # reading the events of a stream that it made by PUT: it may come back with the id
    TOLD = "told"  # answered with 202: it may ask for the prediction


class OnLeave(StrEnum):
    """The effect of a closed connection on a prediction without further holders."""

    CANCEL = "cancel"
    CANCEL_LATER = "cancel later"  # unless another client joins during the grace period
    GO_ON = "go on"  # the holder stays one


RULES: Final[dict[Holder, OnLeave]] = {
    Holder.WAITING: OnLeave.CANCEL,
    Holder.READING: OnLeave.CANCEL_LATER,
    Holder.RECONNECTING: OnLeave.GO_ON,
    Holder.TOLD: OnLeave.GO_ON,
}


class Holders:
    """The number of holders of each live prediction of one model.

    Nothing is stored for a prediction with one holder, its creator: that is nearly every prediction.
    """

    def __init__(self, live: dict[str, Execution]) -> None:
        """`live` are the executions by the id of their prediction."""
        self._live = live
        self.counts: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of predictions without a holder, until their grace ends

    def join(self, prediction: Prediction) -> None:
        """Add a holder that did not create the prediction. A prediction that has ended takes none."""
        if self._execution(prediction) is None:
            return
        timer = self._timers.pop(prediction.id, None)
        if timer is not None:
            timer.cancel()
        self.counts[prediction.id] = self.counts.get(prediction.id, 1) + 1

    def leave(self, prediction: Prediction, holder: Holder, grace: float = 0.0) -> None:
        """Apply the rule of a holder whose connection has closed; `grace` in seconds, for `CANCEL_LATER`."""
        rule = RULES[holder]
        execution = self._execution(prediction)
        if rule is OnLeave.GO_ON or execution is None:
            return
        left = self.counts.get(prediction.id, 1) - 1
        if left:
            self.counts[prediction.id] = left
        elif rule is OnLeave.CANCEL or grace <= 0:
            execution.abandon()
        else:
            self.counts[prediction.id] = 0
            self._timers[prediction.id] = asyncio.get_running_loop().call_later(grace, execution.abandon)

    def forget(self, prediction_id: str) -> None:
        """Remove what is stored for a prediction that is about to end. Needless while there are no `counts`."""
        self.counts.pop(prediction_id, None)
        timer = self._timers.pop(prediction_id, None)
        if timer is not None:
            timer.cancel()

    def _execution(self, prediction: Prediction) -> Execution | None:
        """Return the execution of exactly this prediction; None if it has ended."""
        execution = self._live.get(prediction.id)
        return execution if execution is not None and execution.prediction is prediction else None
