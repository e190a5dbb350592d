"""Finished predictions that a client may still ask for, bounded in time, number and size."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction

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
