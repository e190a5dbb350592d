"""JSON-Schema-shaped descriptions of a signature, in the dialect of OpenAPI 3.0 and with Cog's `x-` keywords.

One function per row group of the table in section 5 of the observed API. The results are plain JSON values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.domain.tensors.nested_json import ELEMENTS, INTEGERS
from geartrain.domain.tensors.tensor import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from geartrain.domain.signature.types import InputField, Kind, OutputSpec, TypeSpec

JsonObject = dict[str, Any]

_KINDS: dict[Kind, JsonObject] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "path": {"type": "string", "format": "uri"},
    "file": {"type": "string", "format": "uri"},
    "secret": {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True},
    "object": {"type": "object"},
    "opaque": {},
}
_COMPONENT_NAME = re.compile(r"[A-Za-z0-9._-]+")  # OpenAPI's names of components
_EXACT_FLOAT = 2**53  # integers up to here are the same number as a float


class ObjectSchema(msgspec.Struct, frozen=True):
    """The schema of an input object, and the components that it refers to."""

    schema: JsonObject
    components: dict[str, JsonObject]


def title_case(name: str) -> str:
    """`max_new_tokens` -> `Max New Tokens`."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split("_"))


def limit(number: float) -> float | int:
    """A limit as Cog writes it: 1.0 is written 1."""
    return int(number) if abs(number) <= _EXACT_FLOAT and number == int(number) else number


def type_schema(spec: TypeSpec) -> JsonObject:
    """The schema of a type, without the title that its place gives it."""
    if spec.form in {"body", "response", "any"}:
        return {"description": "Any JSON value; text stands for itself."}
    if spec.kind == "array":
        schema: JsonObject = {"type": "array", "items": type_schema(spec.items) if spec.items is not None else {}}
    elif spec.kind == "union":
        schema = {"anyOf": [type_schema(member) for member in spec.members]}
    elif spec.kind == "record":
        schema = _record_schema(spec)
    elif spec.kind == "tensor":
        schema = _tensor_schema(spec)
    else:
        schema = dict(_KINDS[spec.kind])
        if spec.values is not None:
            schema["additionalProperties"] = type_schema(spec.values)
    if spec.choices is not None:
        schema["enum"] = _distinct(spec.choices)
    if spec.nullable:
        schema["nullable"] = True
        if spec.choices is not None:
            schema["enum"].append(None)  # OpenAPI 3.0.3: `enum` decides, whatever `nullable` says
    return schema


def _record_schema(spec: TypeSpec) -> JsonObject:
    properties = {field.name: {**type_schema(field.type), "title": title_case(field.name)} for field in spec.fields}
    required = [field.name for field in spec.fields if field.required]
    return {
        "type": "object",
        **({"title": spec.title} if spec.title else {}),
        "properties": properties,
        **({"required": required} if required else {}),
        **({"additionalProperties": False} if spec.closed else {}),
    }


def _tensor_schema(spec: TypeSpec) -> JsonObject:
    """Nested arrays. That rows of a variable size have to be equally long cannot be said in a schema."""
    schema: JsonObject = {"type": ELEMENTS[spec.datatype]}
    limits = INTEGERS.get(spec.datatype)
    if limits is not None:
        schema |= {"minimum": limits[0], "maximum": limits[1]}
    if spec.variadic:
        schema = {
            "description": f"A tensor of {spec.datatype} in nested arrays of any depth.",
            "anyOf": [schema, {"type": "array", "items": {}}],
        }
    else:
        for size in reversed(spec.shape):
            sizes = {} if size == VARIABLE else {"minItems": size, "maxItems": size}
            schema = {"type": "array", "items": schema, **sizes}
    return {**schema, "x-tensor": {"datatype": spec.datatype, "shape": list(spec.shape)}}


def input_schema(inputs: Sequence[InputField], *, title: str, reserved: Collection[str] = ()) -> ObjectSchema:
    """The schema of the object that holds `inputs`, in the order of the signature.

    Choices become components that carry the parameter's name. A name that is in `reserved`, or that OpenAPI does not
    admit for a component, is changed, or the choices are written where they are used.
    """
    components: dict[str, JsonObject] = {}
    properties: dict[str, JsonObject] = {}
    for position, field in enumerate(inputs):
        choices = _choices_schema(field)
        if choices is None:
            kind: JsonObject = {**type_schema(field.type), "title": title_case(field.name)}
        elif _COMPONENT_NAME.fullmatch(field.name):
            name = field.name if field.name not in reserved else f"{title}.{field.name}"
            components[name] = choices
            kind = _with_choices(field, {"$ref": f"#/components/schemas/{name}"})
        else:
            kind = _with_choices(field, choices)
        properties[field.name] = {**_limited(kind, field), **_annotations(field, position)}
    required = [field.name for field in inputs if field.required]
    schema: JsonObject = {"title": title, "type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return ObjectSchema(schema, components)


def _choices_schema(field: InputField) -> JsonObject | None:
    if field.choices is None and field.type.choices is None:
        return None
    of_items = field.choices is not None and field.type.items is not None
    spec = field.type.items if of_items and field.type.items is not None else field.type
    plain = type_schema(msgspec.structs.replace(spec, nullable=False, choices=None))
    values = field.choices if field.choices is not None else field.type.choices
    return {"title": field.name, "description": "An enumeration.", "enum": _distinct(values or ()), **plain}


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions, which an `enum` must not have. 1 equals 1.0, but neither equals true."""
    seen: dict[object, Any] = {}
    for value in values:
        container = isinstance(value, (list, dict))
        key = msgspec.json.encode(value, order="sorted") if container else (isinstance(value, bool), value)
        seen.setdefault(key, value)
    return list(seen.values())


def _with_choices(field: InputField, choices: JsonObject) -> JsonObject:
    """Put choices where they belong: on the elements of a list, else on the value itself."""
    if field.choices is not None and field.type.items is not None:
        kind: JsonObject = {"title": title_case(field.name), "type": "array", "items": {"allOf": [choices]}}
    else:
        kind = {"allOf": [choices]}
    return {**kind, "nullable": True} if field.type.nullable else kind


def _limited(schema: JsonObject, field: InputField) -> JsonObject:
    """The schema of a parameter with its limits, which are those of the elements of a list."""
    limits: JsonObject = {
        "minimum": None if field.ge is None else limit(field.ge),
        "maximum": None if field.le is None else limit(field.le),
        "minLength": field.min_length,
        "maxLength": field.max_length,
        "pattern": field.regex,
    }
    limits = {keyword: value for keyword, value in limits.items() if value is not None}
    if limits and field.type.items is not None:
        return {**schema, "items": {**schema["items"], **limits}}
    return {**schema, **limits}


def _annotations(field: InputField, position: int) -> JsonObject:
    """Return the annotations of a property beside its type. The default of a secret stays with the model."""
    schema: JsonObject = {"x-order": position}
    if field.description is not None:
        schema["description"] = field.description
    if field.has_default and (field.default is None or field.type.kind != "secret"):
        schema["default"] = field.default
        if field.default is None:
            schema["nullable"] = True  # `Secret` alone admits it without being Optional
    if field.deprecated:
        schema["deprecated"] = True
    if field.accept is not None:
        schema["x-cog-accept"] = field.accept
    return schema


def output_schema(output: OutputSpec, *, title: str) -> JsonObject:
    """The schema of what a runner gives; a stream is described as the array of its values."""
    schema = type_schema(output.type)
    if output.mode != "value":
        schema = {"type": "array", "items": schema, "x-cog-array-type": "iterator"}
    if output.mode == "concatenate":
        schema["x-cog-array-display"] = "concatenate"
    return {**schema, "title": title}
