"""`GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.routing import GET, Api, Params, Route
from geartrain.transport.wire.exchange import Answer, Head

if TYPE_CHECKING:
    from geartrain.apis.metrics import ModelMetrics


def metrics_route(catalogue: Catalogue, api: Api) -> Route:
    """Return the route of the counts of every model that is served, for Prometheus; `api` refuses what is wrong."""
    return Route(GET, "/metrics", MetricsEndpoint(catalogue).begin, api, "read", subject="all")


class MetricsEndpoint:
    """The counts of every model that is served."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def begin(self, _head: Head, _params: Params) -> Answer:
        """Answer."""
        from geartrain.apis.metrics import CONTENT_TYPE, encode_metrics

        text = encode_metrics(self._models())
        return Answer(HTTPStatus.OK, (text,), ((b"content-type", CONTENT_TYPE.encode()),))

    def _models(self) -> Iterator[ModelMetrics]:
        from geartrain.apis.metrics import ModelMetrics

        for deployment in self._catalogue.deployments():
            workers, scheduler = deployment.workers, deployment.scheduler
            permits, counts = workers.permits, scheduler.context.counts
            yield ModelMetrics(
                statistics=counts.statistics(deployment.name, deployment.version),
                failures=counts.faults,
                is_ready=workers.health is Health.READY,
                waiting=scheduler.waiting,
                queue=deployment.settings.inference_queue,
                slots=permits.size,
                slots_in_use=permits.size - permits.idle,
                replicas=len(workers.replicas),
                replicas_ready=sum(replica.health is Health.READY for replica in workers.replicas),
                restarts=workers.restarts.count,
            )
