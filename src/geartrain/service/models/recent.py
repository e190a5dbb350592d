"""Finished predictions that a client may still ask for, bounded in time, number and size."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction

MAX_RECENT: Final = 1_000
MAX_BYTES: Final = 64 * 1024**2  # of outputs and inputs, in all


class RecentPredictions:
    """The latest finished predictions, oldest first."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._recent: OrderedDict[str, tuple[float, int, Prediction]] = OrderedDict()
        self._bytes = 0

    def add(self, prediction: Prediction) -> None:
        """Keep a prediction that is over, or about to be; older ones go where there is no place for all."""
        if self._seconds <= 0:
            return
        self._drop(prediction.id)
        size = len(prediction.input) + sum(map(len, prediction.chunks))
        self._recent[prediction.id] = (self._clock() + self._seconds, size, prediction)
        self._bytes += size
        self._tidy()

    def find(self, prediction_id: str) -> Prediction | None:
        """Return the prediction of that id if it is still there."""
        self._tidy()
        entry = self._recent.get(prediction_id)
        return None if entry is None else entry[2]

    def _tidy(self) -> None:
        now = self._clock()
        while self._recent:
            expires, _, prediction = next(iter(self._recent.values()))
            if expires > now and len(self._recent) <= MAX_RECENT and self._bytes <= MAX_BYTES:
                return
            self._drop(prediction.id)

    def _drop(self, prediction_id: str) -> None:
        entry = self._recent.pop(prediction_id, None)
        if entry is not None:
            self._bytes -= entry[1]
