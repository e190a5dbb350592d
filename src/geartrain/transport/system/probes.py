"""`GET /livez` and `GET /readyz`: whether the server lives, and whether requests should be sent to it.

They are for Kubernetes, load balancers and people: the status code says it all, and the body says why.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.routing import GET, Api, Params, Route
from geartrain.transport.wire.exchange import Answer, Head


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
