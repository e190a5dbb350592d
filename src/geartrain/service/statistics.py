"""Counts what a model version has done, at the end of each of its predictions, over any transport."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Hashable, Iterable
from typing import Final, Literal

import msgspec

from geartrain.domain.predictions.own_metrics import MAX_SERIES, OwnMetrics, OwnReport, merge_gauges
from geartrain.domain.predictions.prediction import NO_PREDICTION, PredictionRecord
from geartrain.domain.predictions.statistics import (
    BatchStatistics,
    Buckets,
    Duration,
    Histograms,
    ModelStatistics,
    Run,
    TextCounts,
    columns,
)

logger = logging.getLogger(__name__)

Fault = Literal["CANCELED", "REJECTED", "BACKEND", "OTHER"]

_NANO: Final = 1_000_000_000
_NO_OUTPUT: Final = -1
_TOGETHER: Final = 256  # predictions that are counted together


class BatchCount(msgspec.Struct):
    """The batches of one size. Times in seconds."""

    runs: int = 0
    run_time: float = 0.0  # from the hand-over to the last answer
    predict_time: float = 0.0  # of that, in the model


@dataclasses.dataclass(slots=True)  # to add to a field of a `Struct` takes twice as long
class Counts:
    """The running sums of one model version. Times in seconds; moments in seconds since the epoch.

    Successful predictions are counted many at a time: call `settle` before reading their sums.
    """

    runs: int = 0  # calls of the model, however they ended
    successes: int = 0
    success_time: float = 0.0
    queue_time: float = 0.0
    fetch_time: float = 0.0  # of input files
    predict_time: float = 0.0
    fail_time: float = 0.0
    latest: float = 0.0  # when the latest run ended
    canceled: int = 0
    rejected: int = 0  # refused by a full queue, or timed out in the queue
    crashed: int = 0  # the run raised, or its worker died
    other: int = 0
    rows: int = 0  # of the batches, beyond one for each success
    hits: int = 0  # answers of the cache, or of a run that another request had begun; they count as successes
    hit_time: float = 0.0
    misses: int = 0
    batches: dict[int, BatchCount] = dataclasses.field(default_factory=dict)  # by their rows
    histograms: Histograms = dataclasses.field(default_factory=Histograms)
    own: OwnMetrics = dataclasses.field(default_factory=OwnMetrics)  # counters and histograms of the author
    texts: TextCounts | None = None  # None before the first request for a text
    _waiting: list[Run] = dataclasses.field(default_factory=list)  # successes that are to be counted
    _latest: PredictionRecord = NO_PREDICTION  # of these
    _slowest: PredictionRecord = NO_PREDICTION
    _slowest_time: float = 0.0

    def use_buckets(self, buckets: Buckets) -> None:
        """Begin the histograms anew, unless these are their buckets."""
        if self.histograms.buckets != buckets:
            self.histograms = Histograms(buckets)
            self.texts = None

    def text_counts(self) -> TextCounts:
        """Return the counts of texts."""
        if self.texts is None:
            self.texts = TextCounts(self.histograms.buckets)
        return self.texts

    def add_success(self, record: PredictionRecord, predict_time: float, output_size: int, *, at: float) -> None:
        """Count a prediction that ends well, together with others; `at` is now.

        `predict_time`: seconds in the model. `output_size`: in bytes.
        """
        admitted, ready = record.admitted, record.ready
        took = at - admitted
        self._waiting.append(
            (ready - admitted, record.began - ready, predict_time, took, record.rows, record.input_size, output_size)
        )
        self.latest = at
        self._latest = record
        if took > self._slowest_time:
            self._slowest, self._slowest_time = record, took
        if len(self._waiting) >= _TOGETHER:
            self.settle()

    def add_hit(self, seconds: float) -> None:
        """Count a prediction that needs no run."""
        self.hits += 1
        self.hit_time += max(0.0, seconds)

    def add_miss(self) -> None:
        """Count a prediction that has begun a run, though its answer could have been kept."""
        self.misses += 1

    def settle(self) -> None:
        """Count all predictions that wait for it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        runs = columns(waiting)
        self.successes += len(waiting)
        self.rows += sum(runs.rows) - len(waiting)
        self.success_time += sum(runs.total)
        self.fetch_time += sum(runs.fetching)
        self.queue_time += sum(runs.queueing)
        self.predict_time += sum(runs.running)
        self.histograms.add(runs)
        slowest = waiting[runs.total.index(max(runs.total))]
        self.histograms.set_exemplar(slowest, self._slowest.request, self._slowest.admitted + slowest[3])
        self.histograms.set_exemplar(waiting[-1], self._latest.request, self.latest)
        self._latest = self._slowest = NO_PREDICTION
        self._slowest_time = 0.0

    def add_batch(self, rows: int, took: float, *, predict_time: float | None) -> None:
        """Count a batch that is over, after `took` seconds; `predict_time` is that of the model, None if it failed."""
        count = self.batches.setdefault(rows, BatchCount())
        count.runs += 1
        count.run_time += took
        count.predict_time += took if predict_time is None else predict_time

    def add_fault(self, fault: Fault, record: PredictionRecord, *, at: float) -> None:
        """Count a prediction that ends otherwise; `at` is now."""
        took = at - record.admitted
        self.fail_time += took
        if record.began:
            self.latest = at
            fetching, queueing = record.ready - record.admitted, record.began - record.ready
            run = (fetching, queueing, at - record.began, took, record.rows, record.input_size, _NO_OUTPUT)
            self.histograms.add(columns((run,)))
            self.histograms.set_exemplar(run, record.request, at)
        self.add_refusal(fault)

    def add_refusal(self, fault: Fault) -> None:
        """Count a request whose prediction was never admitted."""
        if fault == "BACKEND":
            self.crashed += 1
        elif fault == "CANCELED":
            self.canceled += 1
        elif fault == "REJECTED":
            self.rejected += 1
        else:
            self.other += 1

    @property
    def faults(self) -> dict[Fault, int]:
        """Number of predictions that did not end well, by fault."""
        return {"CANCELED": self.canceled, "REJECTED": self.rejected, "BACKEND": self.crashed, "OTHER": self.other}

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Return the sums as the statistics extension has them. A clock that was set back makes nothing negative."""
        self.settle()
        count = self.successes
        rest = self.success_time - self.queue_time - self.fetch_time - self.predict_time
        return ModelStatistics(
            name,
            version,
            last_inference=int(self.latest * 1000),
            inference_count=count + self.rows + self.hits,
            execution_count=self.runs,
            success=_duration(count + self.hits, self.success_time + self.hit_time),
            fail=_duration(sum(self.faults.values()), self.fail_time),
            queue=_duration(count, self.queue_time),
            compute_input=_duration(count, self.fetch_time),
            compute_infer=_duration(count, self.predict_time),
            compute_output=_duration(count, rest),
            cache_hit=_duration(self.hits, self.hit_time),
            cache_miss=_duration(self.misses, 0.0),
            batches=self._batches(),
        )

    def _batches(self) -> tuple[BatchStatistics, ...]:
        return tuple(
            BatchStatistics(
                rows,
                compute_infer=_duration(count.runs, count.predict_time),
                compute_output=_duration(count.runs, count.run_time - count.predict_time),
            )
            for rows, count in sorted(self.batches.items())
        )


def _duration(count: int, seconds: float) -> Duration:
    return Duration(count, max(0, round(seconds * _NANO)))


class DeployedMetrics:
    """The metrics of a model's author, as the workers of one deployment report them.

    Counters and histograms go to the totals of the version; gauges are kept for each worker.
    """

    def __init__(self, model: str = "", version: str = "", totals: OwnMetrics | None = None) -> None:
        """`totals` are those of the version, which stay when another deployment serves it."""
        self._model = model
        self._version = version
        self._totals = totals or OwnMetrics()
        self._gauges: dict[Hashable, OwnMetrics] = {}
        self._has_warned = False

    def add(self, worker: Hashable, reports: Iterable[OwnReport]) -> None:
        """Add what a worker reports. Series that have no place are left out, with one warning."""
        for report in reports:
            is_gauge = report.metric.kind == "gauge"
            metrics = self._gauges.setdefault(worker, OwnMetrics()) if is_gauge else self._totals
            if not metrics.add(report) and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "the model's own metrics have more than %d series; the values of further ones are left out. Use "
                    "labels with few values.",
                    MAX_SERIES,
                    extra={"model": self._model, "version": self._version},
                )

    def forget(self, worker: Hashable) -> None:
        """Forget the gauges of a worker that is gone."""
        self._gauges.pop(worker, None)

    def all(self) -> tuple[OwnReport, ...]:
        """Return every metric with its series, the gauges of all workers merged."""
        return (*self._totals.all(), *merge_gauges(self._gauges.values()))
