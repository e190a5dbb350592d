"""Counts what a model version has done, at the end of each of its predictions, over any transport."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec

from geartrain.domain.predictions.histograms import Buckets, Histograms
from geartrain.domain.predictions.own_metrics import OwnMetrics
from geartrain.domain.predictions.statistics import BatchStatistics, Duration, ModelStatistics

Fault = Literal["CANCELED", "REJECTED", "BACKEND", "OTHER"]

_NANO = 1_000_000_000


class BatchCount(msgspec.Struct):
    """The batches of one size. Times in seconds."""

    runs: int = 0
    run_time: float = 0.0  # from the hand-over to the last answer
    predict_time: float = 0.0  # of that, in the model


@dataclasses.dataclass(slots=True)  # to add to a field of a `Struct` takes twice as long
class Counts:
    """The running sums of one model version. Times in seconds; moments in seconds since the epoch."""

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
    batches: dict[int, BatchCount] = dataclasses.field(default_factory=dict)  # by their rows
    histograms: Histograms = dataclasses.field(default_factory=Histograms)
    own: OwnMetrics = dataclasses.field(default_factory=OwnMetrics)  # counters and histograms of the author

    def use_buckets(self, buckets: Buckets) -> None:
        """Begin the histograms anew, unless these are their buckets."""
        if self.histograms.buckets != buckets:
            self.histograms = Histograms(buckets)

    def add_success(
        self, admitted: float, ready: float, began: float, *, ended: float, predict_time: float, rows: int
    ) -> None:
        """Count a prediction that ended well: `admitted`, `ready` with its files, and `began` at these moments.

        `rows`: its size in a batch.
        """
        self.rows += rows - 1
        self.successes += 1
        self.success_time += ended - admitted
        self.fetch_time += ready - admitted
        self.queue_time += began - ready
        self.predict_time += predict_time
        self.latest = ended

    def add_call(self, rows: int, took: float, *, predict_time: float | None) -> None:
        """Count a call that has ended, after `took` seconds; `predict_time` is that of the model, None if it failed.

        `rows`: the size of the batch; 0 for a model without batches.
        """
        self.runs += 1
        if rows:
            count = self.batches.setdefault(rows, BatchCount())
            count.runs += 1
            count.run_time += took
            count.predict_time += took if predict_time is None else predict_time

    def add_fault(self, fault: Fault, took: float, *, ran: bool, at: float) -> None:
        """Count a prediction that ended otherwise, after `took` seconds, `at` that moment; `ran`: it came to a run."""
        self.fail_time += took
        if ran:
            self.latest = at
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
        """How many predictions ended otherwise than well, by what was the matter."""
        return {"CANCELED": self.canceled, "REJECTED": self.rejected, "BACKEND": self.crashed, "OTHER": self.other}

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Return the sums as the statistics extension has them. A clock that was set back makes nothing negative."""
        count = self.successes
        rest = self.success_time - self.queue_time - self.fetch_time - self.predict_time
        return ModelStatistics(
            name,
            version,
            last_inference=int(self.latest * 1000),
            inference_count=count + self.rows,
            execution_count=self.runs,
            success=_duration(count, self.success_time),
            fail=_duration(sum(self.faults.values()), self.fail_time),
            queue=_duration(count, self.queue_time),
            compute_input=_duration(count, self.fetch_time),
            compute_infer=_duration(count, self.predict_time),
            compute_output=_duration(count, rest),
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
