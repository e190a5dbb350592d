"""Histograms: how often a value fell into each of some buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, repeat
from math import isfinite
from typing import Final

import msgspec

from geartrain.domain.predictions.request_context import RequestContext

MAX_BUCKETS: Final = 50


class Buckets(msgspec.Struct, frozen=True):
    """The upper bounds of the buckets of a server's histograms, in rising order; the last bucket has no bound.

    Attributes:
        seconds: of what takes time.
        bytes: of what has a size.
    """

    seconds: tuple[float, ...] = (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    )
    bytes: tuple[float, ...] = tuple(float(256 * 4**power) for power in range(10))  # 256 bytes to 64 MiB


DEFAULT_BUCKETS: Final = Buckets()


Exemplar = tuple[float, RequestContext, float]
"""A value, the request that it belongs to, and when it was observed, in seconds since the epoch."""
_SAMPLED: Final = "01"  # at the end of a `traceparent`


class Histogram:
    """Counts of values by bucket, and their sum.

    Attributes:
        bounds: the upper bounds of the buckets, which belong to them.
        counts: how many values fell into each bucket; the last one is of values above all bounds.
        total: the sum of all values.
        exemplars: the latest value that belongs to a trace, by the index of its bucket.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count values."""
        for bucket, count in Counter(map(bisect_left, repeat(self.bounds), values)).items():
            self.counts[bucket] += count
        self.total += sum(values)

    def set_exemplar(self, value: float, request: RequestContext, at: float) -> None:
        """Note a value that belongs to a trace, observed at a moment in seconds since the epoch."""
        self.exemplars[bisect_left(self.bounds, value)] = (value, request, at)


Run = tuple[float, float, float, int, int, RequestContext, float]
"""A prediction that has run: its time in the queue, in the model, and in all; the sizes of its input and output, -1 for
none; its request; and when it ended, in seconds since the epoch."""

NO_OUTPUT: Final = -1
_TOGETHER: Final = 256  # runs that are counted together
_WITH_EXEMPLARS: Final = 32  # the last of them, which are looked at for exemplars


class Histograms:
    """How the predictions of a model version that came to a run are distributed. Times in seconds, sizes in bytes."""

    __slots__ = ("_waiting", "buckets", "first_output", "input_size", "output_size", "queue", "run", "total")

    def __init__(self, buckets: Buckets = DEFAULT_BUCKETS) -> None:
        self.buckets = buckets
        self._waiting: list[Run] = []
        self.queue = Histogram(buckets.seconds)  # from the time its files were there to the beginning of its run
        self.run = Histogram(buckets.seconds)  # in the model
        self.total = Histogram(buckets.seconds)  # from admission to end
        self.first_output = Histogram(buckets.seconds)  # from admission to the first of several outputs
        self.input_size = Histogram(buckets.bytes)
        self.output_size = Histogram(buckets.bytes)  # of those that ended well

    def add_run(self, run: Run) -> None:
        """Count a prediction that has run, however it ended."""
        self._waiting.append(run)
        if len(self._waiting) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Count all runs that wait for it: together they take a fraction of the time that they take one by one."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        queue, runs, totals, inputs, outputs, requests, moments = zip(*waiting, strict=True)
        timed = ((self.queue, queue), (self.run, runs), (self.total, totals))
        for histogram, values in timed:
            histogram.observe_all(values)
        self.input_size.observe_all(inputs)
        self.output_size.observe_all([size for size in outputs if size >= 0])
        latest = len(waiting) - _WITH_EXEMPLARS
        for index, request in enumerate(requests[max(0, latest) :], max(0, latest)):
            if request.traceparent[-2:] == _SAMPLED:
                for histogram, values in timed:
                    histogram.set_exemplar(values[index], request, moments[index])


def check_bounds(bounds: tuple[float, ...]) -> None:
    """Raise `ValueError`, with a sentence, unless these can be the bounds of a histogram."""
    if not bounds:
        raise ValueError("a histogram needs at least one bucket")
    if len(bounds) > MAX_BUCKETS:
        raise ValueError(f"a histogram has at most {MAX_BUCKETS} buckets, not {len(bounds)}")
    if not all(map(isfinite, bounds)):
        raise ValueError("the bounds of buckets are finite numbers; the last bucket has no bound by itself")
    for before, after in pairwise(bounds):
        if after <= before:
            raise ValueError(f"the bounds of buckets rise: {after:g} cannot follow {before:g}")
