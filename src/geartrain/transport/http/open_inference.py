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
from geartrain.transport.http.handlers import Answer
from geartrain.transport.http.infer import InferEndpoint, read_version, refuse
from geartrain.transport.http.open_inference_control import EMPTY, ControlEndpoints, Request, Route, json_answer
from geartrain.transport.http.wire import ClientGoneError, send_answer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_NOT_READY: Final = Answer(HTTPStatus.BAD_REQUEST, (b"",), ())
_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (open_inference.encode_fault("Not Found"),))


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
        self._others = ControlEndpoints(catalogue, regions, max_body_bytes=max_body_bytes)
        self.infer = InferEndpoint(catalogue, regions, max_body_bytes=max_body_bytes)
        self._generate = GenerateEndpoint(catalogue, max_body_bytes=max_body_bytes)
        self._streams = {  # they write their answers themselves
            "infer": self.infer.serve,
            "generate": self._generate.generate,
            "generate_stream": self._generate.stream,
        }
        self._of_models: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "": self._metadata,
            "ready": self._model_ready,
            "config": self._config,
            "stats": self._statistics,
        }

        self._fixed: dict[tuple[str, ...], Callable[[Request], Awaitable[Answer]]] = {
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
                answer = await route.handler(Request(scope, receive, route.name, route.version))
            except GeartrainError as error:
                answer = refuse(error)
            except ClientGoneError:
                return
            except Exception:
                logger.exception("an endpoint below v2 failed")
                answer = refuse(GeartrainError(Code.INTERNAL, "Internal server error"))
        await send_answer(send, answer)

    def _find(self, steps: list[str], model: tuple[str, str, str] | None) -> Route | None:
        if model is not None:
            name, version, action = model
            if (name, version, action) == ("stats", "", ""):
                return Route("GET", self._statistics)
            handler = self._of_models.get(action)
            return None if handler is None else Route("GET", handler, name, version)
        fixed = self._fixed.get(tuple(steps))
        if fixed is not None:
            return Route("GET", fixed)
        return self._others.find(steps)

    # the server

    async def _live(self, _request: Request) -> Answer:
        return self._health(True, open_inference_info.health(live=True))

    async def _ready(self, _request: Request) -> Answer:
        ready = self._catalogue.all_ready()
        return self._health(ready, open_inference_info.health(ready=ready))

    def _health(self, is_well: bool, body: bytes) -> Answer:  # noqa: FBT001 - the one fact
        if self._has_health_body:
            return Answer(HTTPStatus.OK if is_well else HTTPStatus.BAD_REQUEST, (body,))
        return EMPTY if is_well else _NOT_READY

    async def _server(self, _request: Request) -> Answer:
        return json_answer(open_inference_info.server_metadata(__version__, shared_memory=self._regions.enabled))

    async def _models(self, _request: Request) -> Answer:
        names = dict.fromkeys(deployment.name for deployment in self._catalogue.deployments())
        return json_answer(open_inference_info.model_list(names))

    # a model

    async def _model_ready(self, request: Request) -> Answer:
        ready = information.is_ready(self._catalogue, request.name, request.version)
        return self._health(ready, open_inference_info.health(request.name, ready=ready))

    async def _metadata(self, request: Request) -> Answer:
        deployment, versions = information.describe(self._catalogue, request.name, request.version)
        info, view = deployment.interface.info, deployment.interface.view
        return json_answer(
            open_inference_info.model_metadata(
                deployment.name, versions, view, platform=info.platform, batching=info.batching
            )
        )

    async def _config(self, request: Request) -> Answer:
        deployment, _ = information.describe(self._catalogue, request.name, request.version)
        info, view = deployment.interface.info, deployment.interface.view
        return json_answer(
            open_inference_info.model_config(
                deployment.name,
                view,
                deployment.slots,
                platform=info.platform,
                batching=info.batching,
            )
        )

    async def _statistics(self, request: Request) -> Answer:
        name, version = request.name, request.version
        try:
            return json_answer(open_inference_info.statistics(information.statistics(self._catalogue, name, version)))
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


def _wrong_method(allowed: str) -> Answer:
    headers = ((b"content-type", b"application/json"), (b"allow", allowed.encode()))
    return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (open_inference.encode_fault("Method Not Allowed"),), headers)
