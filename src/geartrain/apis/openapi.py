"""The OpenAPI 3.0.2 document of a model: Cog's endpoints, with the model's own input and output in them.

Names of components, operations and `x-` keywords are those of Cog's documents (observed API, section 5), so that
clients and platforms that read them go on working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.signature.json_schema import JsonObject, input_schema, output_schema, title_case, type_schema
from geartrain.domain.signature.types import TypeSpec, takes_file, takes_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geartrain.domain.signature.types import DeclaredTensor, InputField, Signature

MOST_LISTED: Final = 100
"""Predictions of a page of a list, at most."""

LISTED: Final = 20
"""Predictions of a page, where the client does not say how many it wants."""

_TEXT: Final = {"type": "string"}
_BINARY: Final = {"type": "string", "format": "binary"}
_FAILURES: Final = {
    "400": "The body is not valid JSON",
    "404": "No such prediction is running",
    "406": "The model does not stream, and the client accepts nothing but an event stream",
    "409": "Every slot is in use, or the id belongs to another running prediction",
    "413": "The body is larger than the server admits",
    "415": "The body is declared neither as JSON nor as another type that the model takes",
    "503": "Setup has not finished or has failed, or the server is shutting down",
}


class _Job(msgspec.Struct, frozen=True):
    """The words in which predictions and trainings differ."""

    noun: Literal["prediction", "training"]
    verb: Literal["predict", "train"]
    prefix: Literal["", "Training"]  # of the components `Input` and `Output`

    @property
    def envelope(self) -> str:
        return self.noun.capitalize()

    @property
    def path(self) -> str:
        return f"/{self.noun}s"


_PREDICTION: Final = _Job("prediction", "predict", "")
_TRAINING: Final = _Job("training", "train", "Training")


def document(
    signature: Signature | None,
    *,
    title: str,
    version: str,
    training: Signature | None = None,
    is_listed: bool = False,
) -> JsonObject:
    """The document of a model that runs `signature`, and `training` if it can be trained; either may be missing.

    `is_listed`: whether the server has a store, and so a list of predictions.
    """
    schemas, paths = _shared_schemas(), _server_paths()
    jobs = [(job, given) for job, given in ((_PREDICTION, signature), (_TRAINING, training)) if given is not None]
    for job, model in jobs:
        schemas |= _job_schemas(job) | (_list_schemas(job) if is_listed else {})
        paths |= _job_paths(job, streaming=model.streaming and job is _PREDICTION)  # trainings have no event stream
        if is_listed:
            paths[job.path]["get"] = _list_operation(job)
    reserved = {*schemas, *(f"{job.prefix}{name}" for job, _ in jobs for name in ("Input", "Output"))}
    for job, model in jobs:
        inputs = input_schema(model.inputs, title=f"{job.prefix}Input", reserved=reserved)
        reserved |= set(inputs.components)
        if model.takes_tensors and model.open_inputs:
            inputs.schema["properties"]["tensors"] |= _declared(model.open_inputs)
        schemas[f"{job.prefix}Input"] = inputs.schema
        schemas[f"{job.prefix}Output"] = output_schema(model.output, title=f"{job.prefix}Output")
        schemas |= inputs.components
        files = tuple(field for field in model.inputs if takes_file(field.type) or takes_files(field.type))
        if files:
            content = _file_content(inputs.schema, files)
            for operation in (paths[job.path]["post"], paths[f"{job.path}/{{{job.noun}_id}}"]["put"]):
                operation["requestBody"]["content"] |= content
    info = {"title": title, "version": version}
    if jobs and jobs[0][1].description:
        info["description"] = jobs[0][1].description
    return {"openapi": "3.0.2", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _declared(tensors: Sequence[DeclaredTensor]) -> JsonObject:
    """The tensors that a model declares, where it takes any: nested arrays, or objects with a datatype and a shape."""
    properties = {
        each.name: {
            "anyOf": [
                type_schema(TypeSpec("tensor", datatype=each.datatype, shape=each.shape)),
                {"type": "object"},
            ]
        }
        for each in tensors
    }
    return {"properties": properties}


def _server_paths() -> JsonObject:
    return {
        "/": {"get": _operation("Root", "root__get", {"200": _json("Discovery")})},
        "/health-check": {
            "get": _operation("Healthcheck", "healthcheck_health_check_get", {"200": _json("HealthCheck")})
        },
        "/openapi.json": {"get": _operation("This document", "openapi_openapi_json_get", {"200": _json()})},
        "/docs": {
            "get": _operation(
                "A page to read this document and to try it",
                "docs_docs_get",
                {"200": {"description": "Successful Response", "content": {"text/html": {"schema": _TEXT}}}},
            )
        },
        "/shutdown": {"post": _operation("Shutdown", "shutdown_shutdown_post", {"200": _json()})},
    }


def _job_paths(job: _Job, *, streaming: bool) -> JsonObject:
    """The endpoints of predictions, or of trainings."""
    parameter = f"{job.noun}_id"
    one = f"{job.path}/{{{parameter}}}"
    by_id = {"name": parameter, "in": "path", "required": True, "schema": _titled(parameter, _TEXT)}
    many = f"{job.noun}s"
    create = _create_operation(job, f"{job.verb}_{many}_post", streaming=streaming)
    put = _create_operation(job, f"{job.verb}_idempotent_{many}__{parameter}__put", streaming=streaming)
    put["summary"] += " (idempotent)"
    put["description"] += "; while one with this id is running, answer with its state instead of starting another"
    put["parameters"].insert(0, by_id)
    cancel = _operation(
        "Cancel",
        f"cancel_{many}__{parameter}__cancel_post",
        {"200": _json(), **_failures("404"), "422": _invalid()},
    )
    return {
        job.path: {"post": create},
        one: {"get": _show_operation(job, f"show_{many}__{parameter}__get", by_id), "put": put},
        f"{one}/calls": {"get": _calls_operation(job, f"calls_{many}__{parameter}__calls_get", by_id)},
        f"{one}/cancel": {"post": {**cancel, "parameters": [by_id]}},
    }


def _show_operation(job: _Job, operation_id: str, by_id: JsonObject) -> JsonObject:
    unknown = {**_json("Error"), "description": f"There is no such {job.noun}, or it has been over for too long"}
    operation = _operation("Show", operation_id, {"200": _json(f"{job.envelope}Response"), "404": unknown})
    described = f"Tell how a {job.noun} stands that is running, or has ended not long ago. Not in Cog"
    return {**operation, "description": described, "parameters": [by_id]}


def _calls_operation(job: _Job, operation_id: str, by_id: JsonObject) -> JsonObject:
    unknown = {**_json("Error"), "description": f"There is no such {job.noun}, or it has been over for too long"}
    operation = _operation("Calls of models", operation_id, {"200": _json("Calls"), "404": unknown})
    described = f"Tell which models a {job.noun} has called, when, and with what result. Not in Cog"
    return {**operation, "description": described, "parameters": [by_id]}


def _list_operation(job: _Job) -> JsonObject:
    parameters = (
        ("status", {"type": "array", "items": _ref("Status")}, "Only those in one of these states"),
        ("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": LISTED}, "How many at most"),
        ("cursor", _TEXT, "`next` of the page before"),
    )
    failures = {**_failures("503"), "422": _invalid()}
    operation = _operation("List", f"list_{job.noun}s_get", {"200": _json(f"{job.envelope}List"), **failures})
    described = f"The {job.noun}s that the store of the server knows, the newest first. Not in Cog"
    shown = [
        {"name": name, "in": "query", "description": text, "schema": _titled(name, schema)}
        for name, schema, text in parameters
    ]
    return {**operation, "description": described, "parameters": shown}


def _create_operation(job: _Job, operation_id: str, *, streaming: bool) -> JsonObject:
    response = f"{job.envelope}Response"
    done = _json(response)
    if streaming:
        done["content"]["text/event-stream"] = {"schema": _TEXT}
    operation = _operation(
        job.verb.capitalize(),
        operation_id,
        {
            "200": done,
            "202": {**_json(response), "description": f"The {job.noun} was started and goes on in the background"},
            **_failures("400", "406", "409", "413", "415"),
            "422": _invalid(),
            **_failures("503"),
        },
    )
    prefer = {
        "name": "Prefer",
        "in": "header",
        "description": "`respond-async` answers at once with 202, and the rest goes to the webhook",
        "schema": _titled("prefer", _TEXT),
    }
    body = {"content": {"application/json": {"schema": _ref(f"{job.envelope}Request")}}}
    described = {
        "description": f"Run a single {job.noun} on the model",
        "parameters": [prefer],
        "requestBody": body,
        **({"x-cog-streaming": True} if streaming else {}),
    }
    return {**operation, **described}


def _file_content(inputs: JsonObject, files: Sequence[InputField]) -> JsonObject:
    """The other bodies of a model with inputs that are files: a form, and the file itself if it takes only one."""
    properties = dict(inputs["properties"])
    for field in files:
        shown = properties[field.name]
        if shown.get("format") == "uri":
            properties[field.name] = {**shown, **_BINARY}
        elif shown.get("items", {}).get("format") == "uri":
            properties[field.name] = {**shown, "items": {**shown["items"], **_BINARY}}
    content = {"multipart/form-data": {"schema": {**inputs, "title": "Form", "properties": properties}}}
    if len(files) == 1:
        content["application/octet-stream"] = {"schema": _BINARY}
    return content


def _job_schemas(job: _Job) -> dict[str, JsonObject]:
    """The fixed envelope around the model's own input and output."""
    moment = {"type": "string", "format": "date-time"}
    later = {**moment, "nullable": True}
    own_input, own_output = _ref(f"{job.prefix}Input"), _ref(f"{job.prefix}Output")
    request = {
        "id": _titled("id", _TEXT),
        "input": own_input,
        "created_at": _titled("created_at", moment),
        "context": _titled("context", {"type": "object", "additionalProperties": _TEXT}),
        "webhook": _titled("webhook", {"type": "string", "format": "uri"}),
        "webhook_events_filter": _titled(
            "webhook_events_filter",
            {"type": "array", "items": {"type": "string", "enum": ["start", "output", "logs", "completed"]}},
        ),
    }
    response = {
        "input": own_input,
        "output": own_output,
        "id": _titled("id", _TEXT),
        "version": _titled("version", _TEXT),
        "created_at": _titled("created_at", moment),
        "started_at": _titled("started_at", later),
        "completed_at": _titled("completed_at", later),
        "status": _ref("Status"),
        "error": _titled("error", {"type": "string", "nullable": True}),
        "logs": _titled("logs", _TEXT),
        "metrics": _titled("metrics", {"type": "object"}),
    }
    names = (f"{job.envelope}Request", request), (f"{job.envelope}Response", response)
    return {name: _object(name, properties) for name, properties in names}


def _list_schemas(job: _Job) -> dict[str, JsonObject]:
    """A page of a list, and what it says of each."""
    moment = {"type": "string", "format": "date-time"}
    summary = {
        "id": _titled("id", _TEXT),
        "status": _ref("Status"),
        "version": _titled("version", _TEXT),
        **{name: _titled(name, moment) for name in ("created_at", "started_at", "completed_at")},
        "error": _titled("error", _TEXT),
        "attempts": _titled("attempts", {"type": "integer"}),
        "cancel_requested": _titled("cancel_requested", {"type": "boolean"}),
        "input": _ref(f"{job.prefix}Input"),
    }
    one, many = f"{job.envelope}Summary", f"{job.envelope}List"
    page = {
        "results": _titled("results", {"type": "array", "items": _ref(one)}),
        "next": _titled("next", {"type": "string", "nullable": True}),
    }
    shown = {**_object(one, summary), "required": ["id", "status", "version", "created_at"]}
    return {one: shown, many: {**_object(many, page), "required": [*page]}}


def _shared_schemas() -> dict[str, JsonObject]:
    place = {"type": "array", "items": {"anyOf": [_TEXT, {"type": "integer"}]}, "title": "Location"}
    fault = {"loc": place, "msg": {**_TEXT, "title": "Message"}, "type": {**_TEXT, "title": "Error Type"}}
    detail = {"title": "Detail", "type": "array", "items": _ref("ValidationError")}
    setup = {
        "started_at": {"type": "string", "format": "date-time"},
        "completed_at": {"type": "string", "format": "date-time"},
        "status": {"type": "string", "enum": ["starting", "succeeded", "failed"]},
        "logs": _TEXT,
    }
    health = {
        "status": {"type": "string", "enum": [str(health) for health in Health]},
        "setup": {"type": "object", "properties": setup},
        "version": {"type": "object", "additionalProperties": _TEXT},
        "user_healthcheck_error": _TEXT,
    }
    return {
        "Status": {
            "title": "Status",
            "description": "An enumeration.",
            "type": "string",
            "enum": [str(status) for status in Status],
        },
        "Calls": _calls_schema(),
        "Error": _object("Error", {"error": _titled("error", _TEXT), "status": _titled("status", _TEXT)}),
        "HTTPValidationError": _object("HTTPValidationError", {"detail": detail}),
        "ValidationError": {**_object("ValidationError", fault), "required": ["loc", "msg", "type"]},
        "HealthCheck": {**_object("HealthCheck", health), "required": ["status"]},
        "Discovery": {**_object("Discovery", {}), "additionalProperties": _TEXT},
    }


def _calls_schema() -> JsonObject:
    """The calls of models that were made for a prediction, each before its own ones."""
    moments = {
        name: _titled(name, {"type": "string", "format": "date-time"})
        for name in ("created_at", "started_at", "completed_at")
    }
    call = {
        **{name: _titled(name, _TEXT) for name in ("id", "parent", "model", "version", "error")},
        "depth": _titled("depth", {"type": "integer"}),
        "shared": _titled("shared", {"type": "integer"}),
        "status": _ref("Status"),
        **moments,
    }
    shown = {**_object("Call", call), "required": ["parent", "model", "depth", "status", "created_at"]}
    properties = {
        **{name: _titled(name, _TEXT) for name in ("id", "model")},
        "status": _ref("Status"),
        **moments,
        "calls": _titled("calls", {"type": "array", "items": shown}),
        "left_out": _titled("left_out", {"type": "integer"}),
    }
    return {**_object("Calls", properties), "required": ["id", "status", "created_at", "calls", "left_out"]}


def _operation(summary: str, operation_id: str, responses: JsonObject) -> JsonObject:
    return {"summary": summary, "operationId": operation_id, "responses": responses}


def _json(component: str | None = None) -> JsonObject:
    """A successful JSON response, of any shape unless a component describes it."""
    schema: JsonObject = {} if component is None else _ref(component)
    return {"description": "Successful Response", "content": {"application/json": {"schema": schema}}}


def _failures(*statuses: str) -> JsonObject:
    return {status: {**_json("Error"), "description": _FAILURES[status]} for status in statuses}


def _invalid() -> JsonObject:
    return {**_json("HTTPValidationError"), "description": "Validation Error"}


def _object(title: str, properties: JsonObject) -> JsonObject:
    return {"title": title, "type": "object", "properties": properties}


def _titled(name: str, schema: dict[str, Any]) -> JsonObject:
    return {"title": title_case(name), **schema}


def _ref(component: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{component}"}
