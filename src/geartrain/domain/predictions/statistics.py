"""Counts of a model version: totals of the statistics extension, and histograms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Final

import msgspec

from geartrain.domain.predictions.request_context import RequestContext

MAX_BUCKETS: Final = 50
TOKEN_KINDS: Final = ("prompt", "completion", "cached", "reasoning")


class Duration(msgspec.Struct):
    """Number of occurrences of an event, and their total time. Times in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += ns


class BatchStatistics(msgspec.Struct, frozen=True):
    """The calls of the model with so many rows at once."""

    size: int
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(msgspec.Struct):
    """The counts of one model version. `last_inference` in milliseconds since the epoch, 0 for never."""

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0  # those that ended well, each row of a batch for itself
    execution_count: int = 0  # calls of the model, also those that failed
    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    queue: Duration = msgspec.field(default_factory=Duration)
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    cache_hit: Duration = msgspec.field(default_factory=Duration)
    cache_miss: Duration = msgspec.field(default_factory=Duration)
    batches: tuple[BatchStatistics, ...] = ()  # of a model that takes batches, by their sizes


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
        """Count values, which is cheaper for many at once."""
        self.total += sum(values)
        ordered, counts, below = sorted(values), self.counts, 0
        for bucket, bound in enumerate(self.bounds):
            within = bisect_right(ordered, bound, below)
            counts[bucket] += within - below
            below = within
            if below == len(ordered):
                return
        counts[-1] += len(ordered) - below

    def set_exemplar(self, value: float, request: RequestContext, at: float) -> None:
        """Note a value that belongs to a trace, observed at a moment in seconds since the epoch."""
        self.exemplars[bisect_left(self.bounds, value)] = (value, request, at)


Run = tuple[float, float, float, float, int, int, int]
"""Figures of a prediction that has run.

Seconds for the files of its input, in the queue, in the model, and in all; its rows in a batch; bytes of its input and
of its output, the latter negative if it failed or was canceled.
"""


class Runs(msgspec.Struct, frozen=True):
    """Several runs, as columns: each has one value for every run."""

    fetching: Sequence[float]
    queueing: Sequence[float]
    running: Sequence[float]
    total: Sequence[float]
    rows: Sequence[int]
    input_sizes: Sequence[int]
    output_sizes: Sequence[int]


def columns(runs: Sequence[Run]) -> Runs:
    """Return at least one run as columns."""
    return Runs(*zip(*runs, strict=True))


class Histograms:
    """Distributions over the predictions of a model version that reached a run. Times in seconds, sizes in bytes."""

    __slots__ = ("buckets", "first_output", "input_size", "output_size", "queue", "run", "total")

    def __init__(self, buckets: Buckets = DEFAULT_BUCKETS) -> None:
        self.buckets = buckets
        self.queue = Histogram(buckets.seconds)  # from the time its files were there to the beginning of its run
        self.run = Histogram(buckets.seconds)  # in the model
        self.total = Histogram(buckets.seconds)  # from admission to end
        self.first_output = Histogram(buckets.seconds)  # from admission to the first of several outputs
        self.input_size = Histogram(buckets.bytes)
        self.output_size = Histogram(buckets.bytes)  # of those that ended well

    def add(self, runs: Runs) -> None:
        """Count predictions that have run, however they ended."""
        timed = ((self.queue, runs.queueing), (self.run, runs.running), (self.total, runs.total))
        for histogram, values in timed:
            histogram.observe_all(values)
        self.input_size.observe_all(runs.input_sizes)
        sizes = runs.output_sizes
        self.output_size.observe_all(sizes if min(sizes) >= 0 else [size for size in sizes if size >= 0])

    def set_exemplar(self, run: Run, request: RequestContext, at: float) -> None:
        """Note the request of a run that ended at a moment, if it belongs to a trace that is kept."""
        if request.traceparent[-2:] == _SAMPLED:
            for histogram, value in ((self.queue, run[1]), (self.run, run[2]), (self.total, run[3])):
                histogram.set_exemplar(value, request, at)


class TextCounts:
    """Counts of the texts of a model version. Times in seconds.

    Attributes:
        first_token: from the arrival of a request to the first piece of its text, of texts that come in pieces.
        per_token: between two tokens of such a text, on average; between two pieces where the model counts no tokens.
        tokens: numbers by kind, one for each of `TOKEN_KINDS`.
    """

    __slots__ = ("first_token", "per_token", "tokens")

    def __init__(self, buckets: Buckets) -> None:
        self.first_token = Histogram(buckets.seconds)
        self.per_token = Histogram(buckets.seconds)
        self.tokens = dict.fromkeys(TOKEN_KINDS, 0)

    def add_tokens(self, tokens: Mapping[str, int]) -> None:
        """Count the tokens of a request, by kind."""
        for kind, count in tokens.items():
            self.tokens[kind] += count

    def add_times(self, *, came: float, first: float, ended: float, count: int) -> None:
        """Count the times of a text of `count` tokens, or pieces.

        `came`: the arrival of its request. `first`: its first piece, 0 for a text that does not come in pieces.
        `ended`: its end, 0 if it broke off. Moments are in seconds since the epoch. A clock that was set back gives no
        negative time.
        """
        if not first:
            return
        self.first_token.observe(max(0.0, first - came))
        if ended and count > 1:
            self.per_token.observe(max(0.0, ended - first) / (count - 1))


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
