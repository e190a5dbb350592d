"""The signature of a served model, read back from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from geartrain.domain.signature.types import InputField, Kind, OutputSpec, RecordField, Signature, TypeSpec

_KINDS: Final[Mapping[str, Kind]] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
}
_KEYWORDS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "regex",
    "description": "description",
    "deprecated": "deprecated",
    "x-cog-accept": "accept",
}


def signature_of(document: Mapping[str, Any]) -> Signature | None:
    """Return the signature that an OpenAPI document of geartrain describes; None where it has no model yet."""
    schemas = document.get("components", {}).get("schemas", {})
    if "Input" not in schemas:
        return None
    inputs = schemas["Input"]
    required = inputs.get("required", ())
    properties = sorted(inputs.get("properties", {}).items(), key=lambda item: item[1].get("x-order", 0))
    fields = [_field(name, schema, schemas, required=name in required) for name, schema in properties]
    answers = document.get("paths", {}).get("/predictions", {}).get("post", {}).get("responses", {})
    streaming = "text/event-stream" in answers.get("200", {}).get("content", {})
    return Signature(tuple(fields), _output(schemas.get("Output", {}), schemas), streaming=streaming)


def _field(name: str, schema: Mapping[str, Any], schemas: Mapping[str, Any], *, required: bool) -> InputField:
    limits = {**(schema.get("items") or {}), **schema}  # a list has them for its elements
    known = {ours: limits[theirs] for theirs, ours in _KEYWORDS.items() if theirs in limits}
    if "default" in schema:
        known |= {"has_default": True, "default": schema["default"]}
    choices = _choices(schema, schemas)
    if choices is not None:
        known["choices"] = tuple(choices)
    return InputField(name, _type(schema, schemas), required=required, **known)


def _choices(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[Any] | None:
    found = _resolved(schema, schemas).get("enum")
    if found is None and isinstance(schema.get("items"), dict):
        found = _resolved(schema["items"], schemas).get("enum")
    return found if isinstance(found, list) else None


def _output(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> OutputSpec:
    if schema.get("x-cog-array-type") != "iterator":
        return OutputSpec(_type(schema, schemas))
    mode = "concatenate" if schema.get("x-cog-array-display") == "concatenate" else "iterator"
    return OutputSpec(_type(schema.get("items", {}), schemas), "concatenate" if mode == "concatenate" else "iterator")


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with what it refers to."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            return {**_resolved(schemas.get(part["$ref"].rpartition("/")[2], {}), schemas), **schema}
    for part in schema.get("allOf", ()):
        return {**part, **schema}
    return schema


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> TypeSpec:
    schema = _resolved(schema, schemas)
    nullable = bool(schema.get("nullable"))
    if "x-tensor" in schema:
        tensor = schema["x-tensor"]
        return TypeSpec("tensor", nullable, datatype=tensor["datatype"], shape=tuple(tensor["shape"]))
    if "anyOf" in schema:
        return TypeSpec("union", nullable, members=tuple(_type(part, schemas) for part in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return TypeSpec("array", nullable, items=_type(schema.get("items", {}), schemas))
    if kind == "object" and "properties" in schema:
        required, properties = schema.get("required", ()), schema["properties"]
        # A server sorts the members of its document. The list of the required ones is in the author's order.
        names = dict.fromkeys((*(name for name in required if name in properties), *properties))
        fields = [RecordField(name, _type(properties[name], schemas), name in required) for name in names]
        return TypeSpec("record", nullable, fields=tuple(fields), title=schema.get("title", ""))
    if kind == "string" and schema.get("format") == "uri":
        return TypeSpec("path", nullable)
    if kind == "string" and schema.get("x-cog-secret"):
        return TypeSpec("secret", nullable)
    return TypeSpec(_KINDS.get(str(kind), "opaque"), nullable)
