"""Everything of Cog's API that is not a prediction: discovery, health, OpenAPI, the docs page, shutdown."""

from __future__ import annotations

import html
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from geartrain import __version__
from geartrain.apis import cog, openapi
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.signature.types import Signature
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.interface import Interface
from geartrain.service.models.replicas import SetupReport
from geartrain.service.models.trainings import Trainings
from geartrain.service.models.workers import HealthReport
from geartrain.transport.errors import retry_headers

if TYPE_CHECKING:
    from starlette.requests import Request

_DOCS_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="{prefix}/docs/static/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{prefix}/docs/static/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({{url: "{prefix}/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null}})
</script>
</body>
</html>
"""


class SystemEndpoints:
    """The handlers. Health is that of the model that makes predictions; of the training where there are none."""

    def __init__(
        self,
        name: str,
        predictions: ModelRef | None,
        trainings: Trainings | None,
        *,
        shut_down: Callable[[], None] | None = None,
        prefix: str = "",
    ) -> None:
        """`name` is that of the model. `prefix`: what stands before the paths of its routes.

        Without `shut_down` it cannot shut the server down.
        """
        if predictions is not None:
            self._model = predictions
        elif trainings is not None:
            self._model = trainings.ref
        else:
            msg = "there is nothing to serve"
            raise ValueError(msg)
        self._name = name
        self._predictions = predictions
        self._trainings = trainings
        self._shut_down = shut_down
        self._prefix = prefix
        self._openapi: dict[Interface | None, bytes] = {}  # of the present interface alone

    def routes(self) -> list[BaseRoute]:
        """Return the routes of Cog's HTTP API besides the predictions."""
        routes = [
            Route("/", self.discover),
            Route("/health-check", self.health_check),
            Route("/openapi.json", self.openapi),
            Route("/docs", self.docs),
            Mount("/docs/static", _SwaggerFiles()),
        ]
        if self._shut_down is not None:
            routes.append(shutdown_route(self._shut_down))
        return routes

    async def discover(self, _request: Request) -> Response:
        """`GET /`."""
        nouns = {"prediction": self._predictions is not None, "training": self._trainings is not None}
        there = [noun for noun, is_there in nouns.items() if is_there]
        return _json(cog.discovery(there, prefix=self._prefix, shutdown=self._shut_down is not None))

    async def health_check(self, _request: Request) -> Response:
        """`GET /health-check`: always 200, the status is in the body."""
        return _json(cog.encode_health({**health_fields(await self._model.report()), **cog.versions(__version__)}))

    async def openapi(self, _request: Request) -> Response:
        """`GET /openapi.json`: 503 until the model has told its signature."""
        try:
            interface = None if self._predictions is None else self._predictions.deployment.interface
            if interface not in self._openapi:
                training = await self._training_signature()
                self._openapi = {interface: self._document(interface, training)}
        except GeartrainError as error:
            answer = _json(b'{"error":"OpenAPI schema not available"}', HTTPStatus.SERVICE_UNAVAILABLE)
            answer.raw_headers += retry_headers(HTTPStatus.SERVICE_UNAVAILABLE, error)
            return answer
        return _json(self._openapi[interface])

    def _document(self, interface: Interface | None, training: Signature | None) -> bytes:
        import msgspec

        signature = None if interface is None else interface.signature
        document = openapi.document(signature, training=training, title=self._name, version=__version__)
        if self._prefix:
            document["servers"] = [{"url": self._prefix}]
        return msgspec.json.encode(document, order="sorted")

    async def _training_signature(self) -> Signature | None:
        if self._trainings is None:
            return None
        try:
            return await self._trainings.signature()
        except GeartrainError:
            if self._predictions is None:
                raise
            return None  # a training that cannot be loaded takes nothing from the predictions

    async def docs(self, _request: Request) -> Response:
        """`GET /docs`: the API to try out, without any file from elsewhere."""
        title = html.escape(f"{self._name} - geartrain")
        return HTMLResponse(_DOCS_PAGE.format(title=title, prefix=html.escape(self._prefix)))


def shutdown_route(shut_down: Callable[[], None]) -> Route:
    """Return the route of `POST /shutdown`: answer, then stop."""

    async def shutdown(_request: Request) -> Response:
        shut_down()
        return _json(b"{}")

    return Route("/shutdown", shutdown, methods=["POST"])


def health_fields(report: HealthReport) -> dict[str, Any]:
    """Return the health of a model as `GET /health-check` tells it. What has no value is left out."""
    found: dict[str, Any] = {
        "status": report.health,
        "setup": _setup(report.setup, report.health),
        "user_healthcheck_error": report.healthcheck_error or report.defunct_reason,
        "restarts": report.restarts if report.restarts.count else None,
        "replicas": report.replicas or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _json(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _setup(report: SetupReport, health: Health) -> dict[str, Any] | None:
    if health is Health.UNKNOWN:  # it has not started
        return None
    setup: dict[str, Any] = {"started_at": cog.timestamp(report.started_at)}
    if health is Health.STARTING:
        setup["status"] = "starting"
    else:
        if report.completed_at is not None:
            setup["completed_at"] = cog.timestamp(report.completed_at)
        setup["status"] = "failed" if report.failed else "succeeded"
    setup["logs"] = report.logs
    return setup


class _SwaggerFiles:
    """The files of Swagger UI, found when first asked for."""

    def __init__(self) -> None:
        self._files: StaticFiles | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._files is None:
            import swagger_ui_bundle

            self._files = StaticFiles(directory=Path(swagger_ui_bundle.swagger_ui_path))
        await self._files(scope, receive, send)
