"""A model as a tool: its name, its description, and the JSON Schemas (2020-12) of its inputs and of its output."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

from geartrain.apis.mcp.messages import INVALID_PARAMS, Fault
from geartrain.domain.signature.constraints import holds
from geartrain.domain.signature.json_schema import JsonObject, input_schema, type_schema
from geartrain.domain.signature.types import InputField, Signature

PAGE: Final = 100  # tools of a page of the list
_FILE: Final = "A file, as an https: or data: URL."
_RESTING: Final = "This model rests: the first call loads it, and the list then says which inputs it takes."
_MAPS: Final = frozenset({"properties"})  # keywords whose members are schemas
_LISTS: Final = frozenset({"anyOf"})


def describe_tool(name: str, signature: Signature | None) -> JsonObject:
    """Return a tool as `tools/list` has it; a model that rests has no `signature` yet."""
    if signature is None:
        return {"name": name, "description": _RESTING, "inputSchema": {"type": "object"}}
    tool: JsonObject = {
        "name": name,
        "description": signature.description or f"Run the model {name}.",
        "inputSchema": tool_input(signature.inputs),
    }
    if is_structured(signature):
        tool["outputSchema"] = _plain(type_schema(signature.output.type), {})
    return tool


def is_structured(signature: Signature) -> bool:
    """True if a result has `structuredContent`: the output is one record."""
    output = signature.output
    return output.mode == "value" and output.type.kind == "record" and not output.type.nullable


def tool_input(inputs: Sequence[InputField]) -> JsonObject:
    """Return the schema of the arguments."""
    given = input_schema(inputs, title="Input")
    schema: JsonObject = _plain(given.schema, given.components)
    for field in inputs:
        if holds(field.type, "path", "file"):
            shown = schema["properties"][field.name]
            about = shown.get("description", "").rstrip(" .")
            shown["description"] = f"{about}. {_FILE}" if about else _FILE
    return {**schema, "additionalProperties": False}


def _plain(schema: Any, components: JsonObject) -> Any:
    """Turn a schema of OpenAPI 3.0 into one of JSON Schema 2020-12, without references, titles and `x-` keywords."""
    plain: JsonObject = {}
    for keyword, value in schema.items():
        if keyword == "$ref":
            plain |= _plain(components[value.rpartition("/")[2]], components)
            plain.pop("description", None)  # "An enumeration."
        elif keyword == "allOf":
            plain |= _plain(value[0], components)
        elif keyword in _MAPS:
            plain[keyword] = {name: _plain(each, components) for name, each in value.items()}
        elif keyword in _LISTS:
            plain[keyword] = [_plain(each, components) for each in value]
        elif keyword == "items" or (keyword == "additionalProperties" and isinstance(value, dict)):
            plain[keyword] = _plain(value, components)
        elif keyword not in {"nullable", "title"} and not keyword.startswith("x-"):
            plain[keyword] = value
    return _admit_null(plain) if schema.get("nullable") else plain


def _admit_null(schema: JsonObject) -> JsonObject:
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def encode_cursor(name: str) -> str:
    """Return the cursor of the page behind a tool."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_cursor(cursor: str) -> str:
    """Return the last tool of the page before. Raises `Fault`."""
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Fault(INVALID_PARAMS, "'params.cursor' is none that this server has given: begin without it") from None
