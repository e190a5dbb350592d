"""The OpenAPI document: what section 5 of the observed API names, and that the whole of it is valid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from openapi_spec_validator import OpenAPIV30SpecValidator

from geartrain.apis.openapi import document
from geartrain.domain.signature.types import ANY_TENSORS, DeclaredTensor, InputField, OutputSpec, Signature, TypeSpec
from tests.support.signature_strategies import JSON_SCHEMA_PATTERNS, signatures

if TYPE_CHECKING:
    from geartrain.domain.signature.json_schema import JsonObject

STRING = TypeSpec("string")
PLAIN = Signature((InputField("text", STRING),), OutputSpec(STRING))
MODES = InputField("mode", STRING, choices=("a", "b"))


def made(signature: Signature | None = PLAIN, training: Signature | None = None) -> JsonObject:
    return document(signature, title="hello", version="1.2.3", training=training)


def schemas(described: JsonObject) -> dict[str, JsonObject]:
    components: dict[str, JsonObject] = described["components"]["schemas"]
    return components


def test_head() -> None:
    described = made()
    assert described["openapi"] == "3.0.2"
    assert described["info"] == {"title": "hello", "version": "1.2.3"}


def test_the_runner_s_description_is_the_document_s() -> None:
    assert made(msgspec.structs.replace(PLAIN, description="Says hello."))["info"]["description"] == "Says hello."


def test_components() -> None:
    named = schemas(made())
    assert {
        "Input",
        "Output",
        "PredictionRequest",
        "PredictionResponse",
        "Status",
        "HTTPValidationError",
        "ValidationError",
    } <= set(named)
    assert named["Input"]["properties"] == {"text": {"title": "Text", "type": "string", "x-order": 0}}
    assert named["Output"] == {"title": "Output", "type": "string"}


def test_prediction_request() -> None:
    request = schemas(made())["PredictionRequest"]["properties"]
    assert request["input"] == {"$ref": "#/components/schemas/Input"}
    assert request["id"] == {"title": "Id", "type": "string"}
    assert {"webhook", "webhook_events_filter", "context", "created_at"} <= set(request)


def test_prediction_response() -> None:
    response = schemas(made())["PredictionResponse"]["properties"]
    fields = "input output id version created_at started_at completed_at status error logs metrics"
    assert set(response) == set(fields.split())
    assert response["output"] == {"$ref": "#/components/schemas/Output"}
    assert response["status"] == {"$ref": "#/components/schemas/Status"}


def test_list_of_a_server_with_a_store() -> None:
    listed = document(PLAIN, title="hello", version="1.2.3", training=PLAIN, is_listed=True)
    OpenAPIV30SpecValidator(listed).validate()
    for path in ("/predictions", "/trainings"):
        assert "get" not in made(training=PLAIN)["paths"][path]
        operation = listed["paths"][path]["get"]
        assert [parameter["name"] for parameter in operation["parameters"]] == ["status", "limit", "cursor"]
    page = schemas(listed)["PredictionList"]
    assert page["required"] == ["results", "next"]
    assert page["properties"]["results"]["items"] == {"$ref": "#/components/schemas/PredictionSummary"}


def test_status() -> None:
    status = schemas(made())["Status"]
    assert status["enum"] == ["starting", "processing", "succeeded", "failed", "canceled"]
    assert status["type"] == "string"


def test_validation_errors() -> None:
    named = schemas(made())
    items = named["HTTPValidationError"]["properties"]["detail"]["items"]
    assert items == {"$ref": "#/components/schemas/ValidationError"}
    assert named["ValidationError"]["required"] == ["loc", "msg", "type"]


@pytest.mark.parametrize(
    ("path", "method", "operation_id", "statuses"),
    [
        ("/", "get", "root__get", "200"),
        ("/health-check", "get", "healthcheck_health_check_get", "200"),
        ("/openapi.json", "get", "openapi_openapi_json_get", "200"),
        ("/docs", "get", "docs_docs_get", "200"),
        ("/shutdown", "post", "shutdown_shutdown_post", "200"),
        ("/predictions", "post", "predict_predictions_post", "200 202 400 406 409 413 415 422 503"),
        ("/predictions/{prediction_id}", "get", "show_predictions__prediction_id__get", "200 404"),
        (
            "/predictions/{prediction_id}",
            "put",
            "predict_idempotent_predictions__prediction_id__put",
            "200 202 400 406 409 413 415 422 503",
        ),
        (
            "/predictions/{prediction_id}/calls",
            "get",
            "calls_predictions__prediction_id__calls_get",
            "200 404",
        ),
        (
            "/predictions/{prediction_id}/cancel",
            "post",
            "cancel_predictions__prediction_id__cancel_post",
            "200 404 422",
        ),
    ],
)
def test_endpoints(path: str, method: str, operation_id: str, statuses: str) -> None:
    described = made()
    assert len(described["paths"]) == 9
    methods = ["get", "put"] if path == "/predictions/{prediction_id}" else [method]
    assert list(described["paths"][path]) == methods
    operation = described["paths"][path][method]
    assert operation["operationId"] == operation_id
    assert list(operation["responses"]) == statuses.split()


@pytest.mark.parametrize("noun", ["prediction", "training"])
def test_one_can_be_asked_for_by_its_id(noun: str) -> None:
    show = made(training=PLAIN)["paths"][f"/{noun}s/{{{noun}_id}}"]["get"]
    assert show["operationId"] == f"show_{noun}s__{noun}_id__get"
    (parameter,) = show["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == (f"{noun}_id", "path", True)
    shown = {status: each["content"]["application/json"]["schema"] for status, each in show["responses"].items()}
    assert shown == {
        "200": {"$ref": f"#/components/schemas/{noun.capitalize()}Response"},
        "404": {"$ref": "#/components/schemas/Error"},
    }
    assert "requestBody" not in show


def test_invalid_input_is_described() -> None:
    answer = made()["paths"]["/predictions"]["post"]["responses"]["422"]
    reference = {"$ref": "#/components/schemas/HTTPValidationError"}
    assert answer["content"]["application/json"]["schema"] == reference


def test_streaming_is_said_where_it_is_there() -> None:
    streaming = made(msgspec.structs.replace(PLAIN, streaming=True))["paths"]
    for operation in (streaming["/predictions"]["post"], streaming["/predictions/{prediction_id}"]["put"]):
        assert operation["x-cog-streaming"] is True
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    plain = made()["paths"]["/predictions"]["post"]
    assert "x-cog-streaming" not in plain
    assert set(plain["responses"]["200"]["content"]) == {"application/json"}


def test_trainings_without_predictions() -> None:
    described = made(None, training=msgspec.structs.replace(PLAIN, description="Learn."))
    OpenAPIV30SpecValidator(described).validate()
    assert described["info"]["description"] == "Learn."
    assert "/predictions" not in described["paths"]
    assert "/trainings" in described["paths"]
    assert not {"Input", "Output", "PredictionRequest"} & set(schemas(described))


def test_training_has_variants_of_its_own() -> None:
    streaming = msgspec.structs.replace(PLAIN, streaming=True)
    described = made(streaming, training=Signature((InputField("steps", TypeSpec("integer")),), OutputSpec(STRING)))
    named, paths = schemas(described), described["paths"]
    assert {"TrainingInput", "TrainingOutput", "TrainingRequest", "TrainingResponse"} <= set(named)
    assert list(named["TrainingInput"]["properties"]) == ["steps"]
    assert named["TrainingRequest"]["properties"]["input"] == {"$ref": "#/components/schemas/TrainingInput"}
    assert {"/trainings", "/trainings/{training_id}", "/trainings/{training_id}/cancel"} <= set(paths)
    assert paths["/trainings"]["post"]["operationId"] == "train_trainings_post"
    assert "x-cog-streaming" not in paths["/trainings"]["post"]
    assert not any("Training" in name for name in schemas(made()))


def test_equal_names_of_choices_do_not_collide() -> None:
    training = Signature((msgspec.structs.replace(MODES, choices=("c", "d")),), OutputSpec(STRING))
    named = schemas(made(Signature((MODES,), OutputSpec(STRING)), training=training))
    assert named["mode"]["enum"] == ["a", "b"]
    assert named["TrainingInput.mode"]["enum"] == ["c", "d"]


def test_declared_tensors_of_a_model_that_takes_any() -> None:
    tensors = InputField("tensors", TypeSpec("object", nullable=True, form="tensors"), required=False)
    declared = (DeclaredTensor("a", "FP32", (-1, 2)), DeclaredTensor("words", "BYTES", (1,)))
    described = made(Signature((tensors,), OutputSpec(ANY_TENSORS), contract="tensors", open_inputs=declared))
    assert list(OpenAPIV30SpecValidator(_restated(described)).iter_errors()) == []
    shown = schemas(described)["Input"]["properties"]["tensors"]["properties"]
    assert {name: [each.get("x-tensor") for each in schema["anyOf"]] for name, schema in shown.items()} == {
        "a": [{"datatype": "FP32", "shape": [-1, 2]}, None],
        "words": [{"datatype": "BYTES", "shape": [1]}, None],
    }


@pytest.mark.parametrize("name", ["Input", "Output", "Status", "PredictionRequest", "Error"])
def test_choices_never_hide_a_component_of_the_envelope(name: str) -> None:
    described = made(Signature((msgspec.structs.replace(MODES, name=name),), OutputSpec(STRING)))
    assert schemas(described)[name] == schemas(made())[name] or name == "Input"
    assert schemas(described)[f"Input.{name}"]["enum"] == ["a", "b"]


@settings(max_examples=20)
@given(signatures(JSON_SCHEMA_PATTERNS), signatures(JSON_SCHEMA_PATTERNS))
def test_the_document_is_valid_for_any_signature(signature: Signature, training: Signature) -> None:
    described = made(signature, training=training)
    assert list(OpenAPIV30SpecValidator(_restated(described)).iter_errors()) == []
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', msgspec.json.encode(described).decode()))
    assert references <= set(schemas(described))


def _restated(described: JsonObject) -> Any:
    """The document as a client reads it."""
    return msgspec.json.decode(msgspec.json.encode(described))


def test_files_may_come_in_a_form() -> None:
    path = TypeSpec("path")
    inputs = (
        InputField("image", path, description="A picture"),
        InputField("more", TypeSpec("array", items=path)),
        InputField("either", TypeSpec("union", members=(path, TypeSpec("integer")))),
        InputField("times", TypeSpec("integer")),
    )
    described = made(Signature(inputs, OutputSpec(STRING)), training=PLAIN)
    for operation in (
        described["paths"]["/predictions"]["post"],
        described["paths"]["/predictions/{prediction_id}"]["put"],
    ):
        content = operation["requestBody"]["content"]
        assert list(content) == ["application/json", "multipart/form-data"]
        form = content["multipart/form-data"]["schema"]
        own = schemas(described)["Input"]
        assert form["required"] == own["required"]
        assert form["properties"]["image"] == {**own["properties"]["image"], "format": "binary"}
        assert form["properties"]["more"]["items"] == {"type": "string", "format": "binary"}
        assert {name: form["properties"][name] for name in ("either", "times")} == {
            name: own["properties"][name] for name in ("either", "times")
        }
        assert own["properties"]["image"]["format"] == "uri"
    assert list(described["paths"]["/trainings"]["post"]["requestBody"]["content"]) == ["application/json"]
    OpenAPIV30SpecValidator(described).validate()


def test_only_file_may_come_alone() -> None:
    described = made(Signature((InputField("image", TypeSpec("path")), MODES), OutputSpec(STRING)))
    content = described["paths"]["/predictions"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/json", "multipart/form-data", "application/octet-stream"]
    assert content["application/octet-stream"] == {"schema": {"type": "string", "format": "binary"}}
    assert list(made()["paths"]["/predictions"]["post"]["requestBody"]["content"]) == ["application/json"]
