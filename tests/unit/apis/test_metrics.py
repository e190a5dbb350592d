"""Prometheus' text format."""

from __future__ import annotations

import re

from geartrain.apis.metrics import ModelMetrics, encode_metrics
from geartrain.domain.predictions.statistics import BatchStatistics, Duration, ModelStatistics

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} (\d+)')


def metrics(name: str) -> ModelMetrics:
    return ModelMetrics(
        ModelStatistics(name, "2", inference_count=3, execution_count=4, success=Duration(3, 7_000_999)),
        {"CANCELED": 1, "BACKEND": 5},
        is_ready=True,
        waiting=6,
        queue=1024,
        slots=8,
        slots_in_use=7,
        replicas=2,
        replicas_ready=1,
        restarts=9,
    )


def test_each_metric_has_its_head_once_and_a_line_for_each_model() -> None:
    lines = encode_metrics([metrics("cats"), metrics("dogs")]).decode().splitlines()
    samples = [match.groups() for line in lines if (match := _SAMPLE.fullmatch(line))]
    heads = [line for line in lines if line.startswith("#")]
    assert len(samples) + len(heads) == len(lines)
    assert len(heads) == len(set(heads)) == 2 * len({name for name, _, _ in samples})
    values = {(name, labels): int(value) for name, labels, value in samples}
    cats = 'model="cats",version="2"'
    assert values["nv_inference_request_success", cats] == 3
    assert values["nv_inference_exec_count", cats] == 4
    assert values["nv_inference_request_duration_us", cats] == 7000
    assert values["nv_inference_request_failure", cats + ',reason="BACKEND"'] == 5
    assert values["nv_inference_pending_request_count", cats] == 6
    assert values["geartrain_slots_in_use", cats] == 7
    assert values["geartrain_replicas_ready", 'model="dogs",version="2"'] == 1


def test_a_name_breaks_no_line() -> None:
    text = encode_metrics([metrics('a"b\\c\nd')]).decode()
    assert r'model="a\"b\\c\nd"' in text
    assert all(line.startswith("#") or _SAMPLE.fullmatch(line) for line in text.splitlines())


def test_without_models_there_are_the_heads() -> None:
    assert b"# TYPE nv_inference_count counter\n" in encode_metrics([])


def test_batches_are_a_histogram_of_their_rows() -> None:
    batched = metrics("cats")
    batched.statistics.batches = tuple(
        BatchStatistics(size, Duration(count), Duration(count)) for size, count in [(1, 4), (3, 2), (2000, 1)]
    )
    lines = encode_metrics([batched, metrics("dogs")]).decode().splitlines()
    assert "# TYPE geartrain_batch_size histogram" in lines
    cats = 'model="cats",version="2"'
    expected = {"1": 4, "2": 4, "4": 6, "1024": 6, "+Inf": 7}
    for bound, count in expected.items():
        assert f'geartrain_batch_size_bucket{{{cats},le="{bound}"}} {count}' in lines
    assert f"geartrain_batch_size_sum{{{cats}}} 2010" in lines
    assert f"geartrain_batch_size_count{{{cats}}} 7" in lines
    assert not [line for line in lines if line.startswith("geartrain_batch_size") and "dogs" in line]
