"""What is made of the metrics of a server."""

from __future__ import annotations

import pytest

from geartrain.bench.server_figures import MetricsError, difference, read_snapshot

TEXT = """
# TYPE geartrain_run_duration_seconds histogram
geartrain_run_duration_seconds_bucket{{le="0.1",model="a",version="1"}} {first}
geartrain_run_duration_seconds_bucket{{le="0.2",model="a",version="1"}} {both}
geartrain_run_duration_seconds_bucket{{le="+Inf",model="a",version="1"}} {all}
geartrain_run_duration_seconds_count{{model="a",version="1"}} {all}
geartrain_run_duration_seconds_sum{{model="a",version="1"}} {sum}
geartrain_run_duration_seconds_bucket{{le="+Inf",model="b",version="1"}} 1000
geartrain_run_duration_seconds_sum{{model="b",version="1"}} 1000
# TYPE geartrain_slots gauge
geartrain_slots{{model="a",version="1"}} 2
geartrain_slots{{model="a",version="2"}} 1
geartrain_slots{{model="b",version="1"}} 8
"""


def test_difference_is_what_counts() -> None:
    before = read_snapshot(TEXT.format(first=10, both=10, all=10, sum=1), "a")
    after = read_snapshot(TEXT.format(first=60, both=110, all=110, sum=16), "a")
    found = difference(before, after)
    assert found.run is not None
    assert (found.run.count, found.run.mean) == (100, 0.15)
    assert found.run.p50 == pytest.approx(0.1)
    assert found.run.p99 == pytest.approx(0.198)
    assert found.run.buckets == ((0.1, 50), (0.2, 50), (None, 0))
    assert found.queue is None
    assert after.slots == 3


def test_rows_that_fit_into_memory() -> None:
    limit = 'geartrain_batch_memory_limit_rows{{model="{}",version="1"}} {}\n'
    kind = "# TYPE geartrain_batch_memory_limit_rows gauge\n"
    before = read_snapshot(TEXT.format(first=0, both=0, all=0, sum=0), "a")
    after = read_snapshot(kind + limit.format("a", 32) + limit.format("b", 8), "a")
    assert before.memory_rows == 0
    assert difference(before, after).memory_rows == 32


def test_values_above_all_bounds_have_the_last_one() -> None:
    before = read_snapshot(TEXT.format(first=0, both=0, all=0, sum=0), "a")
    after = read_snapshot(TEXT.format(first=0, both=0, all=4, sum=40), "a")
    found = difference(before, after).run
    assert found is not None
    assert (found.mean, found.p50) == (10.0, 0.2)


def test_server_that_was_started_anew_has_no_figures() -> None:
    before = read_snapshot(TEXT.format(first=10, both=10, all=10, sum=1), "a")
    after = read_snapshot(TEXT.format(first=1, both=1, all=1, sum=1), "a")
    assert difference(before, after).run is None


def test_what_are_no_metrics_is_said() -> None:
    with pytest.raises(MetricsError, match="cannot be read"):
        read_snapshot("<html>", "a")
