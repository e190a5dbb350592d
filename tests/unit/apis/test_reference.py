"""The document of a whole server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openapi_spec_validator
import pytest

from geartrain.apis import openapi
from geartrain.apis.reference import ModelPart, OtherPath, reference
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec

TEXT = Signature(
    inputs=(
        InputField("text", TypeSpec("string"), choices=("a", "b")),
        InputField("flags", TypeSpec("array", items=TypeSpec("boolean"))),
        InputField("count", TypeSpec("integer")),
    ),
    output=OutputSpec(TypeSpec("string")),
    description="Says things.",
)


def part(name: str, prefix: str) -> ModelPart:
    return ModelPart(name, prefix, openapi.document(TEXT, title=name, version="1"), TensorView(TEXT))


def test_models_with_equal_names_of_components_do_not_meet() -> None:
    document = reference([part("one", "/models/one"), part("two & {3}", "/models/two%20%26%20%7B3%7D")], version="1")
    openapi_spec_validator.validate(json.loads(json.dumps(document)))
    assert {"one.Input", "one.text", "model-1.Input", "model-1.text"} <= set(document["components"]["schemas"])
    asked = document["paths"]["/models/one/predictions"]["post"]
    assert asked["tags"] == ["one"]
    assert "#/components/schemas/one.PredictionRequest" in json.dumps(asked)
    assert "/v2/models/two%20%26%20%7B3%7D/infer" in document["paths"]
    assert [tag["name"] for tag in document["tags"]] == ["one", "two & {3}", "this server"]
    assert document["tags"][0]["description"] == "Says things."


def test_examples_are_of_the_models_own_tensors() -> None:
    paths = reference([part("one", "")], version="1")["paths"]
    example = paths["/v2/models/one/infer"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert example["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["text"]},
        {"name": "flags", "datatype": "BOOL", "shape": [1], "data": [True]},
        {"name": "count", "datatype": "INT64", "shape": [1], "data": [0]},
    ]
    assert "/predictions" in paths


def test_example_of_a_model_is_the_body_of_its_requests() -> None:
    given = {"text": "b", "count": 7}
    others = [OtherPath("post", "/score", "azure", dict), OtherPath("get", "/ping", "azure")]
    own = msgspec.structs.replace(part("one", ""), example=given)
    paths = reference([own], version="1", others=others)["paths"]
    openapi_spec_validator.validate(json.loads(json.dumps(reference([own], version="1", others=others))))
    for path, method in (("/predictions", "post"), ("/predictions/{prediction_id}", "put")):
        assert paths[path][method]["requestBody"]["content"]["application/json"]["example"] == {"input": given}
    assert "requestBody" not in paths["/predictions/{prediction_id}/cancel"]["post"]
    body = paths["/score"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"] == {"text": "b", "flags": True, "count": 7}


BODIES = [
    ({"body": {"a": 1}}, {"a": 1}),
    ({"body": '"text"', "content_type": "application/json"}, "text"),
    ({"body": "text", "content_type": "text/plain"}, "text"),
    ({"body": "{", "content_type": "application/json"}, "{"),
]


@pytest.mark.parametrize(("given", "body"), BODIES)
def test_example_of_a_model_that_takes_whole_requests(given: dict[str, Any], body: Any) -> None:
    whole = msgspec.structs.replace(part("one", ""), example=given, takes_request=True)
    paths = reference([whole], version="1", others=[OtherPath("post", "/score", "azure", dict)])["paths"]
    assert paths["/score"]["post"]["requestBody"]["content"]["application/json"]["example"] == body


def test_training_has_no_tensors_and_unloaded_models_are_named() -> None:
    document = openapi.document(None, training=TEXT, title="t", version="1")
    made = reference([ModelPart("t", "", document, None)], version="1", missing=["x", "y"])
    openapi_spec_validator.validate(json.loads(json.dumps(made)))
    assert "/trainings" in made["paths"]
    assert not [path for path in made["paths"] if path.startswith("/v2/models/t")]
    assert made["info"]["description"].endswith("Not loaded, and so not described here: x, y.\n")


def test_a_model_may_be_called_server() -> None:
    document = reference([part("server", "")], version="1")
    openapi_spec_validator.validate(json.loads(json.dumps(document)))
