"""What Prometheus reads, read again by the parsers of its own client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Timestamp

from geartrain.apis.metric_values import GpuUse, ModelMetrics, ProcessUse, RelayMetrics, ServerMetrics, WorkerMetrics
from geartrain.apis.metrics import TRITON_COUNTERS, encode_metrics, wants_openmetrics
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.own_metrics import OwnMetric, OwnReport, Series
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.statistics import (
    BatchStatistics,
    Buckets,
    Duration,
    Histogram,
    Histograms,
    ModelStatistics,
    columns,
)

PROCESS = ProcessUse(cpu=1.5, memory=2**20, descriptors=12, started=1000.0, read=7, written=8)
CATS = {"model": "cats", "version": "2"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metrics(name: str, **changes: Any) -> ModelMetrics:
    histograms = Histograms(Buckets(seconds=(0.1, 1.0), bytes=(10.0,)))
    histograms.add(columns([(0.0, 0.05, 0.1, 5.0, 1, 11, -1)]))
    model = ModelMetrics(
        ModelStatistics(name, "2", inference_count=3, execution_count=4, success=Duration(3, 7_000_999)),
        {"CANCELED": 1, "BACKEND": 5},
        health=Health.READY,
        waiting=6,
        running=5,
        queue=1024,
        slots=8,
        slots_in_use=7,
        workers=(WorkerMetrics(True, (PROCESS,)), WorkerMetrics(False)),
        restarts=9,
        histograms=histograms,
    )
    return msgspec.structs.replace(model, **changes)


def server(*models: ModelMetrics, **fields: Any) -> ServerMetrics:
    return ServerMetrics(version="1.2.3", models=models, **fields)


def samples(found: ServerMetrics, *, as_openmetrics: bool = False) -> Samples:
    text = encode_metrics(found, as_openmetrics=as_openmetrics).decode()
    parse = openmetrics.text_string_to_metric_families if as_openmetrics else text_string_to_metric_families
    values: Samples = {}
    for family in parse(text):
        for sample in family.samples:
            # The parser of the text format adds `_total` to the names of Triton, which have none.
            name = sample.name.removesuffix("_total") if sample.name.startswith("nv_") else sample.name
            key = (name, frozenset(sample.labels.items()))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
    return values


def value(found: Samples, name: str, labels: Mapping[str, str] = CATS, **more: str) -> float:
    return found[name, frozenset({**labels, **more}.items())]


@pytest.fixture(params=[False, True], ids=["text", "openmetrics"])
def as_openmetrics(request: pytest.FixtureRequest) -> bool:
    wanted: bool = request.param
    return wanted


def test_the_numbers_of_each_model(as_openmetrics: bool) -> None:
    found = samples(server(metrics("cats"), metrics("dogs")), as_openmetrics=as_openmetrics)
    expected = {
        "nv_inference_request_success": 3,
        "nv_inference_exec_count": 4,
        "nv_inference_request_duration_us": 7000,
        "nv_inference_pending_request_count": 6,
        "geartrain_predictions_waiting": 6,
        "geartrain_predictions_running": 5,
        "geartrain_model_ready": 1,
        "geartrain_slots_in_use": 7,
        "geartrain_replicas": 2,
        "geartrain_replicas_ready": 1,
        "geartrain_worker_restarts_total": 9,
    }
    assert {name: value(found, name) for name in expected} == expected
    assert value(found, "nv_inference_request_failure", reason="BACKEND") == 5
    assert value(found, "geartrain_model_health", health="READY") == 1
    assert value(found, "geartrain_model_health", health="DEFUNCT") == 0
    assert value(found, "geartrain_slots", {"model": "dogs", "version": "2"}) == 8


def test_histograms_have_the_bounds_that_the_operator_has_set(as_openmetrics: bool) -> None:
    found = samples(server(metrics("cats")), as_openmetrics=as_openmetrics)
    buckets = {
        bound: value(found, "geartrain_run_duration_seconds_bucket", le=bound) for bound in ("0.1", "1.0", "+Inf")
    }
    assert buckets == {"0.1": 1, "1.0": 1, "+Inf": 1}  # a value belongs to the bucket that it is the bound of
    assert value(found, "geartrain_prediction_duration_seconds_bucket", le="1.0") == 0
    assert value(found, "geartrain_prediction_duration_seconds_sum") == 5
    assert value(found, "geartrain_input_size_bytes_bucket", le="10.0") == 0
    assert value(found, "geartrain_input_size_bytes_count") == 1


def test_openmetrics_names_the_trace_of_the_latest_value_in_a_bucket() -> None:
    cats = metrics("cats")
    for letter, flags in (("a", "01"), ("b", "01"), ("c", "00")):
        request = RequestContext("r", f"00-{letter * 32}-{'1' * 16}-{flags}")
        run = (0.0, 0.0, 0.5, 0.75, 1, 1, -1)
        cats.histograms.add(columns([run]))
        cats.histograms.set_exemplar(run, request, 1234.5)
    parse: Callable[[str], Iterable[Any]] = openmetrics.text_string_to_metric_families  # which has no types
    families = parse(encode_metrics(server(cats), as_openmetrics=True).decode())
    total = next(family for family in families if family.name == "geartrain_prediction_duration_seconds")
    found = {sample.labels.get("le"): sample.exemplar for sample in total.samples if sample.exemplar}
    assert found.keys() == {"1.0"}
    assert (found["1.0"].labels, found["1.0"].value) == ({"trace_id": "b" * 32}, 0.75)
    assert found["1.0"].timestamp == Timestamp(1234, 500_000_000)
    assert b"trace_id" not in encode_metrics(server(cats))


def test_clock_that_was_set_back_makes_no_sum_negative() -> None:
    cats = metrics("cats")
    cats.histograms.add(columns([(0.0, -10.0, 0.1, 1.0, 1, 1, -1)]))
    found = samples(server(cats), as_openmetrics=True)
    assert value(found, "geartrain_queue_duration_seconds_sum") == 0
    assert value(found, "geartrain_queue_duration_seconds_count") == 2


def test_processes_and_gpus(as_openmetrics: bool) -> None:
    gpu = GpuUse(0, "GPU-1", "H100", 2**30, 2**32, 0.25)
    found = samples(
        server(metrics("cats"), process=(PROCESS,), max_descriptors=1024, gpus=(gpu,)), as_openmetrics=as_openmetrics
    )
    assert value(found, "process_cpu_seconds_total", {}) == 1.5
    assert value(found, "process_open_fds", {}) == 12
    assert value(found, "process_max_fds", {}) == 1024
    assert value(found, "geartrain_server_disk_written_bytes_total", {}) == 8
    assert value(found, "geartrain_worker_ready", replica="1") == 0
    assert value(found, "geartrain_worker_memory_bytes", replica="0") == 2**20
    assert ("geartrain_worker_memory_bytes", frozenset({**CATS, "replica": "1"}.items())) not in found
    labels = {"gpu": "0", "uuid": "GPU-1", "name": "H100"}
    assert value(found, "geartrain_gpu_memory_used_bytes", labels) == 2**30
    assert value(found, "geartrain_gpu_utilization_ratio", labels) == 0.25
    assert value(found, "geartrain_build_info", {"version": "1.2.3"}) == 1


def test_requests_and_faults(as_openmetrics: bool) -> None:
    found = samples(
        server(requests={("cog", "200"): 3, ("grpc", "NOT_FOUND"): 1}, faults=(("dogs", ""),)),
        as_openmetrics=as_openmetrics,
    )
    assert value(found, "geartrain_requests_total", {"protocol": "grpc", "status": "NOT_FOUND"}) == 1
    assert value(found, "geartrain_model_load_failed", {"model": "dogs", "version": ""}) == 1


def test_what_is_handed_over_to_other_servers(as_openmetrics: bool) -> None:
    seconds = Histogram((0.1, 1.0))
    seconds.observe(0.5)
    found = samples(server(relay=RelayMetrics({"answered": 2, "left": 0}, seconds)), as_openmetrics=as_openmetrics)
    assert value(found, "geartrain_relayed_requests_total", {"outcome": "answered"}) == 2
    assert value(found, "geartrain_relayed_requests_total", {"outcome": "left"}) == 0
    assert value(found, "geartrain_relay_duration_seconds_bucket", {"le": "0.1"}) == 0
    assert value(found, "geartrain_relay_duration_seconds_bucket", {"le": "1.0"}) == 1
    assert value(found, "geartrain_relay_duration_seconds_sum", {}) == 0.5


def test_names_of_triton_are_counters_without_a_suffix() -> None:
    text = encode_metrics(server(metrics("cats"))).decode()
    for name in TRITON_COUNTERS:
        assert f"# TYPE {name} counter\n" in text
        assert f"\n{name}{{" in text


def test_a_name_breaks_no_line(as_openmetrics: bool) -> None:
    odd = 'a"b\\c\nd'
    found = samples(server(metrics(odd)), as_openmetrics=as_openmetrics)
    assert value(found, "geartrain_slots", {"model": odd, "version": "2"}) == 8


def test_without_models_there_are_the_heads() -> None:
    assert b"# TYPE nv_inference_count counter\n" in encode_metrics(server())


def test_batches_are_a_histogram_of_their_rows(as_openmetrics: bool) -> None:
    batched = metrics("cats")
    batched.statistics.batches = tuple(
        BatchStatistics(size, Duration(count), Duration(count)) for size, count in [(1, 4), (3, 2), (2000, 1)]
    )
    found = samples(server(batched, metrics("dogs")), as_openmetrics=as_openmetrics)
    expected = {"1.0": 4, "2.0": 4, "4.0": 6, "1024.0": 6, "+Inf": 7}
    assert {bound: value(found, "geartrain_batch_size_bucket", le=bound) for bound in expected} == expected
    assert value(found, "geartrain_batch_size_sum") == 2010
    assert value(found, "geartrain_batch_size_count") == 7
    assert ("geartrain_batch_size_count", frozenset({"model": "dogs", "version": "2"}.items())) not in found


def test_metrics_of_authors(as_openmetrics: bool) -> None:
    own = (
        OwnReport(OwnMetric("tokens", "counter", "Made", ("kind",)), (Series(("answer",), 12.0),)),
        OwnReport(OwnMetric("cache", "gauge", ""), (Series((), 3.0),)),
        OwnReport(OwnMetric("decode", "histogram", "", bounds=(0.5,)), (Series((), 2.0, (1, 1)),)),
    )
    # What another model calls `cache` is something else, so it is left out.
    other = (OwnReport(OwnMetric("cache", "counter", ""), (Series((), 1.0),)), own[0])
    found = samples(server(metrics("cats", own=own), metrics("dogs", own=other)), as_openmetrics=as_openmetrics)
    assert value(found, "tokens_total", kind="answer") == 12
    assert value(found, "tokens_total", {"model": "dogs", "version": "2"}, kind="answer") == 12
    assert value(found, "cache") == 3
    assert value(found, "decode_bucket", le="0.5") == 1
    assert value(found, "decode_bucket", le="+Inf") == 2
    assert value(found, "decode_sum") == 2
    assert not [labels for name, labels in found if name.startswith("cache") and ("model", "dogs") in labels]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain; version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", True),
        # what Prometheus 2.42 sends
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
            True,
        ),
        ("text/html, application/openmetrics-text;q=0", False),
    ],
)
def test_openmetrics_is_for_who_asks(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


@pytest.mark.parametrize("as_openmetrics", [True, False])
def test_raw_metrics_have_their_own_names_and_labels_alone(as_openmetrics: bool) -> None:
    own = (
        OwnReport(OwnMetric("seen_ns", "counter", "Time", is_raw=True), (Series(("model", "m", "own", "a"), 3.0),)),
        OwnReport(OwnMetric("level", "gauge", "", is_raw=True), (Series((), 2.0), Series(("a", "b"), 4.0))),
        OwnReport(OwnMetric("sizes", "histogram", "", bounds=(1.0,), is_raw=True), (Series((), 6.0, (1, 2)),)),
    )
    twice = server(metrics("cats", own=own), metrics("dogs", own=own[1:2]))
    text = encode_metrics(twice, as_openmetrics=as_openmetrics).decode()
    assert 'seen_ns{model="m",own="a"} 3.0\n' in text
    assert ("# TYPE seen_ns counter\n" in text) is not as_openmetrics
    assert text.count("\nlevel 2.0\n") == text.count('level{a="b"} 4.0\n') == 1
    assert 'sizes_bucket{le="1.0"} 1.0\nsizes_bucket{le="+Inf"} 3.0\nsizes_count 3.0\nsizes_sum 6.0\n' in text
