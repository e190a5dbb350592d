"""Endpoints of other servers and platforms, by the names of `--api`.

Models that take whole requests receive these as they came, and answer themselves. For any other model the body is read
as that server reads it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib import metadata
from typing import Any, Final

import msgspec

from geartrain.apis.bodies import PLAIN, BodyForm
from geartrain.apis.form_inputs import FORM
from geartrain.apis.reference import OtherPath
from geartrain.apis.rows import HUGGING_FACE, INSTANCES, INVOCATIONS
from geartrain.authoring.litserve import USUAL_PATH as LITSERVE_PATH
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.transport.bodies.exchange import Contract, by_body
from geartrain.transport.bodies.multi_model import MultiModelEndpoints
from geartrain.transport.bodies.routes import BodiesApi, finder
from geartrain.transport.routing import GET, POST, PUT, Params, Route
from geartrain.transport.wire.exchange import JSON, Answer, Decision, Head

_BAD: Final = HTTPStatus.BAD_REQUEST
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
_BAD_INPUT: Final = {Code.INVALID_INPUT: _BAD, Code.AT_CAPACITY: _UNAVAILABLE}
_SERVE_NAMES: Final[Mapping[int, str]] = {
    400: "BadRequestException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    413: "RequestEntityTooLargeException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
_INTERNAL: Final = "InternalServerException"
_NO_VERSION: Final = "Model version: "
_RAISED: Final = (Code.RUN_FAILED, Code.INTERNAL)


def _indented(value: Any) -> msgspec.Raw:
    """Return JSON as TorchServe writes it."""
    return msgspec.Raw(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _serve_fault(status: HTTPStatus, text: str) -> Any:
    kind = _SERVE_NAMES.get(status, _INTERNAL)
    if text.startswith(_NO_VERSION):
        kind = "ModelVersionNotFoundException"
    return _indented({"code": int(status), "type": kind, "message": text})


class _TorchServeApi(BodiesApi):
    """TorchServe's refusals: a handler that fails is no server that is busy, though it has the same status."""

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        if error.code not in _RAISED:
            return super().refuse(error)
        body = _indented({"code": int(_UNAVAILABLE), "type": _INTERNAL, "message": error.reason})
        return Answer(_UNAVAILABLE, (bytes(body),), JSON, error=error.reason)


def _detail(_status: HTTPStatus, text: str) -> Any:
    return {"detail": text}


def _mlflow_fault(status: HTTPStatus, text: str) -> Any:
    return {"error_code": "BAD_REQUEST" if status < 500 else "INTERNAL_ERROR", "message": text}  # noqa: PLR2004


SAGEMAKER: Final = BodiesApi("sagemaker", statuses=_BAD_INPUT)
MLFLOW: Final = BodiesApi("mlflow", statuses=_BAD_INPUT, fault=_mlflow_fault)
KSERVE: Final = BodiesApi("kserve", statuses=_BAD_INPUT)
VERTEX: Final = BodiesApi("vertex", statuses=_BAD_INPUT)
TORCHSERVE: Final = _TorchServeApi(
    "torchserve", statuses={**_BAD_INPUT, **dict.fromkeys(_RAISED, _UNAVAILABLE)}, fault=_serve_fault
)
HUGGINGFACE: Final = BodiesApi("huggingface", statuses={**_BAD_INPUT, Code.RUN_FAILED: _BAD})
LITSERVE: Final = BodiesApi("litserve", statuses=_BAD_INPUT, fault=_detail)
TRUSS: Final = BodiesApi("truss", statuses=_BAD_INPUT)
AZURE: Final = BodiesApi("azure", statuses=_BAD_INPUT)


@functools.cache
def _mlflow_version() -> str:
    """Return the version of MLflow; that of geartrain where it is not installed."""
    for name in ("mlflow", "mlflow-skinny", "geartrain"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "0"


class ForeignEndpoints:
    """The endpoints of one server."""

    def __init__(
        self, catalogue: Catalogue, max_body: int, environ: Mapping[str, str], *, paths: Sequence[str] = ()
    ) -> None:
        """`paths` are further ones of the script that is served alone."""
        self._catalogue = catalogue
        self._paths = paths
        self._max_body = max_body
        self._environ = environ
        self._find = finder(catalogue)
        self.forms: dict[str, BodyForm] = {}  # by path, of those that have been made

    def sagemaker(self, api: BodiesApi = SAGEMAKER) -> Iterator[Route]:
        """`/invocations` and `/ping`."""
        yield self._post("/invocations", INVOCATIONS, api)
        yield self._ping("/ping", api)

    def sagemaker_models(self) -> Iterator[Route]:
        """`/ping`, and the paths of endpoints with several models."""
        yield from MultiModelEndpoints(self._catalogue, SAGEMAKER, self._max_body).routes()
        yield self._alive("/ping", SAGEMAKER)

    def mlflow(self) -> Iterator[Route]:
        """`/invocations`, `/ping`, `/health` and `/version` of MLflow's scoring server."""
        yield from self.sagemaker(MLFLOW)
        yield self._ping("/health", MLFLOW)

        def version(_head: Head, _params: Params) -> Decision:
            return Answer(HTTPStatus.OK, (_mlflow_version().encode(),))

        yield Route(GET, "/version", version, MLFLOW, "open", subject="none")

    def kserve(self) -> Iterator[Route]:
        """Version 1 of KServe's protocol, that of TensorFlow Serving."""
        begin = by_body(Contract(KSERVE, INSTANCES, self._find_verb), self._max_body)
        self.forms["/v1/models/{id}"] = INSTANCES
        yield Route(POST, "/v1/models/{id}", begin, KSERVE, "predict", subject="none")
        yield Route(GET, "/v1/models", self._list, KSERVE, subject="all")
        yield Route(GET, "/v1/models/{id}", self._describe, KSERVE, subject="none")

    def vertex(self) -> Iterator[Route]:
        """The paths that Vertex AI names in variables."""
        yield self._post(self._environ.get("AIP_PREDICT_ROUTE") or "/predict", INSTANCES, VERTEX)
        yield self._ping(self._environ.get("AIP_HEALTH_ROUTE") or "/health", VERTEX)

    def torchserve(self) -> Iterator[Route]:
        """TorchServe's inference API."""
        for path in ("/predictions/{id}", "/predictions/{id}/{version:version}"):
            begin = by_body(Contract(TORCHSERVE, FORM, self._find_id), self._max_body)
            self.forms[path] = FORM
            yield Route((*POST, *PUT), path, begin, TORCHSERVE, "predict", subject="none")
        yield self._ping("/ping", TORCHSERVE, _indented({"status": "Healthy"}))

    def huggingface(self) -> Iterator[Route]:
        """The root, and `/predict`, of Hugging Face's inference toolkit."""
        yield self._post("/", HUGGING_FACE, HUGGINGFACE)
        yield self._post("/predict", HUGGING_FACE, HUGGINGFACE)
        yield self._ping("/health", HUGGINGFACE)

    def litserve(self) -> Iterator[Route]:
        """`/predict` and `/health` of LitServe, and the paths that a script gives its models."""
        for path in dict.fromkeys((LITSERVE_PATH, *self._paths)):
            yield self._post(path, PLAIN, LITSERVE)
        yield self._ping("/health", LITSERVE)

    def truss(self) -> Iterator[Route]:
        """The paths of a Truss, whose model is called `model`."""
        for path in ("/predict", "/v1/models/model:predict"):
            yield self._post(path, PLAIN, TRUSS)
        for path in ("/v1/models/model", "/v1/models/model/loaded"):
            yield self._ping(path, TRUSS, {})

    def azure(self) -> Iterator[Route]:
        """`/score` of Azure ML's inference server."""
        yield self._post("/score", PLAIN, AZURE)

    def _post(self, path: str, form: BodyForm, api: BodiesApi) -> Route:
        begin = by_body(Contract(api, form, self._find), self._max_body)
        self.forms[path] = form
        return Route(POST, path, begin, api, "predict")

    def _ping(self, path: str, api: BodiesApi, body: Any = None) -> Route:
        def answer(_head: Head, _params: Params) -> Decision:
            if not self._catalogue.readiness.is_ready:
                return api.refuse(GeartrainError(Code.NOT_READY, "No model is ready yet."))
            return Answer(HTTPStatus.OK, (b"\n" if body is None else msgspec.json.encode(body),))

        return Route(GET, path, answer, api, "open", subject="none")

    def _alive(self, path: str, api: BodiesApi) -> Route:
        """Create the path that tells that the server is up: its models come later."""
        return Route(GET, path, lambda _head, _params: Answer(HTTPStatus.OK, (b"\n",)), api, "open", subject="none")

    # models by name

    def _find_id(self, head: Head, params: Params) -> Deployment:
        name, version = params["id"], params.get("version", "")
        head.notes.check_model(name)
        try:
            return self._catalogue.find_stated(name, version)
        except GeartrainError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            text = f"Model not found: {clip(name)}"
            if name in self._catalogue.names():
                text = f"{_NO_VERSION}{clip(version)} does not exist for model: {clip(name)}"
            raise GeartrainError(Code.NOT_FOUND, text) from None

    def _find_verb(self, head: Head, params: Params) -> Deployment:
        name, colon, verb = params["id"].rpartition(":")
        if not colon or verb not in {"predict", "explain"}:
            raise GeartrainError(Code.NOT_FOUND, f"{params['id']}: the path ends with :predict, or :explain")
        head.notes.check_model(name)
        deployment = self._catalogue.find(name)
        if verb == "explain":
            deployment.workers.check_ready()
            if not deployment.interface.signature.takes_request:
                msg = "only models that take whole requests, such as a kserve.Model, may explain"
                raise GeartrainError(Code.UNSUPPORTED, f"{params['id']}: {msg}")
        return deployment

    def _list(self, _head: Head, _params: Params) -> Decision:
        names = dict.fromkeys(deployment.name for deployment in self._catalogue.deployments())
        return Answer(HTTPStatus.OK, (msgspec.json.encode({"models": list(names)}),))

    def _describe(self, head: Head, params: Params) -> Decision:
        head.notes.check_model(params["id"])
        ready = information.is_ready(self._catalogue, params["id"], "")
        if not ready:
            self._catalogue.find(params["id"])  # raises for a model that is not there
        body = msgspec.json.encode({"name": params["id"], "ready": ready})
        return Answer(HTTPStatus.OK if ready else _UNAVAILABLE, (body,))


class ForeignRoutes:
    """The endpoints that are named in `apis`: those of a path that stands twice are of the first one."""

    def __init__(
        self,
        apis: str,
        catalogue: Catalogue,
        *,
        max_body: int,
        environ: Mapping[str, str] = os.environ,
        paths: Sequence[str] = (),
    ) -> None:
        """`environ` has the variables of the platform; `paths` are further ones of the script that is served alone."""
        endpoints = ForeignEndpoints(catalogue, max_body, environ, paths=paths)
        makers: dict[str, Callable[[], Iterator[Route]]] = {
            "sagemaker": endpoints.sagemaker,
            "sagemaker-models": endpoints.sagemaker_models,
            "mlflow": endpoints.mlflow,
            "kserve": endpoints.kserve,
            "vertex": endpoints.vertex,
            "torchserve": endpoints.torchserve,
            "huggingface": endpoints.huggingface,
            "litserve": endpoints.litserve,
            "azure": endpoints.azure,
            "truss": endpoints.truss,
        }
        self._found: dict[tuple[str, str], Route] = {}
        self.others: list[OtherPath] = []  # for the document of the server; without paths of versions
        for name in filter(None, map(str.strip, apis.split(","))):
            for route in makers[name]():
                for method in route.methods:
                    self._add(name, method, route, form=endpoints.forms.get(route.path))

    def _add(self, name: str, method: str, route: Route, *, form: BodyForm | None) -> None:
        key = (method, route.path)
        if key in self._found:
            return
        self._found[key] = msgspec.structs.replace(route, methods=(method,))
        is_asked = method in POST and form is not None
        if (is_asked or method == "GET") and "{" not in route.path.replace("{id}", ""):
            example = form.example if is_asked and form is not None else None
            self.others.append(OtherPath(method.lower(), route.path, name, example))

    def added_to(self, routes: list[Route]) -> list[Route]:
        """Return `routes` with these, which come before those of their paths."""
        kept = [
            msgspec.structs.replace(route, methods=methods)
            for route in routes
            if (methods := tuple(method for method in route.methods if (method, route.path) not in self._found))
        ]
        return [*kept, *self._found.values()]
