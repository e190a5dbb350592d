"""Durations of requests: counts by narrow buckets, so that memory does not grow with the number of requests."""

from __future__ import annotations

import math
from typing import Final

_SHORTEST: Final = 1e-6  # seconds
_GROWTH: Final = 1.005  # from one bucket to the next: what a percentile may be off by
_SCALE: Final = 1 / math.log(_GROWTH)
_LAST: Final = int(math.log(1e5 / _SHORTEST) * _SCALE)  # of more than a day


class Latencies:
    """Durations in seconds. `longest` and `mean` are exact, percentiles are within half a percent."""

    def __init__(self) -> None:
        self._counts = [0] * (_LAST + 1)
        self._total = 0.0
        self.count = 0
        self.shortest = math.inf
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        place = int(math.log(seconds / _SHORTEST) * _SCALE) if seconds > _SHORTEST else 0
        self._counts[min(place, _LAST)] += 1
        self._total += seconds
        self.count += 1
        self.shortest = min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        """The mean; 0.0 of none."""
        return self._total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the bound that so many percent of the durations do not exceed; 0.0 without any."""
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                middle = _SHORTEST * math.exp((place + 0.5) / _SCALE) if place < _LAST else self.longest
                return min(max(middle, self.shortest), self.longest)
        return 0.0
