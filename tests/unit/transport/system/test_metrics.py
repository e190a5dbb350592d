"""`GET /metrics`, without a socket."""

from __future__ import annotations

import functools

from geartrain.transport.open_inference.exchanges import API
from geartrain.transport.records import RequestCounts
from geartrain.transport.routing import Router
from geartrain.transport.system.metrics import metrics_route
from geartrain.transport.wire.exchange import Answer
from tests.support.deployments import catalogue_of, close, deploy
from tests.support.fakes import FakeWorker
from tests.support.responders import ask, body_of, head_of


class Runner:
    async def run(self) -> str:
        return ""


async def test_metrics_of_all_models() -> None:
    catalogue = await catalogue_of(
        echo=lambda record: deploy(functools.partial(FakeWorker, Runner(), slots=3), record=record)
    )
    router = Router([metrics_route(catalogue, API, RequestCounts())], API)
    for method in ("GET", "HEAD"):
        answer = await ask(router, method, "/metrics")
        assert answer.status == 200
        assert dict(answer.headers) == {b"content-type": b"text/plain; version=0.0.4; charset=utf-8"}
        assert b'\ngeartrain_slots{model="echo",version="1"} 3.0\n' in body_of(answer)
    refused = router.begin(head_of("POST", "/metrics"))
    assert isinstance(refused, Answer)
    assert (refused.status, dict(refused.headers)[b"allow"]) == (405, b"GET, HEAD")
    (route,) = router.routes
    assert route.scope == "read"
    (deployment,) = catalogue.deployments()
    await close(deployment)
