"""Schemas of types, inputs and outputs: the table of section 5 of the observed API, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.domain.signature.json_schema import (
    JsonObject,
    input_schema,
    limit,
    output_schema,
    title_case,
    type_schema,
)
from geartrain.domain.signature.types import InputField, OutputMode, OutputSpec, RecordField, TypeSpec

STRING, INTEGER = TypeSpec("string"), TypeSpec("integer")


def described(field: InputField) -> JsonObject:
    """The property of a single input."""
    properties: dict[str, JsonObject] = input_schema([field], title="Input").schema["properties"]
    return properties[field.name]


# --- every property ---


def test_every_property_has_a_title_and_its_position() -> None:
    inputs = [InputField("max_new_tokens", INTEGER), InputField("prompt", STRING)]
    assert input_schema(inputs, title="Input").schema["properties"] == {
        "max_new_tokens": {"title": "Max New Tokens", "type": "integer", "x-order": 0},
        "prompt": {"title": "Prompt", "type": "string", "x-order": 1},
    }


@pytest.mark.parametrize(
    ("name", "title"), [("n", "N"), ("top_k", "Top K"), ("imageURL", "ImageURL"), ("_x", " X"), ("größe", "Größe")]
)
def test_title_case(name: str, title: str) -> None:
    assert title_case(name) == title


@pytest.mark.parametrize(
    ("extra", "keywords"),
    [
        ({"description": "What to say"}, {"description": "What to say"}),
        ({"deprecated": True}, {"deprecated": True}),
        ({"required": False, "has_default": True, "default": "hi"}, {"default": "hi"}),
        ({"ge": 1, "le": 2.5}, {"minimum": 1, "maximum": 2.5}),
        ({"min_length": 0, "max_length": 9}, {"minLength": 0, "maxLength": 9}),
        ({"regex": "^[a-z]+$"}, {"pattern": "^[a-z]+$"}),
        ({"accept": "image/*,.pdf"}, {"x-cog-accept": "image/*,.pdf"}),
    ],
)
def test_what_stands_beside_the_type(extra: dict[str, Any], keywords: JsonObject) -> None:
    assert described(InputField("s", STRING, **extra)) == {"title": "S", "type": "string", "x-order": 0, **keywords}


@pytest.mark.parametrize(("given", "written"), [(1.0, "1"), (-0.0, "0"), (0.5, "0.5"), (3, "3"), (1e300, "1e+300")])
def test_limits_are_written_as_cog_writes_them(given: float, written: str) -> None:
    assert repr(limit(given)) == written


# --- types ---


@pytest.mark.parametrize(
    ("spec", "schema"),
    [
        (INTEGER, {"type": "integer"}),
        (TypeSpec("number"), {"type": "number"}),
        (STRING, {"type": "string"}),
        (TypeSpec("boolean"), {"type": "boolean"}),
        (TypeSpec("path"), {"type": "string", "format": "uri"}),
        (TypeSpec("file"), {"type": "string", "format": "uri"}),
        (TypeSpec("secret"), {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}),
        (TypeSpec("array", items=INTEGER), {"type": "array", "items": {"type": "integer"}}),
        (TypeSpec("array"), {"type": "array", "items": {}}),
        (TypeSpec("object"), {"type": "object"}),
        (TypeSpec("opaque"), {}),
        (TypeSpec("union", members=(INTEGER, STRING)), {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (TypeSpec("string", nullable=True), {"type": "string", "nullable": True}),
        (
            TypeSpec("union", members=(INTEGER, STRING), nullable=True),
            {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True},
        ),
    ],
)
def test_types(spec: TypeSpec, schema: JsonObject) -> None:
    assert type_schema(spec) == schema
    assert described(InputField("x", spec)) == {"title": "X", "x-order": 0, **schema}


def test_record() -> None:
    fields = (RecordField("left_eye", INTEGER), RecordField("name", STRING, required=False))
    schema = {
        "type": "object",
        "title": "Face",
        "properties": {
            "left_eye": {"title": "Left Eye", "type": "integer"},
            "name": {"title": "Name", "type": "string"},
        },
        "required": ["left_eye"],
    }
    assert type_schema(TypeSpec("record", title="Face", fields=fields)) == schema
    closed = TypeSpec("record", title="Face", fields=fields, closed=True)
    assert type_schema(closed) == {**schema, "additionalProperties": False}
    assert described(InputField("face_box", closed))["title"] == "Face Box"


def test_schemas_do_not_share_state() -> None:
    type_schema(STRING)["title"] = "mine"
    assert type_schema(STRING) == {"type": "string"}


# --- choices ---


@pytest.mark.parametrize("literal", [True, False])
def test_choices_are_a_component_of_the_parameter_s_name(*, literal: bool) -> None:
    colors = ("red", "blue")
    field = (
        InputField("color", TypeSpec("string", choices=colors))
        if literal
        else InputField("color", STRING, choices=colors)
    )
    schema = input_schema([field], title="Input")
    assert schema.schema["properties"]["color"] == {"allOf": [{"$ref": "#/components/schemas/color"}], "x-order": 0}
    assert schema.components == {
        "color": {"title": "color", "description": "An enumeration.", "enum": ["red", "blue"], "type": "string"}
    }


def test_choices_with_everything_beside_them() -> None:
    field = InputField(
        "n", TypeSpec("integer", nullable=True), required=False, has_default=True, default=2, choices=(1, 2)
    )
    assert described(field) == {
        "allOf": [{"$ref": "#/components/schemas/n"}],
        "nullable": True,
        "default": 2,
        "x-order": 0,
    }


def test_choices_of_mixed_types_have_no_type() -> None:
    schema = input_schema([InputField("n", TypeSpec("opaque", choices=(1, "auto")))], title="Input")
    assert schema.components["n"] == {"title": "n", "description": "An enumeration.", "enum": [1, "auto"]}


def test_choices_are_listed_once() -> None:
    choices = (1, True, 1.0, "1", [1], [1], None)
    schema = input_schema([InputField("n", TypeSpec("opaque", choices=choices))], title="Input")
    assert repr(schema.components["n"]["enum"]) == "[1, True, '1', [1], None]"


def test_choices_of_a_list_describe_its_elements() -> None:
    schema = input_schema([InputField("c", TypeSpec("array", items=STRING), choices=("a", "b"))], title="Input")
    reference = {"allOf": [{"$ref": "#/components/schemas/c"}]}
    assert schema.schema["properties"]["c"] == {"title": "C", "type": "array", "items": reference, "x-order": 0}
    assert schema.components["c"]["type"] == "string"


def test_choices_inside_another_type_stay_there() -> None:
    spec = TypeSpec("array", items=TypeSpec("string", choices=("a", "b"), nullable=True))
    assert type_schema(spec)["items"] == {"type": "string", "enum": ["a", "b", None], "nullable": True}


def test_choices_whose_name_is_taken_get_another() -> None:
    schema = input_schema([InputField("Status", STRING, choices=("a", "b"))], title="Input", reserved={"Status"})
    assert list(schema.components) == ["Input.Status"]
    reference = {"$ref": "#/components/schemas/Input.Status"}
    assert schema.schema["properties"]["Status"] == {"allOf": [reference], "x-order": 0}


def test_choices_whose_name_openapi_refuses_are_written_in_place() -> None:
    schema = input_schema([InputField("größe", INTEGER, choices=(1, 2))], title="Input")
    assert schema.components == {}
    assert schema.schema["properties"]["größe"]["allOf"][0]["enum"] == [1, 2]


# --- required, defaults, null ---


def test_required_lists_what_is_required_in_order() -> None:
    inputs = [InputField("z", STRING), InputField("o", STRING, required=False), InputField("a", STRING)]
    assert input_schema(inputs, title="Input").schema["required"] == ["z", "a"]


def test_required_is_left_out_when_nothing_is() -> None:
    assert input_schema([], title="Input").schema == {"title": "Input", "type": "object", "properties": {}}


def test_a_default_of_none_is_written() -> None:
    field = InputField("s", TypeSpec("string", nullable=True), required=False, has_default=True)
    assert described(field) == {"title": "S", "type": "string", "nullable": True, "default": None, "x-order": 0}


def test_a_secret_may_default_to_none_without_being_optional() -> None:
    schema = described(InputField("key", TypeSpec("secret"), required=False, has_default=True))
    assert schema["default"] is None
    assert schema["nullable"] is True


def test_the_default_of_a_secret_is_not_published() -> None:
    assert "default" not in described(
        InputField("key", TypeSpec("secret"), required=False, has_default=True, default="hunter2")
    )


# --- output ---


@pytest.mark.parametrize(
    ("mode", "schema"),
    [
        ("value", {"type": "string"}),
        ("iterator", {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}),
        (
            "concatenate",
            {
                "type": "array",
                "items": {"type": "string"},
                "x-cog-array-type": "iterator",
                "x-cog-array-display": "concatenate",
            },
        ),
    ],
)
def test_output(mode: OutputMode, schema: JsonObject) -> None:
    assert output_schema(OutputSpec(STRING, mode), title="Output") == {**schema, "title": "Output"}


def test_output_of_a_record_takes_the_title_of_its_place() -> None:
    record = TypeSpec("record", title="Face", fields=(RecordField("x", INTEGER),))
    assert output_schema(OutputSpec(record), title="TrainingOutput")["title"] == "TrainingOutput"
