"""The Open Inference Protocol over REST, with the extensions that Triton has beside it: which path is what.

Paths are exact: no slash at the end, names percent-encoded where they need it, versions in digits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from geartrain import __version__
from geartrain.apis import open_inference, open_inference_info
from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.http.generate import GenerateEndpoint
from geartrain.transport.http.infer import InferEndpoint, read_version, refuse
from geartrain.transport.http.lanes import Answer
from geartrain.transport.http.wire import ClientGoneError, read_body, send_answer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_EMPTY: Final = Answer(HTTPStatus.OK, (b"",), ())
_NOT_READY: Final = Answer(HTTPStatus.BAD_REQUEST, (b"",), ())
_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (open_inference.encode_fault("Not Found"),))


class _Request(NamedTuple):
    """What a handler may need."""

    scope: Scope
    receive: Receive
    name: str = ""  # of a model, or of a region of shared memory
    version: str = ""  # empty for the server's choice


class _Route(NamedTuple):
    method: str
    handler: Callable[[_Request], Awaitable[Answer]]
    name: str = ""
    version: str = ""


class OpenInferenceOptions(NamedTuple):
    """What an operator decides. `health_body`: whether health responses say in JSON what their status says."""

    regions: SharedRegions
    health_body: bool = False


class OpenInferenceEndpoints:
    """Everything below `v2`."""

    def __init__(self, catalogue: Catalogue, options: OpenInferenceOptions, *, max_body_bytes: int) -> None:
        self._catalogue = catalogue
        self._regions = regions = options.regions
        self._has_health_body = options.health_body
        self._max_body_bytes = max_body_bytes
        self.infer = InferEndpoint(catalogue, regions, max_body_bytes=max_body_bytes)
        self._generate = GenerateEndpoint(catalogue, max_body_bytes=max_body_bytes)
        self._streams = {  # they write their answers themselves
            "infer": self.infer.serve,
            "generate": self._generate.generate,
            "generate_stream": self._generate.stream,
        }
        self._of_models: dict[str, Callable[[_Request], Awaitable[Answer]]] = {
            "": self._metadata,
            "ready": self._model_ready,
            "config": self._config,
            "stats": self._statistics,
        }

        self._fixed: dict[tuple[str, ...], Callable[[_Request], Awaitable[Answer]]] = {
            (): self._server,
            ("",): self._server,  # the protocol's repository has had `/v2/` as well
            ("models",): self._models,
            ("health", "live"): self._live,
            ("health", "ready"): self._ready,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path begins with `/v2`."""
        steps = [unquote_to_bytes(step).decode(errors="replace") for step in scope["raw_path"].split(b"/")[2:]]
        model = _split_model(steps)
        if model is not None and model[2] in self._streams:
            if scope["method"] == "POST":
                await self._streams[model[2]](scope, receive, send, name=model[0], version=model[1])
            else:
                await send_answer(send, _wrong_method("POST"))
            return
        route = self._find(steps, model)
        if route is None:
            answer = _NOT_FOUND
        elif route.method != scope["method"]:
            answer = _wrong_method(route.method)
        else:
            try:
                answer = await route.handler(_Request(scope, receive, route.name, route.version))
            except GeartrainError as error:
                answer = refuse(error)
            except ClientGoneError:
                return
            except Exception:
                logger.exception("an endpoint below v2 failed")
                answer = refuse(GeartrainError(Code.INTERNAL, "Internal server error"))
        await send_answer(send, answer)

    def _find(self, steps: list[str], model: tuple[str, str, str] | None) -> _Route | None:
        if model is not None:
            name, version, action = model
            if (name, version, action) == ("stats", "", ""):
                return _Route("GET", self._statistics)
            handler = self._of_models.get(action)
            return None if handler is None else _Route("GET", handler, name, version)
        fixed = self._fixed.get(tuple(steps))
        if fixed is not None:
            return _Route("GET", fixed)
        match steps:
            case ["repository", "index"]:
                return _Route("POST", self._index)
            case ["repository", repository, "index"] if repository:
                return _Route("POST", self._index)
            case ["repository", "models", name, "load"] if name:
                return _Route("POST", self._load, name)
            case ["repository", "models", name, "unload"] if name:
                return _Route("POST", self._unload, name)
        return self._find_region(steps)

    def _find_region(self, steps: list[str]) -> _Route | None:
        match steps:
            case ["systemsharedmemory", "status"]:
                return _Route("GET", self._region_status)
            case ["systemsharedmemory", "unregister"]:
                return _Route("POST", self._unregister)
            case ["systemsharedmemory", "region", name, "status"] if name:
                return _Route("GET", self._region_status, name)
            case ["systemsharedmemory", "region", name, "register"] if name:
                return _Route("POST", self._register, name)
            case ["systemsharedmemory", "region", name, "unregister"] if name:
                return _Route("POST", self._unregister, name)
        return None

    # the server

    async def _live(self, _request: _Request) -> Answer:
        return self._health(True, open_inference_info.health(live=True))

    async def _ready(self, _request: _Request) -> Answer:
        ready = self._catalogue.all_ready()
        return self._health(ready, open_inference_info.health(ready=ready))

    def _health(self, is_well: bool, body: bytes) -> Answer:  # noqa: FBT001 - the one fact
        if self._has_health_body:
            return Answer(HTTPStatus.OK if is_well else HTTPStatus.BAD_REQUEST, (body,))
        return _EMPTY if is_well else _NOT_READY

    async def _server(self, _request: _Request) -> Answer:
        return _json(open_inference_info.server_metadata(__version__, shared_memory=self._regions.enabled))

    async def _models(self, _request: _Request) -> Answer:
        names = dict.fromkeys(deployment.name for deployment in self._catalogue.deployments())
        return _json(open_inference_info.model_list(names))

    # a model

    async def _model_ready(self, request: _Request) -> Answer:
        ready = information.is_ready(self._catalogue, request.name, request.version)
        return self._health(ready, open_inference_info.health(request.name, ready=ready))

    async def _metadata(self, request: _Request) -> Answer:
        deployment, versions = information.describe(self._catalogue, request.name, request.version)
        info, view = deployment.interface.info, deployment.interface.view
        return _json(
            open_inference_info.model_metadata(
                deployment.name, versions, view, platform=info.platform, batching=info.batching
            )
        )

    async def _config(self, request: _Request) -> Answer:
        deployment, _ = information.describe(self._catalogue, request.name, request.version)
        info, view = deployment.interface.info, deployment.interface.view
        return _json(
            open_inference_info.model_config(
                deployment.name,
                view,
                deployment.slots,
                platform=info.platform,
                batching=info.batching,
            )
        )

    async def _statistics(self, request: _Request) -> Answer:
        name, version = request.name, request.version
        try:
            return _json(open_inference_info.statistics(information.statistics(self._catalogue, name, version)))
        except GeartrainError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            is_version = version and self._knows(name)
            msg = f"requested model version is not available for model '{name}'" if is_version else ""
            raise GeartrainError(Code.INVALID_INPUT, msg or f"requested model '{name}' is not available") from None

    def _knows(self, name: str) -> bool:
        try:
            return bool(information.versions(self._catalogue, name))
        except GeartrainError:
            return False

    # the repository

    async def _index(self, request: _Request) -> Answer:
        asked = open_inference_info.read_index(await self._body(request))
        return _json(open_inference_info.encode_list(self._catalogue.index(ready=bool(asked.ready))))

    async def _load(self, request: _Request) -> Answer:
        open_inference_info.check_control(await self._body(request), unload=False)
        await self._catalogue.load(request.name)
        return _EMPTY

    async def _unload(self, request: _Request) -> Answer:
        open_inference_info.check_control(await self._body(request), unload=True)
        await self._catalogue.unload(request.name)
        return _EMPTY

    # shared memory

    async def _region_status(self, request: _Request) -> Answer:
        return _json(open_inference_info.encode_list(self._regions.status(request.name or None)))

    async def _register(self, request: _Request) -> Answer:
        asked = open_inference_info.read_register(await self._body(request))
        self._regions.register(request.name, asked.key, offset=asked.offset or 0, byte_size=asked.byte_size)
        return _EMPTY

    async def _unregister(self, request: _Request) -> Answer:
        self._regions.unregister(request.name or None)
        return _EMPTY

    async def _body(self, request: _Request) -> bytes | bytearray:
        announced = dict(request.scope["headers"]).get(b"content-length", b"0")
        return await read_body(request.receive, int(announced), self._max_body_bytes)


def _split_model(steps: list[str]) -> tuple[str, str, str] | None:
    """Cut the path of a model into its name, its version if there is one, and what is asked for; None for others."""
    match steps:
        case ["models", name] if name:
            return name, "", ""
        case ["models", name, action] if name and action:
            return name, "", action
        case ["models", name, "versions", version, *rest] if name and len(rest) <= 1 and "" not in rest:
            number = read_version(version)
            return None if number is None else (name, number, rest[0] if rest else "")
    return None


def _json(body: bytes) -> Answer:
    return Answer(HTTPStatus.OK, (body,))


def _wrong_method(allowed: str) -> Answer:
    headers = ((b"content-type", b"application/json"), (b"allow", allowed.encode()))
    return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (open_inference.encode_fault("Method Not Allowed"),), headers)
