"""The metrics of a server for Prometheus, as its text format or as OpenMetrics. Pure.

Sources: Prometheus text exposition format 0.0.4; OpenMetrics 1.0. The names `nv_inference_…` are those that dashboards
of Triton know (observed Triton, section 13), the names `process_…` those of Prometheus' own clients, the names
`geartrain_…` geartrain's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

from prometheus_client import exposition, samples
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from geartrain.apis.metric_values import (
    CallMetrics,
    DownloadMetrics,
    GpuUse,
    ModelMetrics,
    ProcessUse,
    RelayMetrics,
    ServerMetrics,
)
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.own_metrics import OwnMetric, Series
from geartrain.domain.predictions.statistics import (
    Duration,
    Exemplar,
    Histogram,
    Histograms,
    ModelStatistics,
    TextCounts,
)

_Kind = Literal["counter", "gauge"]
_Number = Callable[[ModelMetrics], float]
_MODEL: Final = ("model", "version")
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def _microseconds(duration: Callable[[ModelStatistics], Duration]) -> _Number:
    return lambda model: duration(model.statistics).ns // 1000


# Names of Triton. They count, and have no `_total` at their ends, as a counter of OpenMetrics must.
_TRITON: Final[tuple[tuple[str, str, _Number], ...]] = (
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
    (
        "nv_cache_num_hits_per_model",
        "Inferences that were answered without a run of their own",
        lambda model: model.statistics.cache_hit.count,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Inferences whose answer could have been kept, and was not",
        lambda model: model.statistics.cache_miss.count,
    ),
)
_FAILURES: Final = "nv_inference_request_failure"
TRITON_COUNTERS: Final = frozenset({*(name for name, _, _ in _TRITON), _FAILURES})

_OF_MODELS: Final[tuple[tuple[str, str, _Kind, _Number], ...]] = (
    ("nv_inference_pending_request_count", "Requests that wait for a slot", "gauge", lambda model: model.waiting),
    ("geartrain_predictions_waiting", "Predictions that wait for a slot", "gauge", lambda model: model.waiting),
    ("geartrain_predictions_running", "Predictions that run", "gauge", lambda model: model.running),
    (
        "geartrain_model_ready",
        "Whether the model version takes requests",
        "gauge",
        lambda model: model.health is Health.READY,
    ),
    (
        "geartrain_queue_limit",
        "Open Inference Protocol requests that may wait for a slot",
        "gauge",
        lambda model: model.queue,
    ),
    ("geartrain_slots", "Calls of the model that can run at once", "gauge", lambda model: model.slots),
    ("geartrain_slots_in_use", "Calls of the model that run", "gauge", lambda model: model.slots_in_use),
    ("geartrain_replicas", "Workers that there should be", "gauge", lambda model: len(model.workers)),
    (
        "geartrain_replicas_ready",
        "Workers that take requests",
        "gauge",
        lambda model: sum(worker.is_ready for worker in model.workers),
    ),
    ("geartrain_worker_restarts", "Workers that followed a crashed one", "counter", lambda model: model.restarts),
)

_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[Histograms], Histogram]], ...]] = (
    (
        "geartrain_queue_duration_seconds",
        "How long predictions waited for a slot, of those that came to a run",
        lambda all_of: all_of.queue,
    ),
    ("geartrain_run_duration_seconds", "How long predictions were in the model", lambda all_of: all_of.run),
    (
        "geartrain_prediction_duration_seconds",
        "From the admission of a prediction to its end, of those that came to a run",
        lambda all_of: all_of.total,
    ),
    (
        "geartrain_first_output_seconds",
        "From the admission of a prediction to its first output, of those that give several",
        lambda all_of: all_of.first_output,
    ),
    (
        "geartrain_input_size_bytes",
        "JSON and tensors that a prediction takes, of those that came to a run",
        lambda all_of: all_of.input_size,
    ),
    (
        "geartrain_output_size_bytes",
        "JSON and tensors that a prediction gives, of those that ended well",
        lambda all_of: all_of.output_size,
    ),
)
_TEXTS: Final[tuple[tuple[str, str, Callable[[TextCounts], Histogram]], ...]] = (
    (
        "geartrain_time_to_first_token_seconds",
        "From the arrival of a request for a text to its first piece",
        lambda texts: texts.first_token,
    ),
    (
        "geartrain_time_per_output_token_seconds",
        "From token to token of a text, after the first piece",
        lambda texts: texts.per_token,
    ),
)
_HEALTH: Final = tuple(each for each in Health if each not in {Health.BUSY, Health.UNHEALTHY})  # those that are stored
_NO_EXEMPLARS: Final[Mapping[int, Exemplar]] = {}
_BATCH_BOUNDS: Final = tuple(2**power for power in range(11))  # rows

_OF_WORKERS: Final[tuple[tuple[str, str, _Kind, Callable[[ProcessUse], float]], ...]] = (
    ("geartrain_worker_cpu_seconds", "CPU time of the worker's process", "counter", lambda use: use.cpu),
    ("geartrain_worker_memory_bytes", "Resident memory of the worker's process", "gauge", lambda use: use.memory),
    ("geartrain_worker_open_descriptors", "Open descriptors of the worker", "gauge", lambda use: use.descriptors),
    ("geartrain_worker_start_time_seconds", "When the worker began, since the epoch", "gauge", lambda use: use.started),
    ("geartrain_worker_disk_read_bytes", "Read from disks by the worker", "counter", lambda use: use.read),
    ("geartrain_worker_disk_written_bytes", "Written to disks by the worker", "counter", lambda use: use.written),
)
_OF_SERVER: Final[tuple[tuple[str, str, _Kind, Callable[[ProcessUse], float]], ...]] = (
    ("process_cpu_seconds", "CPU time of the server's process", "counter", lambda use: use.cpu),
    ("process_resident_memory_bytes", "Resident memory of the server's process", "gauge", lambda use: use.memory),
    ("process_open_fds", "Open descriptors of the server", "gauge", lambda use: use.descriptors),
    ("process_start_time_seconds", "When the server began, since the epoch", "gauge", lambda use: use.started),
    ("geartrain_server_disk_read_bytes", "Read from disks by the server", "counter", lambda use: use.read),
    ("geartrain_server_disk_written_bytes", "Written to disks by the server", "counter", lambda use: use.written),
)
_OF_DOWNLOADS: Final[tuple[tuple[str, str, _Kind, Callable[[DownloadMetrics], float]], ...]] = (
    ("geartrain_download_active", "1 while something is fetched for the model", "gauge", lambda each: each.is_active),
    ("geartrain_download_size_bytes", "Size of the latest download", "gauge", lambda each: each.total),
    ("geartrain_download_present_bytes", "What is there of the latest download", "gauge", lambda each: each.there),
    ("geartrain_download_bytes", "Received over the network", "counter", lambda each: each.received_bytes),
    ("geartrain_download_files", "Files that came over the network", "counter", lambda each: each.received_files),
    ("geartrain_download_failures", "Downloads that failed", "counter", lambda each: each.failures),
)
_OF_GPUS: Final[tuple[tuple[str, str, Callable[[GpuUse], float]], ...]] = (
    (
        "geartrain_gpu_memory_used_bytes",
        "Memory of the GPU that is in use, by any process",
        lambda gpu: gpu.memory_used,
    ),
    ("geartrain_gpu_memory_total_bytes", "Memory of the GPU", lambda gpu: gpu.memory_total),
    ("geartrain_gpu_utilization_ratio", "How much of the time the GPU was busy lately", lambda gpu: gpu.utilization),
)


def families(server: ServerMetrics) -> Iterator[Metric]:
    """Give the families of a server."""
    yield from _of_models(server.models)
    yield from _histograms(server.models)
    yield from _costs(server.models)
    yield from _texts(server.models)
    yield from _health(server)
    yield from _of_workers(server.models)
    requests = CounterMetricFamily(
        "geartrain_requests", "Requests that have been answered, by protocol and status", labels=("protocol", "status")
    )
    for key, count in sorted(server.requests.items()):
        requests.add_metric(key, count)
    yield requests
    yield from _of_calls(server.calls)
    if server.relay is not None:
        yield from _of_relay(server.relay)
    yield from _of_downloads(server.downloads)
    yield from _of_server(server)
    yield from _of_gpus(server.gpus)
    yield from _own(server.models)


def _of_models(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    for name, text, number in _TRITON:
        counts = UnknownMetricFamily(name, text, labels=_MODEL)
        for model in models:
            counts.add_metric(_labels(model), number(model))
        yield counts
    failures = UnknownMetricFamily(_FAILURES, "Inferences that failed, by reason", labels=(*_MODEL, "reason"))
    for model in models:
        for reason, count in model.failures.items():
            failures.add_metric((*_labels(model), reason), count)
    yield failures
    for name, text, kind, number in _OF_MODELS:
        yield _family(name, text, kind, labels=_MODEL, rows=[(_labels(model), number(model)) for model in models])


def _histograms(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    for name, text, find in _HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=_MODEL)
        for model in models:
            histogram = find(model.histograms)
            _add_histogram(
                family,
                _labels(model),
                histogram.bounds,
                counts=histogram.counts,
                total=histogram.total,
                exemplars=histogram.exemplars.copy(),
            )
        yield family
    batched = [model for model in models if model.statistics.batches]
    if not batched:
        return
    rows = HistogramMetricFamily(
        "geartrain_batch_size", "Rows of a call, of the models that take batches", labels=_MODEL
    )
    for model in batched:
        counts = [0] * (len(_BATCH_BOUNDS) + 1)
        total = 0
        for batch in model.statistics.batches:
            place = sum(bound < batch.size for bound in _BATCH_BOUNDS)
            counts[place] += batch.compute_infer.count
            total += batch.compute_infer.count * batch.size
        _add_histogram(rows, _labels(model), _BATCH_BOUNDS, counts=counts, total=total)
    yield rows


def _costs(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Give the family of models that go by costs."""
    rows = [(_labels(model), model.max_cost) for model in models if model.max_cost is not None]
    if rows:
        text = "The most that a call costs, 0 for any; found at the start with max_cost: auto"
        yield _family("geartrain_batch_max_cost", text, "gauge", labels=_MODEL, rows=rows)


def _texts(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Give the families of models that were asked for texts."""
    asked = [(_labels(model), model.texts) for model in models if model.texts is not None]
    if not asked:
        return
    for name, text, find in _TEXTS:
        family = HistogramMetricFamily(name, text, labels=_MODEL)
        for labels, texts in asked:
            histogram = find(texts)
            _add_histogram(family, labels, histogram.bounds, counts=histogram.counts, total=histogram.total)
        yield family
    rows = [((*labels, kind), count) for labels, texts in asked for kind, count in texts.tokens.items()]
    yield _family(
        "geartrain_tokens", "Tokens of texts, as models record them", "counter", labels=(*_MODEL, "kind"), rows=rows
    )


def _health(server: ServerMetrics) -> Iterator[Metric]:
    health = GaugeMetricFamily(
        "geartrain_model_health", "1 for the health that the model version has", labels=(*_MODEL, "health")
    )
    for model in server.models:
        for each in _HEALTH:
            health.add_metric((*_labels(model), each.value), model.health is each)
    yield health
    failed = GaugeMetricFamily(
        "geartrain_model_load_failed",
        "1 for a model version that could not be loaded, or not again when it had changed",
        labels=_MODEL,
    )
    for name, version in server.faults:
        failed.add_metric((name, version), 1)
    yield failed


def _of_workers(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    labels = (*_MODEL, "replica")
    workers = [
        ((*_labels(model), str(index)), worker) for model in models for index, worker in enumerate(model.workers)
    ]
    ready = [(values, worker.is_ready) for values, worker in workers]
    yield _family("geartrain_worker_ready", "Whether the worker takes requests", "gauge", labels=labels, rows=ready)
    for name, text, kind, number in _OF_WORKERS:
        rows = [(values, number(use)) for values, worker in workers for use in worker.process]
        yield _family(name, text, kind, labels=labels, rows=rows)


def _of_calls(calls: Sequence[CallMetrics]) -> Iterator[Metric]:
    """Give the families of models that call models, once one has."""
    if not calls:
        return
    labels = ("caller", "model")
    pairs = [((each.caller, each.model), each) for each in calls]
    rows = [((*pair, outcome), count) for pair, each in pairs for outcome, count in each.outcomes.items()]
    text = "Calls of a model by another one that have ended, by outcome"
    yield _family("geartrain_model_calls", text, "counter", labels=(*labels, "outcome"), rows=rows)
    text = "Time of these calls, from the call to its end"
    seconds = [(pair, each.seconds) for pair, each in pairs]
    yield _family("geartrain_model_call_seconds", text, "counter", labels=labels, rows=seconds)
    running = [(pair, each.running) for pair, each in pairs]
    yield _family("geartrain_model_calls_running", "Calls that have not ended", "gauge", labels=labels, rows=running)


def _of_relay(relay: RelayMetrics) -> Iterator[Metric]:
    rows = [((outcome,), count) for outcome, count in relay.outcomes.items()]
    text = "Requests that were handed over to other servers, by outcome"
    yield _family("geartrain_relayed_requests", text, "counter", labels=("outcome",), rows=rows)
    family = HistogramMetricFamily(
        "geartrain_relay_duration_seconds",
        "How long other servers took to begin their answers to requests that were handed over",
        labels=(),
    )
    _add_histogram(family, (), relay.seconds.bounds, counts=relay.seconds.counts, total=relay.seconds.total)
    yield family


def _of_downloads(downloads: Sequence[DownloadMetrics]) -> Iterator[Metric]:
    for name, text, kind, number in _OF_DOWNLOADS if downloads else ():
        rows = [((each.name,), number(each)) for each in downloads]
        yield _family(name, text, kind, labels=("model",), rows=rows)


def _of_server(server: ServerMetrics) -> Iterator[Metric]:
    for name, text, kind, number in _OF_SERVER:
        yield _family(name, text, kind, labels=(), rows=[((), number(use)) for use in server.process])
    if server.max_descriptors:
        yield GaugeMetricFamily("process_max_fds", "Descriptors that the server may have", server.max_descriptors)
    yield InfoMetricFamily("geartrain_build", "The version of geartrain", {"version": server.version})


def _of_gpus(gpus: Sequence[GpuUse]) -> Iterator[Metric]:
    for name, text, number in _OF_GPUS if gpus else ():
        rows = [((str(gpu.index), gpu.uuid, gpu.name), number(gpu)) for gpu in gpus]
        yield _family(name, text, "gauge", labels=("gpu", "uuid", "name"), rows=rows)


def _own(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Give what authors define. Of a name that two models define otherwise, the first model's definition counts."""
    found: dict[str, tuple[OwnMetric, Metric]] = {}
    for model in models:
        for report in model.own:
            metric = report.metric
            if metric.name not in found:
                found[metric.name] = (metric, _own_family(metric))
            first, family = found[metric.name]
            if (first.kind, first.labels, first.is_raw) != (metric.kind, metric.labels, metric.is_raw):
                continue
            if metric.is_raw:
                _add_raw(family, metric, report.series)
            else:
                for series in report.series:
                    _add_own(family, metric, series, labels=_labels(model))
    for _, family in found.values():
        yield family


def _own_family(metric: OwnMetric) -> Metric:
    labels = (*_MODEL, *metric.labels)
    if metric.is_raw:
        return Metric(metric.name, metric.text, "unknown" if metric.kind == "counter" else metric.kind)
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.text, labels=labels)
    return _family(metric.name, metric.text, metric.kind, labels=labels, rows=())


def _add_raw(family: Metric, metric: OwnMetric, found: Iterable[Series]) -> None:
    """Add series whose labels are names and values in turn. Of those that several models have, the first counts."""
    known = {tuple(sorted(each.labels.items())) for each in family.samples}
    for series in found:
        labels = dict(zip(series.labels[::2], series.labels[1::2], strict=True))
        if metric.kind != "histogram":
            if tuple(sorted(labels.items())) not in known:
                family.add_sample(metric.name, labels, series.value)
            continue
        ends = [*map(floatToGoString, metric.bounds), "+Inf"]
        for end, count in zip(ends, accumulate(series.counts), strict=True):
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": end}, count)
        family.add_sample(f"{metric.name}_count", labels, sum(series.counts))
        family.add_sample(f"{metric.name}_sum", labels, series.value)


def _add_own(family: Metric, metric: OwnMetric, series: Series, *, labels: tuple[str, ...]) -> None:
    values = (*labels, *series.labels)
    if isinstance(family, HistogramMetricFamily):
        _add_histogram(family, values, metric.bounds, counts=series.counts, total=series.value)
    elif isinstance(family, (CounterMetricFamily, GaugeMetricFamily)):
        family.add_metric(values, series.value)


def _family(
    name: str, text: str, kind: _Kind, *, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily | GaugeMetricFamily:
    """Return a family. A counter is given without `_total`, which its samples get."""
    family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _add_histogram(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    bounds: Sequence[float],
    *,
    counts: Sequence[int],
    total: float,
    exemplars: Mapping[int, Exemplar] = _NO_EXEMPLARS,
) -> None:
    """Add counts by bucket. A clock that was set back makes no sum negative."""
    ends = [*map(floatToGoString, bounds), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    for index, (end, count) in enumerate(zip(ends, accumulate(counts), strict=True)):
        if index in exemplars:
            value, request, at = exemplars[index]
            buckets.append((end, count, samples.Exemplar({"trace_id": request.trace_id}, value, at)))
        else:
            buckets.append((end, count))
    family.add_metric(labels, buckets, sum_value=max(0.0, total))


def _labels(model: ModelMetrics) -> tuple[str, str]:
    return model.statistics.name, model.statistics.version


class _Families(Collector):
    """Gives families that are there already, with labels of the server beside their own."""

    def __init__(self, found: Iterable[Metric], labels: Mapping[str, str]) -> None:
        self._found = tuple(found)
        if not labels:
            return
        for family in self._found:
            family.samples = [each._replace(labels={**each.labels, **labels}) for each in family.samples]

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        return self._found


def wants_openmetrics(accept: str) -> bool:
    """True if the `Accept` of a request names OpenMetrics, as Prometheus does, and does not refuse it."""
    for choice in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        if kind == "application/openmetrics-text":
            return not any(parameter in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for parameter in parameters)
    return False


def encode_metrics(server: ServerMetrics, *, as_openmetrics: bool = False) -> bytes:
    """Return the text: each metric with its help, its type and its values."""
    found = _Families(families(server), server.labels)
    if as_openmetrics:
        generate: Callable[..., bytes] = openmetrics.generate_latest  # which has no types
        return generate(found, version="1.0.0")
    text = exposition.generate_latest(found)
    raw = {each.metric.name for model in server.models for each in model.own if each.metric.kind == "counter"}
    for name in (*TRITON_COUNTERS, *raw):  # the text format has counters without `_total`, and its writer does not
        text = text.replace(f"# TYPE {name} untyped\n".encode(), f"# TYPE {name} counter\n".encode())
    return text
