"""The metrics of the models in Prometheus' text format. Pure.

Source: Prometheus text exposition format 0.0.4; the names `nv_inference_…` are those that dashboards of Triton know
(observed Triton, section 13), the names `geartrain_…` are geartrain's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.statistics import Duration, ModelStatistics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class ModelMetrics(msgspec.Struct, frozen=True):
    """What is known of one model version; `failures` are counts by reason, a short word."""

    statistics: ModelStatistics
    failures: Mapping[Any, int]
    is_ready: bool
    waiting: int  # for a slot
    queue: int  # how many may wait
    slots: int
    slots_in_use: int
    replicas: int
    replicas_ready: int
    restarts: int


Number = Callable[[ModelMetrics], int]


def _microseconds(duration: Callable[[ModelStatistics], Duration]) -> Number:
    return lambda model: duration(model.statistics).ns // 1000


_COUNTERS: Final[tuple[tuple[str, str, Number], ...]] = (
    ("nv_inference_request_success", "Successful inferences", lambda model: model.statistics.success.count),
    ("nv_inference_count", "Inferences", lambda model: model.statistics.inference_count),
    ("nv_inference_exec_count", "Calls of the model, also those that failed", lambda m: m.statistics.execution_count),
    (
        "nv_inference_request_duration_us",
        "Time of successful inferences, in microseconds",
        _microseconds(lambda statistics: statistics.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Of that, waiting for a slot",
        _microseconds(lambda statistics: statistics.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Of that, fetching input files",
        _microseconds(lambda statistics: statistics.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Of that, in the model",
        _microseconds(lambda statistics: statistics.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Of that, between processes and delivering output files",
        _microseconds(lambda statistics: statistics.compute_output),
    ),
    ("geartrain_worker_restarts", "Workers that followed a crashed one", lambda model: model.restarts),
)
_GAUGES: Final[tuple[tuple[str, str, Number], ...]] = (
    ("nv_inference_pending_request_count", "Requests that wait for a slot", lambda model: model.waiting),
    ("geartrain_model_ready", "Whether the model version takes requests", lambda model: int(model.is_ready)),
    ("geartrain_queue_limit", "Open Inference Protocol requests that may wait for a slot", lambda model: model.queue),
    ("geartrain_slots", "Predictions that can run at once", lambda model: model.slots),
    ("geartrain_slots_in_use", "Predictions that run", lambda model: model.slots_in_use),
    ("geartrain_replicas", "Workers that there should be", lambda model: model.replicas),
    ("geartrain_replicas_ready", "Workers that there are", lambda model: model.replicas_ready),
)
_FAILURES: Final = "nv_inference_request_failure"
_BATCHES: Final = "geartrain_batch_size"
_BOUNDS: Final = tuple(2**power for power in range(11))  # rows


def encode_metrics(models: Iterable[ModelMetrics]) -> bytes:
    """Return the text: each metric with its help, its type and a line for each model version."""
    known = list(models)
    lines: list[str] = []
    for kind, metrics in (("counter", _COUNTERS), ("gauge", _GAUGES)):
        for name, text, number in metrics:
            lines += _head(name, text, kind)
            lines += [f"{name}{{{_labels(model)}}} {number(model)}" for model in known]
    lines += _head(_FAILURES, "Inferences that failed, by reason", "counter")
    for model in known:
        for reason, count in model.failures.items():
            lines.append(f'{_FAILURES}{{{_labels(model)},reason="{reason}"}} {count}')
    batched = [model for model in known if model.statistics.batches]
    if batched:
        lines += _head(_BATCHES, "Rows of a call, of the models that take batches", "histogram")
    for model in batched:
        lines += _histogram(model)
    return ("\n".join(lines) + "\n").encode()


def _histogram(model: ModelMetrics) -> list[str]:
    batches = model.statistics.batches
    labels = _labels(model)
    count = sum(batch.compute_infer.count for batch in batches)
    total = sum(batch.compute_infer.count * batch.size for batch in batches)
    lines = []
    for bound in _BOUNDS:
        below = sum(batch.compute_infer.count for batch in batches if batch.size <= bound)
        lines.append(f'{_BATCHES}_bucket{{{labels},le="{bound}"}} {below}')
    lines.append(f'{_BATCHES}_bucket{{{labels},le="+Inf"}} {count}')
    return [*lines, f"{_BATCHES}_sum{{{labels}}} {total}", f"{_BATCHES}_count{{{labels}}} {count}"]


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _labels(model: ModelMetrics) -> str:
    name, version = model.statistics.name.translate(_ESCAPES), model.statistics.version
    return f'model="{name}",version="{version}"'
