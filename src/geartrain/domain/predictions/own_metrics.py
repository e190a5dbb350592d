"""The metrics that a model's author defines: what a worker reports of them, and how the reports of workers add up.

Counters and histograms are reported as increases since the report before, so they add up over replicas, restarts and
reloads alike. Gauges are reported as they stand; each worker has its own, which are merged by the rule of the gauge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max", "min"]

MAX_SERIES: Final = 1000  # combinations of labels, of all metrics of a model version together


class OwnMetric(msgspec.Struct, frozen=True, array_like=True):
    """Description of a metric by its author.

    Attributes:
        name: without `_total`.
        kind: counter, gauge or histogram.
        text: its description.
        labels: their names.
        merge: of a gauge, the combination of the values of several workers.
        bounds: of a histogram, the upper bounds of its buckets, rising.
        is_raw: shown by its name and its labels alone; the labels of a series are names and values in turn.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    merge: Merge = "sum"
    bounds: tuple[float, ...] = ()
    is_raw: bool = False


class Series(msgspec.Struct, frozen=True, array_like=True):
    """A value of a metric, or its increase.

    Attributes:
        labels: their values, in the order of their names.
        value: of a counter or a gauge; of a histogram the sum of what was observed.
        counts: of a histogram, how many values fell into each bucket; the last one has no bound.
    """

    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class OwnReport(msgspec.Struct, frozen=True, array_like=True):
    """Report of a worker on one metric: the series that have changed since its last report."""

    metric: OwnMetric
    series: tuple[Series, ...]


class OwnMetrics:
    """The metrics of one model version, or the gauges of one worker, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, OwnMetric] = {}
        self._series: dict[str, dict[tuple[str, ...], Series]] = {}

    def add(self, report: OwnReport) -> bool:
        """Add a report; return False if some of it had no place, because there are `MAX_SERIES` already.

        A metric that is defined anew in another way, as after a reload, begins anew.
        """
        metric = report.metric
        known = self._metrics.get(metric.name)
        if known is None and len(self._metrics) >= MAX_SERIES:
            return False
        if known is None or msgspec.structs.replace(known, text=metric.text) != metric:
            self._series[metric.name] = {}
        self._metrics[metric.name] = metric
        found = self._series[metric.name]
        count = sum(map(len, self._series.values()))
        for series in report.series:
            before = found.get(series.labels)
            if before is None:
                count += 1
                if count > MAX_SERIES:
                    return False
            found[series.labels] = series if before is None or metric.kind == "gauge" else _sum(before, series)
        return True

    def all(self) -> list[OwnReport]:
        """Return each metric with all of its series, in the order in which they came."""
        return [OwnReport(metric, tuple(self._series[name].values())) for name, metric in self._metrics.items()]


def merge_gauges(workers: Iterable[OwnMetrics]) -> list[OwnReport]:
    """Return the gauges of several workers, merged by their rules. A gauge that two define otherwise is the first's."""
    merged = OwnMetrics()
    metrics: dict[str, OwnMetric] = {}
    values: dict[tuple[str, tuple[str, ...]], float] = {}
    for worker in workers:
        for report in worker.all():
            metric = metrics.setdefault(report.metric.name, report.metric)
            if msgspec.structs.replace(metric, text=report.metric.text) != report.metric:
                continue
            for series in report.series:
                key = (metric.name, series.labels)
                values[key] = _merge(metric.merge, values[key], series.value) if key in values else series.value
    for (name, labels), value in values.items():
        merged.add(OwnReport(metrics[name], (Series(labels, value),)))
    return merged.all()


def _merge(rule: Merge, one: float, other: float) -> float:
    if rule == "sum":
        return one + other
    return max(one, other) if rule == "max" else min(one, other)


def _sum(one: Series, other: Series) -> Series:
    counts = tuple(map(int.__add__, one.counts, other.counts))
    return Series(one.labels, one.value + other.value, counts)
