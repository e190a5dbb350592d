"""`GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from geartrain.domain.predictions.lifecycle import Health

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from geartrain.apis.metrics import ModelMetrics
    from geartrain.service.models.catalogue import Catalogue


class MetricsEndpoint:
    """The counts of every model that is served, for Prometheus."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["path"] != "/metrics":
            response = Response(b'{"error":"No such path. GET / lists the endpoints."}', HTTPStatus.NOT_FOUND)
            response.headers["content-type"] = "application/json"
        elif scope["method"] not in {"GET", "HEAD"}:
            response = Response(b'{"error":"Method not allowed; this path takes GET, HEAD."}', 405)
            response.headers["content-type"] = "application/json"
            response.headers["allow"] = "GET, HEAD"
        else:
            from geartrain.apis.metrics import CONTENT_TYPE, encode_metrics

            response = Response(encode_metrics(self._models()), headers={"content-type": CONTENT_TYPE})
        await response(scope, receive, send)

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
