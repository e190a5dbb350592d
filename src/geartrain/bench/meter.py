"""Observations of the requests of a level."""

from __future__ import annotations

from geartrain.bench.latencies import Latencies
from geartrain.bench.streams import StreamMeter
from geartrain.bench.work import Fault


class Meter:
    """Counts requests: `sent`, those that have `ended`, those that were due and could not be sent in time."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.streams = StreamMeter()
        self.faults: dict[str, tuple[int, str]] = {}  # number of faults of a kind, and the first one
        self.sent = self.ended = self.unsent = 0
        self._began = self._last = 0.0

    def begin(self, now: float) -> None:
        """Begin; the times are those of `time.perf_counter()`."""
        self._began = self._last = now

    def add(self, seconds: float, now: float) -> None:
        """Count a good answer."""
        self.ended += 1
        self.latencies.add(seconds)
        self._last = now

    def fail(self, fault: Fault, now: float) -> None:
        """Count a request that came to nothing."""
        self.ended += 1
        count, example = self.faults.get(fault.kind, (0, fault.example))
        self.faults[fault.kind] = (count + 1, example)
        self._last = now

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return self.ended - self.latencies.count

    @property
    def seconds(self) -> float:
        """From the beginning to the last answer."""
        return self._last - self._began
