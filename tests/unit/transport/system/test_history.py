"""The figures that the server remembers for its status page: what they are, and that they are bounded."""

from __future__ import annotations

import math

import pytest

from geartrain.transport.system.history import (
    KEPT,
    MOST_SERIES,
    AllSeries,
    ProcessorAndMemory,
    Sample,
    Series,
    quantile,
)

BOUNDS = (0.1, 1.0)


def sample(succeeded: int, *, calls: int = 0, latencies: tuple[int, ...] = (0, 0, 0)) -> Sample:
    return Sample(succeeded, 0, 0, succeeded, calls, 0, 0, BOUNDS, latencies, (0, 0, 0), ())


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [((4, 0, 0), 0.5, 0.05), ((0, 2, 0), 0.5, 0.55), ((0, 0, 5), 0.5, 1.0), ((1, 1, 0), 1.0, 1.0)],
)
def test_quantiles_are_those_of_prometheus(counts: tuple[int, ...], share: float, expected: float) -> None:
    assert quantile(BOUNDS, counts, share) == pytest.approx(expected)


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(quantile(BOUNDS, (0, 0, 0), 0.5))


def test_points_are_rates_and_latencies_of_half_a_minute() -> None:
    series, idle = Series(), ProcessorAndMemory(1.0, 10)
    series.add(100.0, sample(5, calls=5), workers=idle, server=idle)
    series.add(102.0, sample(9, calls=7, latencies=(4, 0, 0)), workers=ProcessorAndMemory(2.0, 20), server=idle)
    found = series.after(100.0)
    assert (found["at"], found["succeeded"], found["cpu"], found["memory"]) == ([102.0], [2.0], [0.5], [20.0])
    assert (found["median"], found["batch"], found["queue_p95"]) == ([0.05], [2.0], [None])
    for moment in range(40):
        series.add(103.0 + moment, sample(9, calls=7, latencies=(4, 0, 0)), workers=idle, server=idle)
    assert series.after(140.0)["median"] == [None, None]


def test_the_first_point_of_a_model_that_has_come_counts_its_requests() -> None:
    everything, idle = AllSeries(), ProcessorAndMemory(1.0, 10)
    everything.add(10.0, {"one": sample(3, calls=3, latencies=(3, 0, 0))}, uses={"one": idle}, server=idle)
    for name in ("", "one"):
        found = everything.of(name).after(0.0)
        assert (found["succeeded"], found["median"], found["cpu"]) == ([3.0], [0.05], [None])


def test_five_minutes_are_kept_and_no_more() -> None:
    series, nothing = Series(), ProcessorAndMemory()
    for moment in range(KEPT + 50):
        series.add(float(moment), sample(moment), workers=nothing, server=nothing)
    found = series.after(0.0)
    assert {len(column) for column in found.values()} == {KEPT}
    assert found["at"][0] == 50.0
    assert found["succeeded"] == [1.0] * KEPT


def test_models_that_are_gone_are_forgotten_and_many_share_the_sum() -> None:
    everything, nothing = AllSeries(), ProcessorAndMemory()
    names = [f"model-{number:03}" for number in range(MOST_SERIES + 6)]
    for moment in range(2):
        samples = {name: sample(moment) for name in names}
        everything.add(float(moment + 1), samples, uses=dict.fromkeys(names, nothing), server=nothing)
    assert [len(everything.of(name).at) for name in names] == [2] * MOST_SERIES + [0] * 6
    assert everything.of("").after(1.0)["succeeded"] == [float(len(names))]
    everything.add(3.0, {"other": sample(0)}, uses={"other": nothing}, server=nothing)
    assert len(everything.of(names[0]).at) == 0
    assert len(everything.of("other").at) == 1
