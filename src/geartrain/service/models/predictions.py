"""The predictions of a model by their ids: those that are live, and those that are over and may still be asked for."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE, Principal
from geartrain.service.scheduling.execution import Execution

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


MAX_RECENT: Final = 1_000
MAX_BYTES: Final = 64 * 1024**2  # of memory in all; the latest prediction is kept even if it alone takes more

_LEAST_WAIT: Final = 0.05  # seconds between two runs of the timer


class RecentPredictions:
    """The latest finished predictions, oldest first."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._recent: OrderedDict[str, tuple[float, int, Prediction]] = OrderedDict()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None  # one for all: it lets go of the oldest

    def add(self, prediction: Prediction) -> None:
        """Keep a prediction that is over, or about to be: it is measured at its end. Older ones make room for it."""
        if self._seconds <= 0:
            return
        self._drop(prediction.id)
        self._recent[prediction.id] = (self._clock() + self._seconds, 0, prediction)
        if prediction.is_terminal:
            self._measure(prediction)
        else:
            prediction.log.listen_for_end(functools.partial(self._measure, prediction))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._on_time_up)

    def find(self, prediction_id: str) -> Prediction | None:
        """Return the prediction of that id if it is still there."""
        self._tidy()
        entry = self._recent.get(prediction_id)
        return None if entry is None else entry[2]

    def _measure(self, prediction: Prediction) -> None:
        """Count what a prediction takes, now that it has ended."""
        entry = self._recent.get(prediction.id)
        if entry is None or entry[2] is not prediction:
            return
        size = prediction.kept_size
        self._recent[prediction.id] = (entry[0], size, prediction)
        self._bytes += size
        self._tidy()

    def _on_time_up(self) -> None:
        self._tidy()
        self._timer = None
        if self._recent:
            expires = next(iter(self._recent.values()))[0]
            wait = max(expires - self._clock(), _LEAST_WAIT)
            self._timer = asyncio.get_running_loop().call_later(wait, self._on_time_up)

    def _tidy(self) -> None:
        now = self._clock()
        while self._recent:
            expires, _, prediction = next(iter(self._recent.values()))
            count = len(self._recent)
            if expires > now and count <= MAX_RECENT and (self._bytes <= MAX_BYTES or count == 1):
                return
            self._drop(prediction.id)

    def _drop(self, prediction_id: str) -> None:
        entry = self._recent.pop(prediction_id, None)
        if entry is not None:
            self._bytes -= entry[1]


MAX_ID: Final = 1024  # characters
_ID_BYTES: Final = 16
_BATCH: Final = 256  # ids of one call of `os.urandom`


class Predictions:
    """The table of one model. It stays when the model is reloaded, and all of its versions share it."""

    def __init__(self, *, keep: float = 300.0) -> None:
        """`keep`: the seconds for which a finished prediction can still be looked up."""
        self.live: dict[str, Execution] = {}
        self.recent = RecentPredictions(keep)
        self._ids: list[str] = []
        self.holders = Holders(self.live)

    # for the transports

    def find(self, prediction_id: str) -> Prediction | None:
        """Return the live prediction of that id, whatever client it belongs to."""
        execution = self.live.get(prediction_id)
        return None if execution is None else execution.prediction

    def look_up(self, prediction_id: str, principal: Principal) -> Prediction | None:
        """Return the prediction of that id, live or recently over, if `principal` may see it."""
        execution = self.live.get(prediction_id)
        found = self.recent.find(prediction_id) if execution is None else execution.prediction
        return None if found is None else _seen(found, principal)

    def place_of(self, prediction_id: str) -> int:
        """Return the place in the queue of a live prediction, 1 for the next one; 0 if it does not wait there."""
        execution = self.live.get(prediction_id)
        return 0 if execution is None else execution.place

    def cancel(self, prediction_id: str, principal: Principal) -> bool:
        """Ask for the end of a live prediction; return False if there is none of that id that `principal` may see."""
        execution = self.live.get(prediction_id)
        if execution is None or not principal.may_see(execution.prediction.principal):
            return False
        execution.cancel()
        return True

    def abandon(self, prediction: Prediction) -> None:
        """Apply the rule of a waiting client that has left: cancel the prediction unless another client holds it."""
        self.holders.leave(prediction, Holder.WAITING)

    def find_abandoned(self, prediction_id: str, principal: Principal) -> Prediction | None:
        """Return the live prediction of that id if it is being canceled because its client left."""
        execution = self.live.get(prediction_id)
        if execution is None or not execution.is_abandoned:
            return None
        return _seen(execution.prediction, principal)

    def find_retried(self, prediction_id: str, principal: Principal) -> Prediction | None:
        """Return the prediction that a PUT of that id repeats; None if there is none, or its client has left it."""
        execution = self.live.get(prediction_id)
        if execution is not None:
            return None if execution.is_abandoned else _seen(execution.prediction, principal)
        prediction = self.recent.find(prediction_id)
        return None if prediction is None or prediction.is_abandoned else _seen(prediction, principal)

    # for the deployments

    def new_id(self) -> str:
        """Make an id of 128 random bits: without keys, a prediction is as private as its id."""
        if not self._ids:
            self._ids = _random_ids()
        return self._ids.pop()

    def check_id(self, prediction_id: str, noun: str, retry_after: Callable[[], int], *, principal: Principal) -> None:
        """Raise `INVALID_INPUT` for an id that is too long, `CONFLICT` for that of a live prediction.

        An id of another principal is a `CONFLICT` as long as its prediction is kept, and nothing is told of that.

        `retry_after` gives the seconds after which the client of a conflict may ask again.
        """
        if len(prediction_id) > MAX_ID:
            msg = f"{noun} ID is {len(prediction_id)} characters long; at most {MAX_ID} are accepted"
            raise GeartrainError(
                Code.INVALID_INPUT,
                "The input does not fit the model's signature.",
                fields=(FieldError(("body", "id"), msg, "value_error"),),
            )
        if not principal.sees_all and self.look_up(prediction_id, ANYONE) is not self.look_up(prediction_id, principal):
            raise unusable_id(noun, prediction_id)
        if prediction_id in self.live:
            msg = (
                f"{noun.capitalize()} {prediction_id!r} is still running. Use another id, or PUT to retry the same one."
            )
            raise GeartrainError(Code.CONFLICT, msg, retry_after=retry_after())

    def remove(self, execution: Execution) -> None:
        """Free the id of a prediction that is about to reach its terminal state, and keep it if its client may ask."""
        prediction = execution.prediction
        if self.live.get(prediction.id) is execution:
            if self.holders.counts:
                self.holders.forget(prediction.id)
            del self.live[prediction.id]
        if execution.is_kept:
            self.recent.add(prediction)


def unusable_id(noun: str, prediction_id: str) -> GeartrainError:
    """Create the error for an id that belongs to another principal."""
    return GeartrainError(Code.CONFLICT, f"{noun.capitalize()} ID {prediction_id!r} cannot be used. Use another id.")


def _seen(prediction: Prediction, principal: Principal) -> Prediction | None:
    return prediction if principal.may_see(prediction.principal) else None


class Executions:
    """The executions of one deployment that are not over."""

    def __init__(self) -> None:
        self.is_closed = False  # true if no further one is admitted
        self.live: set[Execution] = set()
        self._waiting: list[asyncio.Future[None]] = []  # for the end of the last of them

    def tell_drained(self) -> None:
        """Note that the last of them is about to reach its terminal state."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def cancel_all(self) -> None:
        """Ask for the end of each of them."""
        for execution in tuple(self.live):
            execution.cancel()

    async def drain(self, time_limit: float | None) -> bool:
        """Wait until there is none, at most `time_limit` seconds (None: no limit); return whether there is none."""
        if self.live:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await asyncio.wait((waiter,), timeout=time_limit)
        return not self.live


def _random_ids() -> list[str]:
    """Make a batch of ids in the form of Cog's, such as `pred_4f0c…`, with one call of the system."""
    digits = 2 * _ID_BYTES
    text = os.urandom(_BATCH * _ID_BYTES).hex()
    return [f"pred_{text[start : start + digits]}" for start in range(0, len(text), digits)]
