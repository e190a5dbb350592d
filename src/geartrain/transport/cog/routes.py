"""The routes of Cog's API: of the model at the root, of trainings, and of each model below `/models`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from geartrain.apis.reference import OtherPath
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.versions import is_version
from geartrain.service.durable.durability import Durability
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.trainings import Trainings
from geartrain.transport.cog.api import COG, CogOptions
from geartrain.transport.cog.overview import Overview, ReferenceEndpoint
from geartrain.transport.cog.predictions import FindModel, PredictionEndpoints, TrainingEndpoints
from geartrain.transport.cog.relaying import ClusterLookup
from geartrain.transport.cog.system import (
    REFERENCE,
    FindSystem,
    SystemEndpoints,
    at_once,
    docs_file,
    path_prefix,
    shutdown,
)
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.relay.relay import Relay
from geartrain.transport.routing import GET, POST, PUT, Begin, Params, Route, Scope
from geartrain.transport.runs import Request, by_task
from geartrain.transport.wire.exchange import Answer, Head

if TYPE_CHECKING:
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.transport.cog.durable import StoredPredictions

MAX_PAGES: Final = 256  # model versions whose OpenAPI document is kept

_HINTED: Final = ("GET", "HEAD", "POST", "PUT")
_MODEL: Final = "/models/{model}"
_VERSION: Final = "/models/{model}/versions/{version}"


def shutdown_route(shut_down: Callable[[], None], options: CogOptions) -> Route:
    """Create the route that stops the server."""
    begin = by_task(shutdown(shut_down), COG, options.max_body)
    return Route(POST, "/shutdown", begin, COG, "admin", subject="all")


def cog_routes(
    catalogue: Catalogue | None,
    trainings: Trainings | None,
    options: CogOptions,
    *,
    bodies: LargeBodies,
    durability: Durability | None = None,
    relay: Relay | None = None,
    others: Sequence[OtherPath] = (),
) -> list[Route]:
    """Return all routes: of the default model of the catalogue, of trainings, or of both at the root.

    Of several models without a default there is an overview at the root. `relay` reaches the other servers that share
    the store. `others` are further paths that the document of the server has.
    """
    routes: list[Route] = []
    runs = _Runs(options, bodies, durability, relay=relay, others=others)
    name = None if catalogue is None else catalogue.default_model
    if catalogue is not None:
        routes += _models(catalogue, options, runs)
        if name is None:
            return routes + _overview(catalogue, options, durability) + runs.reference(catalogue, trainings)
    model = None if catalogue is None else catalogue.refer_default()
    title = name or ("" if trainings is None else trainings.ref.entry.name)
    system = SystemEndpoints(title, model, trainings, has_shutdown=options.has_shutdown, durability=durability)
    routes += _system("", lambda _params: system, options) + runs.reference(catalogue, trainings)
    if trainings is not None:
        routes += runs.of_trainings(trainings)
    if model is not None:
        routes += runs.of_predictions("", lambda _params: model)
    return routes


def _route(methods: tuple[str, ...], path: str, begin: Begin, *, scope: Scope) -> Route:
    return Route(methods, path, begin, COG, scope)


class _Runs:
    """Makes the routes of predictions and trainings, and of their document, with a store or without."""

    def __init__(
        self,
        options: CogOptions,
        bodies: LargeBodies,
        durability: Durability | None,
        *,
        relay: Relay | None,
        others: Sequence[OtherPath],
    ) -> None:
        self._others = others
        self._options = options
        self._bodies = bodies
        self._relay = relay
        self.durability = durability

    def of_predictions(self, prefix: str, find: FindModel) -> list[Route]:
        """Return the routes of a model's predictions."""
        stored = self._stored(PredictionEndpoints.noun)
        endpoints = PredictionEndpoints(find, self._options, self._bodies, stored=stored)
        return self._routes(prefix + "/predictions", endpoints)

    def reference(self, catalogue: Catalogue | None, trainings: Trainings | None) -> list[Route]:
        """Return the document of the whole server. Where there are several models it concerns all of them."""
        is_listed = self.durability is not None
        endpoint = ReferenceEndpoint(catalogue, trainings, is_listed=is_listed, others=self._others)
        begin = by_task(endpoint.answer, COG, self._options.max_body)
        is_of_all = catalogue is not None and len(catalogue.names()) > 1
        return [Route(GET, REFERENCE, begin, COG, "read", subject="all" if is_of_all else "model")]

    def of_trainings(self, trainings: Trainings) -> list[Route]:
        """Return the routes of trainings."""
        stored = self._stored(TrainingEndpoints.noun)
        endpoints = TrainingEndpoints(trainings, self._options, self._bodies, stored=stored)
        return self._routes("/trainings", endpoints)

    def _stored(self, noun: str) -> StoredPredictions | None:
        if self.durability is None:
            return None
        from geartrain.transport.cog.durable import StoredPredictions  # late: most servers have no store

        return StoredPredictions(ClusterLookup(self.durability, self._relay), noun)

    def _routes(self, path: str, endpoints: PredictionEndpoints) -> list[Route]:
        routes, stored = _runs(path, endpoints), endpoints.stored
        if stored is None:
            return routes

        async def list_(request: Request) -> Answer:
            return await stored.list(request.head, endpoints.find(request.params))

        return [*_relayable(routes), _route(GET, path, by_task(list_, COG, self._options.max_body), scope="read")]


def _runs(path: str, endpoints: PredictionEndpoints) -> list[Route]:
    return [
        _route(POST, path, endpoints.create, scope="predict"),
        _route(PUT, path + "/{id}", endpoints.create, scope="predict"),
        _route(GET, path + "/{id}", endpoints.show, scope="predict"),
        _route(GET, path + "/{id}/calls", endpoints.show_calls, scope="predict"),
        _route(POST, path + "/{id}/cancel", endpoints.cancel, scope="predict"),
    ]


def _relayable(routes: list[Route]) -> list[Route]:
    """Let other servers hand over what names a prediction."""
    return [msgspec.structs.replace(route, is_relayable="{id}" in route.path) for route in routes]


def _system(prefix: str, find: FindSystem, options: CogOptions) -> list[Route]:
    def by_model(endpoint: Callable[[SystemEndpoints, Head], Awaitable[Answer]]) -> Begin:
        async def call(request: Request) -> Answer:
            return await endpoint(find(request.params), request.head)

        return by_task(call, COG, options.max_body)

    return [
        _route(GET, prefix + "/", at_once(SystemEndpoints.discover, find), scope="open"),
        Route(
            GET,
            prefix + "/health-check",
            by_model(SystemEndpoints.health_check),
            COG,
            outline=by_model(SystemEndpoints.status),
        ),
        _route(GET, prefix + "/openapi.json", by_model(SystemEndpoints.openapi), scope="read"),
        _route(GET, prefix + "/docs", at_once(SystemEndpoints.docs, find), scope="open"),
        *_docs_files(prefix, options),
    ]


def _docs_files(prefix: str, options: CogOptions) -> list[Route]:
    return [_route(GET, prefix + "/docs/static/{file*}", by_task(docs_file, COG, options.max_body), scope="open")]


def _models(catalogue: Catalogue, options: CogOptions, runs: _Runs) -> list[Route]:
    """Return the list of models and Cog's API of each of them, of its default version and of every version."""
    pages = _Pages(catalogue, runs.durability)
    overview = Overview(catalogue, options=options, durability=runs.durability)
    routes = [Route(GET, "/models", overview.list_models, COG, "read", subject="all")]
    for prefix in (_MODEL, _VERSION):
        routes += _system(prefix, pages.find, options)
        routes.append(_route(GET, prefix, at_once(SystemEndpoints.discover, pages.find), scope="open"))
        routes += runs.of_predictions(prefix, pages.refer)
    return routes


def _overview(catalogue: Catalogue, options: CogOptions, durability: Durability | None) -> list[Route]:
    overview = Overview(catalogue, options=options, durability=durability)
    hints = ("/predictions", "/predictions/{rest*}", "/trainings", "/trainings/{rest*}", "/openapi.json")
    return [
        _route(GET, "/", overview.discover, scope="open"),
        _route(GET, "/docs", overview.docs, scope="open"),
        *_docs_files("", options),
        Route(
            GET,
            "/health-check",
            by_task(overview.health_check, COG, options.max_body),
            COG,
            subject="all",
            outline=by_task(overview.status, COG, options.max_body),
        ),
        *(_route(_HINTED, path, overview.hint, scope="open") for path in hints),
    ]


class _Pages:
    """Finds models by the names and versions in paths."""

    def __init__(self, catalogue: Catalogue, durability: Durability | None) -> None:
        self._catalogue = catalogue
        self._durability = durability
        self._pages: dict[tuple[str, str], SystemEndpoints] = {}

    def refer(self, params: Params) -> ModelRef:
        """Return the model, or the version of it, that a path names; raise `NOT_FOUND` if there is none."""
        name, version = params["model"], params.get("version", "")
        if version and not is_version(version):
            raise GeartrainError(Code.NOT_FOUND, f"{version[:200]!r} is no version; a version is a number")
        self._catalogue.entry(name)  # it may have gone since it was asked for the last time
        return self._catalogue.refer(name, version)

    def find(self, params: Params) -> SystemEndpoints:
        """Return its endpoints."""
        model = self.refer(params)
        name, version = params["model"], params.get("version", "")
        key = (name, model.version)
        if key not in self._pages:
            if len(self._pages) >= MAX_PAGES:  # each may hold the document of a version that has gone
                self._pages.clear()
            prefix = path_prefix(name, version)
            self._pages[key] = SystemEndpoints(
                name, model, None, prefix=prefix, has_shutdown=False, durability=self._durability
            )
        return self._pages[key]
