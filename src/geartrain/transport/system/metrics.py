"""`GET /metrics`, `GET /livez` and `GET /readyz`.

Probes are for Kubernetes, load balancers and people: the status code says if the server lives, and if requests should
be sent to it; the body says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from geartrain.apis.metric_values import (
    CallMetrics,
    DownloadMetrics,
    GpuUse,
    ModelMetrics,
    ProcessUse,
    RelayMetrics,
    ServerMetrics,
    WorkerMetrics,
)
from geartrain.authoring import __version__
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.remote.progress import Download
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.workers.pool import Replica
from geartrain.transport.records import RequestCounts
from geartrain.transport.relay.relay import RelayCounts
from geartrain.transport.routing import GET, Api, Params, Route
from geartrain.transport.runs import Request, by_task
from geartrain.transport.wire.exchange import Answer, Head

NO_LABELS: Final[Mapping[str, str]] = {}
_MAX_BODY: Final = 65_536  # bytes of a body, which is ignored


def probe_routes(catalogue: Catalogue, api: Api) -> list[Route]:
    """Return the routes of both; `api` refuses what is wrong."""
    probes = Probes(catalogue)
    return [
        Route(GET, "/livez", probes.live, api, "open", subject="all"),
        Route(GET, "/readyz", probes.ready, api, "read", subject="all", outline=probes.ready_alone),
    ]


class Probes:
    """Answers for the server as a whole."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    @staticmethod
    def live(_head: Head, _params: Params) -> Answer:
        """`GET /livez`: 200, as long as anything is answered."""
        return _answer(HTTPStatus.OK, {"live": True})

    def ready(self, _head: Head, _params: Params) -> Answer:
        """`GET /readyz`: 200, or 503 with everything that keeps the server from being ready."""
        reasons = self._catalogue.readiness.reasons()
        if reasons:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reasons": reasons})
        return _answer(HTTPStatus.OK, {"ready": True})

    def ready_alone(self, _head: Head, _params: Params) -> Answer:
        """`GET /readyz` for a client that may not read more."""
        is_ready = self._catalogue.readiness.is_ready
        return _answer(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, {"ready": is_ready})


def _answer(status: HTTPStatus, body: dict[str, Any]) -> Answer:
    return Answer(status, (msgspec.json.encode(body),))


class MachinePort(Protocol):
    """Resource usage of processes and GPUs. All of it may block for some milliseconds."""

    def process(self, pid: int) -> tuple[ProcessUse, ...]:
        """Resource usage of a process; empty if it has exited or is not permitted."""

    def server(self) -> tuple[ProcessUse, ...]:
        """Return the usage of the server's own process."""

    def max_descriptors(self) -> int:
        """Return the limit of descriptors of the server, 0 for no limit."""

    def gpus(self) -> tuple[GpuUse, ...]:
        """Return the GPUs of this machine."""


def metrics_route(
    catalogue: Catalogue,
    api: Api,
    counts: RequestCounts,
    *,
    machine: MachinePort,
    relay: RelayCounts | None = None,
    labels: Mapping[str, str] = NO_LABELS,
) -> Route:
    """Return the route of the metrics of a server, for Prometheus; `api` refuses what is wrong.

    `relay`: of what is handed over to other servers. `labels`: that every metric has besides its own.
    """
    endpoint = MetricsEndpoint(catalogue, counts, machine, relay=relay, labels=labels)
    return Route(GET, "/metrics", by_task(endpoint.answer, api, _MAX_BODY), api, "read", subject="all")


class MetricsEndpoint:
    """The metrics of every model that is served, and of the server."""

    def __init__(
        self,
        catalogue: Catalogue,
        counts: RequestCounts,
        machine: MachinePort,
        *,
        relay: RelayCounts | None = None,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> None:
        """`relay` and `labels`: as of `metrics_route`."""
        self._catalogue = catalogue
        self._counts = counts
        self._machine = machine
        self._relay = relay
        self._labels = labels

    async def answer(self, request: Request) -> Answer:
        """Answer in the format that `Accept` asks for."""
        accept = b",".join(value for name, value in request.head.headers if name == b"accept").decode("latin-1")
        # Values that change on the loop are read here, but for the counts of histograms. The rest would hold the loop.
        deployments = list(self._catalogue.deployments())
        seen = [(_model(each), [_pids(replica) for replica in each.workers.replicas]) for each in deployments]
        relay = self._relay
        counted = ServerMetrics(
            version=__version__,
            faults=information.faults(self._catalogue),
            requests=self._counts.all(),
            downloads=tuple(_download(name, each) for name, each in information.downloads(self._catalogue)),
            calls=_calls(self._catalogue),
            relay=None if relay is None else RelayMetrics(relay.outcomes.copy(), relay.seconds),
            labels=self._labels,
        )
        content_type, text = await asyncio.to_thread(self._encode, accept, seen, counted)
        return Answer(HTTPStatus.OK, (text,), ((b"content-type", content_type.encode()),))

    def _encode(
        self,
        accept: str,
        seen: list[tuple[ModelMetrics, list[tuple[int, ...]]]],
        counted: ServerMetrics,
    ) -> tuple[str, bytes]:
        """Add the models and what processes take, and encode it all."""
        from geartrain.apis.metrics import OPENMETRICS, TEXT, encode_metrics, wants_openmetrics

        machine = self._machine
        models = tuple(
            _with_workers(model, tuple(tuple(use for pid in each for use in machine.process(pid)) for each in pids))
            for model, pids in seen
        )
        server = msgspec.structs.replace(
            counted,
            models=models,
            process=machine.server(),
            max_descriptors=machine.max_descriptors(),
            gpus=machine.gpus(),
        )
        as_openmetrics = wants_openmetrics(accept)
        return OPENMETRICS if as_openmetrics else TEXT, encode_metrics(server, as_openmetrics=as_openmetrics)


def _download(name: str, download: Download) -> DownloadMetrics:
    return DownloadMetrics(
        name,
        is_active=download.is_active,
        there=download.bytes,
        total=max(0, download.total_bytes),
        received_bytes=download.received_bytes,
        received_files=download.received_files,
        failures=download.failures,
    )


def _pids(replica: Replica) -> tuple[int, ...]:
    return replica.worker.pids


def _calls(catalogue: Catalogue) -> tuple[CallMetrics, ...]:
    """Return the figures of the models that call others."""
    if catalogue.caller is None:
        return ()
    return tuple(
        CallMetrics(caller, model, counts.outcomes.copy(), counts.seconds, counts.running)
        for caller, model, counts in catalogue.caller.edges()
    )


def _model(deployment: Deployment) -> ModelMetrics:
    workers, scheduler = deployment.workers, deployment.scheduler
    permits, counts = workers.permits, scheduler.context.counts
    counts.settle()
    return ModelMetrics(
        statistics=counts.statistics(deployment.name, deployment.version),
        failures=counts.faults,
        health=workers.health,
        waiting=scheduler.waiting,
        running=len(deployment.executions.live) - scheduler.waiting,
        queue=deployment.settings.inference_queue,
        slots=permits.size,
        slots_in_use=permits.size - permits.idle,
        workers=tuple(WorkerMetrics(replica.health is Health.READY) for replica in workers.replicas),
        restarts=workers.restarts.count,
        histograms=counts.histograms,
        own=workers.own_metrics.all(),
        texts=counts.texts,
        max_cost=scheduler.pending.max_cost,
    )


def _with_workers(model: ModelMetrics, uses: tuple[tuple[ProcessUse, ...], ...]) -> ModelMetrics:
    """Add what the processes of the workers take."""
    workers = [WorkerMetrics(worker.is_ready, use) for worker, use in zip(model.workers, uses, strict=True)]
    return msgspec.structs.replace(model, workers=tuple(workers))
