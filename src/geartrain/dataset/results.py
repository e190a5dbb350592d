"""Results of rows, and the account of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from geartrain.domain.tensors.tensor import Buffer

_SAMPLES: Final = 10_000  # run times that percentiles are made of
_FAULTS: Final = 5  # different errors that a summary shows
_NO_METRICS: Final[Mapping[str, Any]] = MappingProxyType({})  # a default that is a dict is copied for each result


class Result(msgspec.Struct, frozen=True, gc=False):
    """Result of a row: its output as JSON text, or its error.

    `run_time`: seconds in the model. `metrics`: those that the run has recorded.
    """

    number: int
    kept: Mapping[str, Any]
    output: Buffer | None = None
    error: str = ""
    run_time: float = 0.0
    metrics: Mapping[str, Any] = _NO_METRICS


class Waits(msgspec.Struct):
    """Seconds in which no further row could begin.

    Attributes:
        reading: no row was read yet.
        running: as many rows as may be on their way were.
        writing: as many results as may wait to be written did.
    """

    reading: float = 0.0
    running: float = 0.0
    writing: float = 0.0


class Tally:
    """Account of a run: rows, errors, times, tokens. Its size does not grow with the rows."""

    def __init__(self, *, total: int | None, skipped: int = 0) -> None:
        """`total`: the rows of the data set, if they are known; `skipped`: those that a run before has done."""
        self.total = total
        self.skipped = skipped
        self.rows = 0
        self.errors = 0
        self.tokens = {"prompt": 0, "completion": 0}
        self.run_time = 0.0  # of all rows
        self.waits = Waits()
        self.faults: dict[str, int] = {}  # different errors, and how many rows have each
        self.began = time.monotonic()
        self._times: list[float] = []
        self._step = 1  # of so many run times one is kept

    def add(self, results: Sequence[Result]) -> None:
        """Count results."""
        rows, step, times = self.rows, self._step, self._times
        for rows, result in enumerate(results, rows + 1):  # noqa: B020 - the rows so far
            if result.error:
                self.errors += 1
                self._add_fault(result.error)
            elif rows % step == 0:
                times.append(result.run_time)
            if result.metrics:
                self._add_tokens(result.metrics)
        self.rows = rows
        self.run_time += sum([result.run_time for result in results])
        self._thin()

    def merge(self, other: Tally) -> None:
        """Count the rows of another account."""
        self.rows += other.rows
        self.errors += other.errors
        for text, count in other.faults.items():
            self._add_fault(text, count)
        for kind, count in other.tokens.items():
            self.tokens[kind] += count
        self.run_time += other.run_time
        self._times += other._times[:: max(1, self._step // other._step)]
        self._thin()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end, None where the number of rows is not known."""
        if self.total is None or not self.rows:
            return None
        return max(0, self.total - self.skipped - self.rows) / self.rate

    def percentile(self, share: float) -> float:
        """Return the run time in seconds that a share of the rows has not exceeded."""
        times = sorted(self._times)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    def _thin(self) -> None:
        """Keep every other run time where there are too many."""
        while len(self._times) > _SAMPLES:
            self._times = self._times[::2]
            self._step *= 2

    def _add_fault(self, error: str, count: int = 1) -> None:
        text = error.partition("\n")[0][:200]
        if text in self.faults or len(self.faults) < _FAULTS:
            self.faults[text] = self.faults.get(text, 0) + count

    def _add_tokens(self, metrics: Mapping[str, Any]) -> None:
        tokens = metrics.get("tokens")
        if isinstance(tokens, dict):
            for kind in self.tokens:
                count = tokens.get(kind)
                if isinstance(count, int):
                    self.tokens[kind] += count
