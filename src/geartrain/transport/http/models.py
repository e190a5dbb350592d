"""Cog's API of several models: that of each at `/models/{name}[/versions/{v}]`, and one of them at the root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from geartrain import __version__
from geartrain.apis import cog
from geartrain.domain.cog_version import COG_VERSION
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.trainings import Trainings
from geartrain.transport.http.app import make_app
from geartrain.transport.http.predictions import PredictionEndpoints, send_error
from geartrain.transport.http.system import SystemEndpoints, health_fields, shutdown_route
from geartrain.transport.http.trainings import TrainingEndpoints
from geartrain.transport.http.wire import send_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from geartrain.service.models.catalogue import Catalogue

_WORST_FIRST: Final = (
    Health.SETUP_FAILED,
    Health.DEFUNCT,
    Health.UNHEALTHY,
    Health.STARTING,
    Health.UNKNOWN,
    Health.READY,
    Health.BUSY,
)


class Root(NamedTuple):
    """What there is at the root besides the Open Inference Protocol."""

    handlers: Sequence[PredictionEndpoints]  # that small requests go to without ASGI
    endpoints: Mapping[str, PredictionEndpoints]
    routes: Sequence[BaseRoute]


class CogEndpoints:
    """Makes the endpoints of models."""

    def __init__(self, *, max_body_bytes: int, quiet: float, shut_down: Callable[[], None]) -> None:
        """`quiet`: the seconds after which a stream without events is kept alive."""
        self._max_body_bytes = max_body_bytes
        self._quiet = quiet
        self._shut_down = shut_down

    def root(self, catalogue: Catalogue | None, trainings: Trainings | None) -> Root:
        """Return what is at the root: the default model of the catalogue, trainings, or both.

        Of several models without a default there is an overview.
        """
        name = None if catalogue is None else catalogue.default_model
        if catalogue is not None and name is None:
            return Root((), {}, _Overview(catalogue, self._shut_down).routes())
        model = None if catalogue is None else catalogue.refer_default()
        title = name or ("" if trainings is None else trainings.ref.entry.name)
        system = SystemEndpoints(title, model, trainings, shut_down=self._shut_down)
        endpoints: dict[str, PredictionEndpoints] = {}
        if trainings is not None:
            endpoints["trainings"] = TrainingEndpoints(trainings, max_body_bytes=self._max_body_bytes)
        if model is None:
            return Root((), endpoints, system.routes())
        endpoints["predictions"] = self._predictions(model)
        return Root((endpoints["predictions"],), endpoints, system.routes())

    def models(self, catalogue: Catalogue) -> ASGIApp:
        """Return what answers at `/models`."""
        return _Models(catalogue, self)

    def model(self, name: str, model: ModelRef, prefix: str) -> ASGIApp:
        """Return what answers below `prefix`: Cog's API of one model version, or of whatever version is the default."""
        system = SystemEndpoints(name, model, None, prefix=prefix)
        return make_app({"predictions": self._predictions(model)}, system.routes())

    def _predictions(self, model: ModelRef) -> PredictionEndpoints:
        return PredictionEndpoints(model, max_body_bytes=self._max_body_bytes, quiet=self._quiet)


class _Models:
    """Takes the model out of the path and lets its own application answer the rest."""

    def __init__(self, catalogue: Catalogue, endpoints: CogEndpoints) -> None:
        self._catalogue = catalogue
        self._endpoints = endpoints
        self._models: dict[tuple[str, str], ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        _, _, *parts = scope["raw_path"].decode("latin-1").split("/")
        if not parts:
            await self._list(scope["method"], send)
            return
        name, version, rest = unquote(parts[0]), "", parts[1:]
        prefix = f"/models/{quote(name, safe='')}"
        if len(rest) > 1 and rest[0] == "versions":
            version, rest = rest[1], rest[2:]
            prefix = f"{prefix}/versions/{quote(version, safe='')}"
        try:
            app = self._app(name, version, prefix)
        except GeartrainError as error:
            await send_error(send, error)
            return
        raw = "/" + "/".join(rest)
        await app({**scope, "path": unquote(raw), "raw_path": raw.encode("latin-1")}, receive, send)

    def _app(self, name: str, version: str, prefix: str) -> ASGIApp:
        if version and not (version.isascii() and version.isdecimal()):
            raise GeartrainError(Code.NOT_FOUND, f"{version!r} is no version; a version is a number")
        self._catalogue.entry(name)  # it may have gone since it was asked for the last time
        model = self._catalogue.refer(name, version)
        key = (name, model.version)
        if key not in self._models:
            self._models[key] = self._endpoints.model(name, model, prefix)
        return self._models[key]

    async def _list(self, method: str, send: Send) -> None:
        if method in {"GET", "HEAD"}:
            await send_json(send, HTTPStatus.OK, msgspec.json.encode({"models": self._catalogue.index()}))
        else:
            body = b'{"error":"Method not allowed; this path takes GET, HEAD."}'
            await send_json(send, HTTPStatus.METHOD_NOT_ALLOWED, body, headers=((b"allow", b"GET, HEAD"),))


class _Overview:
    """The root of a server whose models have no default among them."""

    def __init__(self, catalogue: Catalogue, shut_down: Callable[[], None]) -> None:
        self._catalogue = catalogue
        self._shut_down = shut_down

    def routes(self) -> list[BaseRoute]:
        """Return the routes: an overview of the models, and a hint where Cog's API of a single model would be."""
        methods = ["GET", "POST", "PUT"]
        hints = ("/predictions", "/predictions/{rest:path}", "/trainings", "/trainings/{rest:path}")
        return [
            Route("/", self.discover),
            Route("/health-check", self.health_check),
            shutdown_route(self._shut_down),
            *(Route(path, self.hint, methods=methods) for path in (*hints, "/openapi.json", "/docs")),
        ]

    async def discover(self, _request: Request) -> Response:
        """`GET /`: where each model is."""
        urls = {
            "cog_version": COG_VERSION,
            "healthcheck_url": "/health-check",
            "metrics_url": "/metrics",
            "models_url": "/models",
            "models": {name: f"/models/{quote(name, safe='')}" for name in self._catalogue.names()},
            "shutdown_url": "/shutdown",
        }
        return _json(msgspec.json.encode(urls))

    async def health_check(self, _request: Request) -> Response:
        """`GET /health-check`: READY if all that is to be served is; otherwise the worst, with a report of each."""
        entries = [self._catalogue.entry(name) for name in self._catalogue.names()]
        wanted = [entry for entry in entries if entry.is_wanted]
        reports = await asyncio.gather(*(entry.report() for entry in wanted))
        found = {report.health for report in reports}
        body: dict[str, Any] = {
            "status": next((health for health in _WORST_FIRST if health in found), Health.READY),
            "models": {entry.name: health_fields(report) for entry, report in zip(wanted, reports, strict=True)},
        }
        return _json(cog.encode_health({**body, **cog.versions(__version__)}))

    async def hint(self, request: Request) -> Response:
        """Say where it is instead."""
        names = self._catalogue.names()
        example = f"/models/{quote(names[0], safe='') if names else 'NAME'}{request.url.path}"
        text = (
            "This server has several models, and none of them at the root: "
            f"ask one by its name, such as {example}, or start the server with --default-model NAME."
        )
        return _json(msgspec.json.encode({"error": text}), HTTPStatus.NOT_FOUND)


def _json(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(body, status_code=status, media_type="application/json")
