"""The paths of the Open Inference Protocol, and its endpoints that run no model: metadata, repository, shared memory.

Paths are exact: no slash at the end, names percent-encoded where they need it, versions in digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis import open_inference_info
from geartrain.authoring import __version__
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.open_inference.exchanges import (
    API,
    EMPTY,
    GENERATE,
    ServerContext,
    by_exchange,
    json_answer,
    model_of,
)
from geartrain.transport.open_inference.generate import GenerateExchange, GenerateStreamExchange, InferStreamExchange
from geartrain.transport.open_inference.infer import InferExchange
from geartrain.transport.routing import POST, Begin, Params, Route, Scope, Subject
from geartrain.transport.runs import Endpoint, Request, by_task, when_awake
from geartrain.transport.wire.exchange import Answer, Head

_NOT_READY: Final = Answer(HTTPStatus.BAD_REQUEST, (b"",), ())
_GET: Final = ("GET",)  # and not HEAD, as observed
_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = "/v2/models/{model}/versions/{version:version}"
_REGION: Final = "/v2/systemsharedmemory/region/{region}"


class RepositoryEndpoints:
    """Everything below `v2/repository`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def index(self, request: Request) -> Answer:
        """`POST v2/repository/index`."""
        asked = open_inference_info.read_index(bytes(request.body))
        return json_answer(open_inference_info.encode_list(self._catalogue.index(ready=bool(asked.ready))))

    async def load(self, request: Request) -> Answer:
        """`POST v2/repository/models/{name}/load`."""
        open_inference_info.check_control(bytes(request.body), unload=False)
        await self._catalogue.control.load(request.params["model"])
        return EMPTY

    async def unload(self, request: Request) -> Answer:
        """`POST v2/repository/models/{name}/unload`."""
        open_inference_info.check_control(bytes(request.body), unload=True)
        await self._catalogue.control.unload(request.params["model"])
        return EMPTY


class SharedMemoryEndpoints:
    """Everything below `v2/systemsharedmemory`. Without the name of a region they mean all of them."""

    def __init__(self, regions: SharedRegions) -> None:
        self._regions = regions

    def status(self, _head: Head, params: Params) -> Answer:
        """`GET v2/systemsharedmemory[/region/{name}]/status`; raises `GeartrainError`."""
        return json_answer(open_inference_info.encode_list(self._regions.status(params.get("region"))))

    async def register(self, request: Request) -> Answer:
        """`POST v2/systemsharedmemory/region/{name}/register`."""
        asked = open_inference_info.read_register(bytes(request.body))
        name, offset = request.params["region"], asked.offset or 0
        self._regions.register(name, asked.key, offset=offset, byte_size=asked.byte_size)
        return EMPTY

    async def unregister(self, request: Request) -> Answer:
        """`POST v2/systemsharedmemory[/region/{name}]/unregister`."""
        self._regions.unregister(request.params.get("region"))
        return EMPTY


class InfoEndpoints:
    """Answers at once, all of them; raises `GeartrainError`."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, *, health_body: bool) -> None:
        """`health_body`: whether health responses say in JSON what their status says."""
        self._catalogue = catalogue
        self._regions = regions
        self._has_health_body = health_body

    # the server

    def live(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/health/live`."""
        return self._health(True, open_inference_info.health(live=True))

    def ready(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/health/ready`."""
        ready = self._catalogue.readiness.is_ready
        return self._health(ready, open_inference_info.health(ready=ready))

    def _health(self, is_well: bool, body: bytes) -> Answer:  # noqa: FBT001 - the one fact
        if self._has_health_body:
            return Answer(HTTPStatus.OK if is_well else HTTPStatus.BAD_REQUEST, (body,))
        return EMPTY if is_well else _NOT_READY

    def server(self, _head: Head, _params: Params) -> Answer:
        """`GET v2`."""
        return json_answer(open_inference_info.server_metadata(__version__, shared_memory=self._regions.enabled))

    def models(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/models`."""
        names = dict.fromkeys(deployment.name for deployment in self._catalogue.deployments())
        return json_answer(open_inference_info.model_list(names))

    # a model

    def model_ready(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/ready`."""
        name, version = model_of(params)
        ready = information.is_ready(self._catalogue, name, version)
        return self._health(ready, open_inference_info.health(name, ready=ready))

    def metadata(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}`."""
        deployment, versions = information.describe(self._catalogue, *model_of(params))
        info, view = deployment.interface.info, deployment.interface.view
        return json_answer(
            open_inference_info.model_metadata(
                deployment.name, versions, view, platform=info.platform, batching=info.batching
            )
        )

    def config(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/config`."""
        deployment, _ = information.describe(self._catalogue, *model_of(params))
        info, view = deployment.interface.info, deployment.interface.view
        config = open_inference_info.model_config(
            deployment.name,
            view,
            deployment.slots,
            platform=info.platform,
            batching=info.batching,
            stated=deployment.settings.stated,
        )
        return json_answer(open_inference_info.encode_config(config))

    def all_statistics(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/models/stats`."""
        return json_answer(open_inference_info.statistics(information.statistics(self._catalogue)))

    def statistics(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/stats`."""
        name, version = model_of(params)
        try:
            return json_answer(open_inference_info.statistics(information.statistics(self._catalogue, name, version)))
        except GeartrainError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            is_version = version and self._knows(name)
            msg = f"requested model version is not available for model '{clip(name)}'" if is_version else ""
            raise GeartrainError(
                Code.INVALID_INPUT, msg or f"requested model '{clip(name)}' is not available"
            ) from None

    def _knows(self, name: str) -> bool:
        try:
            return bool(information.versions(self._catalogue, name))
        except GeartrainError:
            return False


def open_inference_routes(context: ServerContext, *, health_body: bool = False) -> list[Route]:
    """Return everything below `/v2`. `health_body`: whether health responses say in JSON what their status says."""
    catalogue, regions, max_body_bytes = context.catalogue, context.regions, context.max_body_bytes
    return [
        *_info(InfoEndpoints(catalogue, regions, health_body=health_body)),
        *_runs(context),
        *_repository(RepositoryEndpoints(catalogue), max_body_bytes),
        *_shared_memory(SharedMemoryEndpoints(regions), max_body_bytes),
    ]


def _info(info: InfoEndpoints) -> Iterator[Route]:
    yield _get("/v2", info.server, subject="none")
    yield _get("/v2/", info.server, subject="none")  # the protocol's repository has had it as well
    yield _get("/v2/health/live", info.live, "open")
    yield _get("/v2/health/ready", info.ready, "open")
    yield _get("/v2/models", info.models, subject="all")
    yield _get("/v2/models/stats", info.all_statistics, subject="all")
    for path in (_MODEL, _VERSION):
        yield _get(path, when_awake(info.metadata, API))
        yield _get(f"{path}/ready", info.model_ready, "open")
        yield _get(f"{path}/config", when_awake(info.config, API))
        yield _get(f"{path}/stats", info.statistics)


def _runs(context: ServerContext) -> Iterator[Route]:
    infer = by_exchange(partial(InferExchange, context), context.max_body_bytes, takes_views=True)
    generate = by_exchange(partial(GenerateExchange, context), context.max_body_bytes)
    generate_stream = by_exchange(partial(GenerateStreamExchange, context), context.max_body_bytes)
    infer_stream = by_exchange(partial(InferStreamExchange, context), context.max_body_bytes)
    for path in (_MODEL, _VERSION):
        yield Route(POST, f"{path}/infer", infer, API, "predict")
        yield Route(POST, f"{path}/generate", generate, GENERATE, "predict")
        yield Route(POST, f"{path}/generate_stream", generate_stream, GENERATE, "predict")
        yield Route(POST, f"{path}/infer_stream", infer_stream, GENERATE, "predict")


def _repository(repository: RepositoryEndpoints, max_body_bytes: int) -> Iterator[Route]:
    post = _poster(max_body_bytes)
    for path in ("/v2/repository/index", "/v2/repository/{repository}/index"):
        yield msgspec.structs.replace(post(path, repository.index, "read"), subject="all")
    yield post("/v2/repository/models/{model}/load", repository.load, "admin")
    yield post("/v2/repository/models/{model}/unload", repository.unload, "admin")


def _shared_memory(shared_memory: SharedMemoryEndpoints, max_body_bytes: int) -> Iterator[Route]:
    post = _poster(max_body_bytes)
    yield _get("/v2/systemsharedmemory/status", shared_memory.status, "admin")
    yield _get(f"{_REGION}/status", shared_memory.status, "admin")
    yield post("/v2/systemsharedmemory/unregister", shared_memory.unregister, "admin")
    yield post(f"{_REGION}/register", shared_memory.register, "admin")
    yield post(f"{_REGION}/unregister", shared_memory.unregister, "admin")


def _get(path: str, begin: Begin, scope: Scope = "read", *, subject: Subject = "model") -> Route:
    return Route(_GET, path, begin, API, scope, subject)


def _poster(max_body_bytes: int) -> Callable[[str, Endpoint, Scope], Route]:
    def post(path: str, endpoint: Endpoint, scope: Scope) -> Route:
        return Route(POST, path, by_task(endpoint, API, max_body_bytes), API, scope)

    return post
