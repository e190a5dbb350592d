"""Histograms and the author's own metrics, added up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.domain.predictions.own_metrics import MAX_SERIES, OwnMetric, OwnMetrics, OwnReport, Series, merge_gauges
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.statistics import (
    DEFAULT_BUCKETS,
    Buckets,
    Histogram,
    Histograms,
    Run,
    check_bounds,
    columns,
)

TOKENS = OwnMetric("tokens", "counter", "", ("kind",))
DECODE = OwnMetric("decode", "histogram", "", bounds=(1.0,))


def gauge(merge: str, *values: float) -> list[OwnMetrics]:
    metric = OwnMetric("level", "gauge", "", merge=merge)  # type: ignore[arg-type]
    workers = []
    for value in values:
        worker = OwnMetrics()
        assert worker.add(OwnReport(metric, (Series((), value),)))
        workers.append(worker)
    return workers


def test_value_belongs_to_the_bucket_of_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.1, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == pytest.approx(6.2)


@pytest.mark.parametrize("bounds", [DEFAULT_BUCKETS.seconds, DEFAULT_BUCKETS.bytes, (1.0,)])
def test_good_bounds(bounds: tuple[float, ...]) -> None:
    check_bounds(bounds)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((), "at least one"),
        (tuple(map(float, range(51))), "at most 50"),
        ((1.0, float("inf")), "finite"),
        ((1.0, 1.0), "1 cannot follow 1"),
        ((2.0, 1.0), "1 cannot follow 2"),
    ],
)
def test_bad_bounds(bounds: tuple[float, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_bounds(bounds)


def test_increases_add_up() -> None:
    metrics = OwnMetrics()
    for _ in range(2):
        assert metrics.add(OwnReport(TOKENS, (Series(("in",), 2.0), Series(("out",), 1.0))))
        assert metrics.add(OwnReport(DECODE, (Series((), 3.0, (1, 2)),)))
    assert metrics.all() == [
        OwnReport(TOKENS, (Series(("in",), 4.0), Series(("out",), 2.0))),
        OwnReport(DECODE, (Series((), 6.0, (2, 4)),)),
    ]


def test_metric_that_is_defined_anew_begins_anew_unless_only_its_text_differs() -> None:
    metrics = OwnMetrics()
    metrics.add(OwnReport(DECODE, (Series((), 3.0, (1, 2)),)))
    metrics.add(OwnReport(OwnMetric("decode", "histogram", "told better", bounds=(1.0,)), (Series((), 3.0, (1, 2)),)))
    assert metrics.all()[0].series == (Series((), 6.0, (2, 4)),)
    metrics.add(OwnReport(OwnMetric("decode", "histogram", "", bounds=(1.0, 2.0)), (Series((), 1.0, (1, 0, 0)),)))
    assert metrics.all()[0].series == (Series((), 1.0, (1, 0, 0)),)


def test_series_are_bounded() -> None:
    metrics = OwnMetrics()
    many = tuple(Series((str(number),), 1.0) for number in range(MAX_SERIES + 1))
    assert not metrics.add(OwnReport(TOKENS, many))
    assert len(metrics.all()[0].series) == MAX_SERIES
    assert metrics.add(OwnReport(TOKENS, many[:1]))  # those that are there go on
    assert metrics.all()[0].series[0].value == 2


@pytest.mark.parametrize(("merge", "expected"), [("sum", 6.0), ("max", 3.0), ("min", 1.0)])
def test_gauges_of_several_workers_are_merged_by_their_rule(merge: str, expected: float) -> None:
    (report,) = merge_gauges(gauge(merge, 2.0, 3.0, 1.0))
    assert report.series == (Series((), expected),)


def test_gauge_that_two_workers_define_otherwise_is_the_firsts() -> None:
    (report,) = merge_gauges([*gauge("max", 2.0), *gauge("sum", 5.0)])
    assert (report.metric.merge, report.series) == ("max", (Series((), 2.0),))


def test_runs_are_counted_together() -> None:
    histograms = Histograms(Buckets(seconds=(0.1, 1.0), bytes=(10.0,)))
    runs: list[Run] = [(0.0, 0.05, 0.5, 2.0, 1, 7, -1 if number % 3 else 20) for number in range(600)]
    histograms.add(columns(runs))
    assert (histograms.queue.counts, histograms.run.counts, histograms.total.counts) == (
        [600, 0, 0],
        [0, 600, 0],
        [0, 0, 600],
    )
    assert histograms.run.total == pytest.approx(300.0)
    assert (histograms.input_size.counts, histograms.output_size.counts) == ([600, 0], [0, 200])
    request = RequestContext("r", f"00-{'a' * 32}-{'1' * 16}-01")
    histograms.set_exemplar(runs[-1], request, 599.0)
    assert histograms.total.exemplars == {2: (2.0, request, 599.0)}


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.05, 0.1, 0.10001, 1.0, 7.0])))
def test_many_values_are_counted_as_one_by_one(values: list[float]) -> None:
    together, one_by_one = Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    together.observe_all(values)
    for value in values:
        one_by_one.observe(value)
    assert together.counts == one_by_one.counts
    assert together.total == pytest.approx(one_by_one.total)
