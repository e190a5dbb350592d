"""Checks that what `Input()` says makes sense for the type, and makes the JSON form of a default."""

from __future__ import annotations

import enum
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from geartrain.authoring.inputs import FieldInfo
from geartrain.authoring.values import MASK, Secret
from geartrain.domain.signature.types import Kind, TypeSpec, nested_array
from geartrain.domain.tensors.tensor import describe_shape
from geartrain.worker.loading.annotations import plain_scalar
from geartrain.worker.loading.coders import encoder_of

_WORDS: dict[Kind, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "path": "a path",
    "file": "a path",
    "secret": "a secret",
    "object": "a dict",
    "array": "a list",
    "record": "an object with its fields",
    "union": "of one of its types",
    "opaque": "a JSON value",
    "tensor": "a tensor",
}


class ConstraintError(ValueError):
    """`Input()` says something that cannot be meant; the message is half a sentence about the parameter."""


def check_settings(info: FieldInfo, spec: TypeSpec) -> None:
    """Check everything but the default. Raises `ConstraintError`."""
    kind = _element(spec).kind
    _check_bounds(info, kind)
    _check_lengths(info, kind)
    if info.regex is not None:
        if kind != "string":
            raise ConstraintError(f"regex is for strings, and it is {_WORDS[kind]}")
        try:
            re.compile(info.regex)
        except (re.error, TypeError) as error:
            raise ConstraintError(f"regex={info.regex!r} is no regular expression: {error}") from error
    if info.choices is not None:
        _check_choices(info, spec)
    if info.accept is not None and kind not in {"path", "file"}:
        raise ConstraintError(f"accept is only valid on Path or File inputs, and it is {_WORDS[kind]}")
    if info.accept is not None and not isinstance(info.accept, str):
        raise ConstraintError(f"accept={info.accept!r} must be a string, such as 'image/*,.pdf'")


def _check_bounds(info: FieldInfo, kind: Kind) -> None:
    for name, bound in (("ge", info.ge), ("le", info.le)):
        if bound is None:
            continue
        if kind not in {"integer", "number"}:
            raise ConstraintError(f"{name} is for numbers, and it is {_WORDS[kind]}")
        if type(bound) not in {int, float} or not math.isfinite(bound):
            raise ConstraintError(f"{name}={bound!r} must be a finite number")
    if info.ge is not None and info.le is not None and info.ge > info.le:
        raise ConstraintError(f"ge={info.ge} is above le={info.le}: no value could be right")


def _check_lengths(info: FieldInfo, kind: Kind) -> None:
    for name, length in (("min_length", info.min_length), ("max_length", info.max_length)):
        if length is None:
            continue
        if kind != "string":
            raise ConstraintError(f"{name} is for strings, and it is {_WORDS[kind]}")
        if type(length) is not int or length < 0:
            raise ConstraintError(f"{name}={length!r} must be a whole number of at least 0")
    if info.min_length is not None and info.max_length is not None and info.min_length > info.max_length:
        raise ConstraintError(f"min_length={info.min_length} is above max_length={info.max_length}")


def _check_choices(info: FieldInfo, spec: TypeSpec) -> None:
    element = _element(spec)
    if element.choices is not None:
        raise ConstraintError("choices repeats what its Literal or Enum says: leave it out")
    if element.kind not in {"string", "integer", "number"}:
        raise ConstraintError(f"choices is for strings and numbers, and it is {_WORDS[element.kind]}")
    if not info.choices:
        raise ConstraintError("choices is empty: no value could be right")
    others = [name for name in ("ge", "le", "min_length", "max_length", "regex") if getattr(info, name) is not None]
    if others:
        raise ConstraintError(f"choices already says what is allowed: leave out {' and '.join(others)}")
    for choice in json_choices(info.choices):
        if not conforms(element, choice):
            raise ConstraintError(f"{choice!r} of its choices is not {_WORDS[element.kind]}")


def json_choices(choices: Iterable[Any]) -> tuple[Any, ...]:
    """The JSON values of choices, each once, in order."""
    return tuple(dict.fromkeys(choice.value if isinstance(choice, enum.Enum) else choice for choice in choices))


def check_default(info: FieldInfo, spec: TypeSpec, default: Any) -> None:
    """Check a default, in its JSON form, against the type and the settings. Raises `ConstraintError`."""
    if default is None:
        return
    if not conforms(spec, default):
        raise ConstraintError(f"its default {default!r} is not {_described(spec)}")
    values = default if spec.kind == "array" else [default]
    for value in values:
        complaint = _complaint(info, value)
        if complaint:
            raise ConstraintError(f"its default {value!r} {complaint}")


def _described(spec: TypeSpec) -> str:
    choices = spec.choices
    if spec.kind == "tensor":
        return f"a tensor of {spec.datatype} and the shape {describe_shape(spec)}"
    return f"one of {', '.join(map(repr, choices))}" if choices else _WORDS[spec.kind]


def _complaint(info: FieldInfo, value: Any) -> str:
    """Return the complaint of the settings about a value, empty if there is none."""
    checks = (
        (info.ge is not None and value < info.ge, f"is below ge={info.ge}"),
        (info.le is not None and value > info.le, f"is above le={info.le}"),
        (info.min_length is not None and len(value) < info.min_length, f"is shorter than min_length={info.min_length}"),
        (info.max_length is not None and len(value) > info.max_length, f"is longer than max_length={info.max_length}"),
        (info.regex is not None and not re.search(info.regex, value), f"does not match regex={info.regex!r}"),
        (info.choices is not None and value not in json_choices(info.choices), "is not one of its choices"),
    )
    return next((complaint for wrong, complaint in checks if wrong), "")


def conforms(spec: TypeSpec, value: Any) -> bool:
    """Tell whether a JSON value is of this type."""
    if value is None:
        return spec.nullable
    if spec.choices is not None and not any(value == choice and type(value) is type(choice) for choice in spec.choices):
        return False
    match spec.kind:
        case "array":
            return isinstance(value, list) and all(spec.items is None or conforms(spec.items, item) for item in value)
        case "union":
            return any(conforms(member, value) for member in spec.members)
        case "record":
            return isinstance(value, dict) and all(
                conforms(field.type, value[field.name]) if field.name in value else not field.required
                for field in spec.fields
            )
        case "tensor":
            return nested_array(spec).accepts(value)
    return _is_scalar(spec.kind, value)


def _is_scalar(kind: Kind, value: Any) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return not isinstance(value, bool) and (isinstance(value, int) or _is_integral(value))
        case "number":
            return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
        case "object":
            return isinstance(value, dict)
        case "opaque":
            return True
    return isinstance(value, str)


def _is_integral(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def json_default(default: Any, spec: TypeSpec) -> Any:
    """The JSON form of a default; that of a secret is a mask. Raises `ConstraintError` where there is none."""
    value = _to_json(_nested(default) if spec.kind == "tensor" else _encoded(default))
    if spec.kind == "secret" and value is not None:
        return MASK
    if spec.kind == "boolean" and type(value) is int and value in {0, 1}:
        return bool(value)
    if spec.kind in {"integer", "number"} and isinstance(value, bool):
        return int(value)
    return value


def _encoded(value: Any) -> Any:
    """A default of a type with a coder, or a list of such, as this coder writes it."""
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    encode = encoder_of(type(value))
    if encode is None:
        return value
    try:
        return encode(value)
    except Exception as error:
        raise ConstraintError(f"its default cannot be encoded: {type(error).__name__}: {error}") from error


def _nested(value: Any) -> Any:
    """An array as nested lists, its bytes as text: what stands in the schema, while the model gets the array itself."""
    if hasattr(value, "__array__") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_nested(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _to_json(value.value)
    if isinstance(value, Secret):
        return None if value.get_secret_value() is None else MASK
    if isinstance(value, float) and not math.isfinite(value):
        raise ConstraintError(f"its default {value!r} is nothing that JSON could carry")
    if value is None or isinstance(value, (str, int, float)):
        return plain_scalar(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if hasattr(value, "model_dump"):
        return _to_json(value.model_dump(by_alias=True))
    if hasattr(value, "__dataclass_fields__"):
        return {name: _to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    raise ConstraintError(f"its default is a {type(value).__name__}, which JSON cannot carry")


def _element(spec: TypeSpec) -> TypeSpec:
    """Return the type that the settings of a list apply to: its elements."""
    return spec.items if spec.kind == "array" and spec.items is not None else spec
