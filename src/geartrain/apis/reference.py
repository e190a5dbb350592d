"""One OpenAPI document of a whole server: each model by every protocol, and the server itself.

It is for people, at `/docs`. A model's own document, which platforms read, is made by `openapi`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from geartrain.authoring.requests import JSON_TYPE, is_json, media_type_of
from geartrain.domain.signature.json_schema import JsonObject
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.tensors.tensor import TensorSpec

_REF: Final = "#/components/schemas/"
_COMPONENT: Final = re.compile(r"[A-Za-z0-9._-]+")
_OF_THE_SERVER: Final = frozenset({"/", "/docs", "/shutdown"})  # paths of a model's document that are no model's
_SERVER_TAG: Final = "this server"
_METHODS: Final = frozenset({"get", "put", "post"})
_ABOUT: Final = """\
Every request can be tried on this page.

- **Predictions** (`…/predictions`) are for applications, and for clients of Cog and Replicate: values and files in JSON
  or a form, streams, webhooks, cancellation. Python has `geartrain.Client` for it.
- **Infer** (`/v2/models/…/infer`) is for tensors, and for clients of Triton, KServe, MLServer and Seldon: the Open
  Inference Protocol, which the server speaks over gRPC too.
- **Generate** (`/v2/models/…/generate`) is for clients of Triton's generate extension: one flat JSON object in, one
  out, or a stream of them.
- **Clients of** another server find its own paths and bodies, where `--api` or the model's file names one.
- **This server** is for those who operate it: probes for Kubernetes, metrics for Prometheus, models to load and unload.
"""
_ABOUT_OTHERS: Final = "For clients of {}: their own paths and bodies."
_ABOUT_SERVER: Final = "For those who operate the server: its models, probes, metrics."


class ModelPart(msgspec.Struct, frozen=True):
    """Part of the document about a model.

    Attributes:
        name: of the model.
        prefix: beginning of the paths of its Cog API, such as `/models/digits`.
        document: as `openapi.document` makes it.
        view: its tensors; None for a part outside the Open Inference Protocol, such as a training.
        takes_request: true if bodies reach it as they come.
        example: of its inputs; None without one.
    """

    name: str
    prefix: str
    document: JsonObject
    view: TensorView | None
    takes_request: bool = False
    example: Mapping[str, Any] | None = None


class OtherPath(msgspec.Struct, frozen=True):
    """A path that the clients of another server know.

    Attributes:
        method: in lower case.
        path: as of a route; `{id}` is the name of a model.
        server: name of the other server, as in `--api`.
        example: makes an example of a body of one of inputs; None for a path without a body.
    """

    method: str
    path: str
    server: str
    example: Callable[[Mapping[str, Any]], Any] | None = None


def reference(
    parts: Sequence[ModelPart], *, version: str, missing: Iterable[str] = (), others: Sequence[OtherPath] = ()
) -> JsonObject:
    """Return the document; `missing`: names of models that are not loaded, and have no other description."""
    paths: JsonObject = {}
    schemas = _shared_schemas()
    for index, part in enumerate(parts):
        own = part.name if _COMPONENT.fullmatch(part.name) else f"model-{index}"
        for name, schema in part.document["components"]["schemas"].items():
            schemas[f"{own}.{name}"] = _with_refs(schema, own)
        paths |= _cog_paths(part, own)
        if part.view is not None:
            paths |= _inference_paths(part, part.view, own)
    for path, item in (*_server_paths().items(), *_other_paths(others, parts)):
        paths[path] = paths.get(path, {}) | item
    unloaded = ", ".join(missing)
    note = f"\nNot loaded, and so not described here: {unloaded}.\n" if unloaded else ""
    servers = dict.fromkeys(other.server for other in others)
    tags = [{"name": _tag_of(name), "description": _ABOUT_OTHERS.format(name)} for name in servers]
    server = {"name": _SERVER_TAG, "description": _ABOUT_SERVER}
    return {
        "openapi": "3.0.2",
        "info": {"title": "The API of this server", "version": version, "description": _ABOUT + note},
        "tags": [*({"name": part.name, **_description(part)} for part in parts), *tags, server],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _description(part: ModelPart) -> JsonObject:
    text = part.document["info"].get("description")
    return {"description": text} if text else {}


def _with_refs(value: Any, own: str) -> Any:
    """Return a part of a document whose references lead to the components of one model."""
    if isinstance(value, dict):
        return {
            key: f"{_REF}{own}.{each.removeprefix(_REF)}" if key == "$ref" else _with_refs(each, own)
            for key, each in value.items()
        }
    return [_with_refs(each, own) for each in value] if isinstance(value, list) else value


def _cog_paths(part: ModelPart, own: str) -> JsonObject:
    paths: JsonObject = {}
    for path, item in part.document["paths"].items():
        if path not in _OF_THE_SERVER:
            paths[part.prefix + path] = {
                method: {
                    **_with_example(_with_refs(operation, own), path, part),
                    "tags": [part.name],
                    "operationId": f"{own}_{operation['operationId']}",
                }
                for method, operation in item.items()
                if method in _METHODS
            }
    return paths


def _with_example(operation: JsonObject, path: str, part: ModelPart) -> JsonObject:
    """Put the example of a model into an operation that begins a prediction."""
    if part.example is None or "requestBody" not in operation or not path.startswith("/predictions"):
        return operation
    content = operation["requestBody"]["content"]
    shown = {**content[JSON_TYPE], "example": {"input": part.example}}
    return {**operation, "requestBody": {"content": {**content, JSON_TYPE: shown}}}


def _inference_paths(part: ModelPart, view: TensorView, own: str) -> JsonObject:
    base = f"/v2/models/{quote(part.name, safe='')}"

    def told(what: str, summary: str) -> JsonObject:
        return {"get": _operation(part.name, f"{own}_v2{what.replace('/', '_')}", summary)}

    def asked(what: str, summary: str, *, schema: str, example: JsonObject) -> JsonObject:
        content = {"application/json": {"schema": {"$ref": _REF + schema}, "example": example}}
        operation = _operation(part.name, f"{own}_v2_{what}", summary)
        return {"post": {**operation, "requestBody": {"content": content}}}

    values = {spec.name: _data(spec)[0] for spec in view.inputs}
    stream = asked("generate_stream", "Generate, as server-sent events", schema="GenerateRequest", example=values)
    stream["post"]["responses"]["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        base: told("", "Inputs and outputs as tensors"),
        f"{base}/ready": told("/ready", "Whether it takes requests"),
        f"{base}/config": told("/config", "How it is served, in the words of Triton"),
        f"{base}/stats": told("/stats", "What it has done"),
        f"{base}/infer": asked(
            "infer", "Infer", schema="InferenceRequest", example={"inputs": [_tensor(each) for each in view.inputs]}
        ),
        f"{base}/generate": asked("generate", "Generate", schema="GenerateRequest", example=values),
        f"{base}/generate_stream": stream,
    }


def _other_paths(others: Sequence[OtherPath], parts: Sequence[ModelPart]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the paths of other servers: those with the name of a model for each one, the others for the first."""
    models = [part for part in parts if part.view is not None]
    for other in others:
        for part in models if "{id}" in other.path else models[:1]:
            path = other.path.replace("{id}", quote(part.name, safe=""))
            if other.server == "kserve" and other.example is not None:
                path += ":predict"
            name = re.sub(r"\W+", "_", f"{other.server}_{other.method}{path}")
            yield path, {other.method: _other_operation(other, part, name)}


def _other_operation(other: OtherPath, part: ModelPart, name: str) -> JsonObject:
    if other.example is None or part.view is None:
        return _operation(_tag_of(other.server), name, "State")
    content: JsonObject = {"schema": {}}
    if not part.takes_request:
        values = {spec.name: _data(spec)[0] for spec in part.view.inputs}
        content["example"] = other.example({**values, **(part.example or {})})
    elif part.example is not None and "body" in part.example:
        content["example"] = _body_in(part.example)
    operation = _operation(_tag_of(other.server), name, "Predict")
    return {**operation, "requestBody": {"content": {"application/json": content}}}


def _body_in(example: Mapping[str, Any]) -> Any:
    """Return the body of a request in an example: a text of JSON is decoded, any other stands for itself."""
    body = example["body"]
    if isinstance(body, str) and is_json(media_type_of(example.get("content_type") or "")):
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            return body
    return body


def _tag_of(server: str) -> str:
    return f"clients of {server}"


def _tensor(spec: TensorSpec) -> JsonObject:
    return {"name": spec.name, "datatype": spec.datatype, "shape": _shape(spec), "data": _data(spec)}


def _shape(spec: TensorSpec) -> list[int]:
    return [1 if size < 0 else size for size in spec.shape]


def _data(spec: TensorSpec) -> list[Any]:
    """Return an example: one value, which stands for as many as the shape has."""
    if spec.datatype == "BYTES":
        return ["text"]
    return [True] if spec.datatype == "BOOL" else [0]


def _server_paths() -> JsonObject:
    paths: JsonObject = {}
    for method, path, summary in _served():
        name = re.sub(r"\W+", "_", f"{method}{path}")
        operation = _operation(_SERVER_TAG, name, summary)
        if "{model}" in path:
            schema = {"type": "string"}
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
        paths[path] = {method: operation}
    return paths


def _served() -> Iterator[tuple[str, str, str]]:
    yield "get", "/", "What there is: JSON, or the playground for browsers"
    yield "get", "/models", "The models, their versions and their states"
    yield "get", "/livez", "Whether the server lives"
    yield "get", "/readyz", "Whether the server is ready"
    yield "get", "/metrics", "Metrics for Prometheus"
    yield "get", "/v2", "The server, as the Open Inference Protocol has it"
    yield "get", "/v2/health/live", "Whether the server lives"
    yield "get", "/v2/health/ready", "Whether the server is ready"
    yield "get", "/v2/models", "The models that can be asked"
    yield "get", "/v2/models/stats", "What all models have done"
    yield "post", "/v2/repository/index", "The models of the repository"
    yield "post", "/v2/repository/models/{model}/load", "Load a model, or load it anew"
    yield "post", "/v2/repository/models/{model}/unload", "Unload a model"


def _operation(tag: str, name: str, summary: str) -> JsonObject:
    return {
        "tags": [tag],
        "summary": summary,
        "operationId": name,
        "responses": {"200": {"description": "Successful Response"}},
    }


def _shared_schemas() -> JsonObject:
    tensor = {
        "type": "object",
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"type": "string"},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": {}},
            "parameters": {"type": "object"},
        },
    }
    inference = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": {"$ref": f"{_REF}Tensor"}},
            "outputs": {"type": "array", "items": {"type": "object"}},
            "parameters": {"type": "object"},
        },
    }
    return {"Tensor": tensor, "InferenceRequest": inference, "GenerateRequest": {"type": "object"}}
