"""The paths of the Open Inference Protocol.

They are exact: no slash at the end, names percent-encoded where they need it, versions in digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from geartrain.transport.open_inference.api import API
from geartrain.transport.open_inference.control import RepositoryEndpoints, SharedMemoryEndpoints
from geartrain.transport.open_inference.exchanges import ServerContext, by_exchange
from geartrain.transport.open_inference.generate import GenerateExchange
from geartrain.transport.open_inference.infer import InferExchange
from geartrain.transport.open_inference.info import InfoEndpoints
from geartrain.transport.open_inference.streams import GenerateStreamExchange
from geartrain.transport.routing import POST, Begin, Route, Scope, Subject
from geartrain.transport.tasks import Endpoint, by_task, when_awake

_GET: Final = ("GET",)  # and not HEAD, as observed
_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = "/v2/models/{model}/versions/{version:version}"
_REGION: Final = "/v2/systemsharedmemory/region/{region}"


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
    for path in (_MODEL, _VERSION):
        yield Route(POST, f"{path}/infer", infer, API, "predict", protocol="rest")
        yield Route(POST, f"{path}/generate", generate, API, "predict", protocol="generate")
        yield Route(POST, f"{path}/generate_stream", generate_stream, API, "predict", protocol="generate")


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
