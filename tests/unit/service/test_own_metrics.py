"""The author's metrics of one deployment, and the buckets of its histograms."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from geartrain.domain.predictions.own_metrics import MAX_SERIES, OwnMetric, OwnMetrics, OwnReport, Series
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Buckets
from geartrain.service.statistics import Counts, DeployedMetrics

if TYPE_CHECKING:
    import pytest

TOKENS = OwnMetric("tokens", "counter", "", ("kind",))
ALIVE = OwnMetric("alive", "gauge", "")


def values(metrics: DeployedMetrics) -> dict[str, float]:
    return {report.metric.name: sum(series.value for series in report.series) for report in metrics.all()}


def test_gauge_of_a_worker_that_is_gone_no_longer_counts() -> None:
    metrics = DeployedMetrics()
    for worker in ("one", "two"):
        metrics.add(worker, [OwnReport(ALIVE, (Series((), 1.0),)), OwnReport(TOKENS, (Series(("in",), 3.0),))])
    assert values(metrics) == {"alive": 2, "tokens": 6}
    metrics.forget("one")
    metrics.forget("one")
    assert values(metrics) == {"alive": 1, "tokens": 6}
    metrics.add("one", [OwnReport(ALIVE, (Series((), 1.0),))])
    assert values(metrics) == {"alive": 2, "tokens": 6}


def test_counters_stay_when_another_deployment_serves_the_version() -> None:
    totals = OwnMetrics()
    for _ in range(2):
        DeployedMetrics("m", "1", totals).add("worker", [OwnReport(TOKENS, (Series(("in",), 3.0),))])
    assert values(DeployedMetrics("m", "1", totals)) == {"tokens": 6}


def test_too_many_series_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = DeployedMetrics("cats", "2")
    with caplog.at_level(logging.WARNING):
        for first in (0, MAX_SERIES, 2 * MAX_SERIES):
            many = tuple(Series((str(first + number),), 1.0) for number in range(MAX_SERIES))
            metrics.add("worker", [OwnReport(TOKENS, many)])
    (record,) = caplog.records
    assert "more than 1000 series" in record.getMessage()
    assert vars(record)["model"] == "cats"
    assert values(metrics) == {"tokens": MAX_SERIES}


def test_metrics_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    metrics = DeployedMetrics("cats", "2")
    for number in range(2 * MAX_SERIES):
        metrics.add("worker", [OwnReport(msgspec.structs.replace(TOKENS, name=f"of_{number}"), ())])
    assert len(metrics.all()) == MAX_SERIES
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_histograms_begin_anew_with_other_buckets_alone() -> None:
    counts = Counts()
    before = counts.histograms
    counts.use_buckets(DEFAULT_BUCKETS)
    assert counts.histograms is before
    counts.use_buckets(Buckets(seconds=(1.0,)))
    assert counts.histograms.run.bounds == (1.0,)
