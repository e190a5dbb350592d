"""Percentiles out of narrow buckets."""

from __future__ import annotations

import math
import random

import pytest

from geartrain.bench.latencies import Latencies


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_percentiles_are_those_of_the_values(percent: float) -> None:
    chance = random.Random(7)  # noqa: S311
    values = sorted(math.exp(chance.gauss(-5, 2)) for _ in range(5000))
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = values[math.ceil(len(values) * percent / 100) - 1]
    assert latencies.percentile(percent) == pytest.approx(exact, rel=0.006)


def test_ends_and_mean_are_exact() -> None:
    latencies = Latencies()
    for value in (0.25, 0.5, 3.0):
        latencies.add(value)
    assert (latencies.count, latencies.mean) == (3, 1.25)
    assert (latencies.shortest, latencies.longest, latencies.percentile(100)) == (0.25, 3.0, 3.0)


def test_none_and_what_is_out_of_range() -> None:
    latencies = Latencies()
    assert (latencies.mean, latencies.percentile(50), latencies.longest) == (0.0, 0.0, 0.0)
    for value in (0.0, 1e-9, 1e9):
        latencies.add(value)
    assert latencies.percentile(1) == pytest.approx(1e-6, rel=0.01)
    assert latencies.percentile(100) == 1e9
