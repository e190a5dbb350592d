"""The predictions of a model by their ids: those that are live, and those that are over and may still be asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE, Principal
from geartrain.service.models.holders import Holder, Holders
from geartrain.service.models.recent import RecentPredictions
from geartrain.service.scheduling.execution import Execution

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
