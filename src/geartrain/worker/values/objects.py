"""One step from a Python object towards plain JSON, chosen by its type."""

from __future__ import annotations

import sys
from collections import abc
from collections.abc import Callable
from enum import Enum
from typing import Any

from geartrain.authoring.values import MASK, BaseModel, Secret
from geartrain.worker.loading.annotations import is_pydantic
from geartrain.worker.loading.coders import encoder_of
from geartrain.worker.values.faults import OutputError

Simplifier = Callable[[Any], Any]
"""Returns a simpler object of another type, or raises `OutputError`."""

_BYTES = (bytes, bytearray, memoryview)
_MOMENTS = ("datetime", "date", "time")


def simplifier_of(kind: type) -> Simplifier:
    """Find the step for a type that is not plain JSON. The first family that it belongs to decides."""
    encode = encoder_of(kind)
    if encode is not None:
        return _by_coder(kind, encode)
    for find in (_plain_subclass, _library_type, object_step, _array_type, _container):
        simplify = find(kind)
        if simplify is not None:
            return simplify
    return _refuse


def _by_coder(kind: type, encode: Simplifier) -> Simplifier:
    """The step by which a coder encodes. One that gives back what it was given would be asked without end."""

    def simplify(value: Any) -> Any:
        try:
            encoded = encode(value)
        except Exception as error:
            raise OutputError(
                f"is of type {kind.__name__}, and its coder's encode() raised {type(error).__name__}: {error}"
            ) from error
        if type(encoded) is kind:
            raise OutputError(f"is of type {kind.__name__}, and its coder's encode() returned the same type, no dict")
        return encoded

    return simplify


def _plain_subclass(kind: type) -> Simplifier | None:
    """Enums, and classes that derive from a JSON type (numpy's float64 is one)."""
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Secret):
        return lambda _: MASK
    for base in (str, int, float):
        if issubclass(kind, base):
            return base.__str__ if base is str else base
    if issubclass(kind, _BYTES):
        return _refuse_bytes
    return None


def _library_type(kind: type) -> Simplifier | None:
    """Types of libraries that are only asked about when other code has imported them."""
    moments = sys.modules.get("datetime")
    if moments is not None and issubclass(kind, (moments.date, moments.time)):
        return lambda value: value.isoformat()
    uuid = sys.modules.get("uuid")
    if uuid is not None and issubclass(kind, uuid.UUID):
        return str
    if is_pydantic(kind):
        return lambda value: value.model_dump()
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        for family, plain in ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float)):
            if issubclass(kind, family):
                return plain
        return _numpy_item
    return None


def object_step(kind: type) -> Simplifier | None:
    """Objects with fields. The names are those of the class, so that they are looked up once."""
    for marker, names_of in (
        ("__dataclass_fields__", _dataclass_names),
        ("__struct_fields__", lambda kind: kind.__struct_fields__),
        ("__attrs_attrs__", lambda kind: tuple(field.name for field in kind.__attrs_attrs__)),
    ):
        if hasattr(kind, marker):
            names = names_of(kind)
            return lambda value: {name: getattr(value, name) for name in names}
    if issubclass(kind, BaseModel):
        return lambda value: dict(vars(value))
    return None


def _dataclass_names(kind: Any) -> tuple[str, ...]:
    from dataclasses import fields

    return tuple(field.name for field in fields(kind))


def _array_type(kind: type) -> Simplifier | None:
    """Arrays of numpy, torch, jax, pandas: whatever knows how to become a list."""
    if hasattr(kind, "__array__") and hasattr(kind, "tolist"):
        return lambda value: value.tolist()
    return None


def _container(kind: type) -> Simplifier | None:
    if issubclass(kind, abc.Mapping):
        return dict
    if issubclass(kind, (abc.Sequence, abc.Set, abc.Iterator, abc.ValuesView)):
        return list
    return None


def _numpy_item(value: Any) -> Any:
    item = value.item()
    return _refuse(value) if type(item) is type(value) else item


def _refuse_bytes(value: Any) -> Any:
    raise OutputError(
        f"is {type(value).__name__}, which JSON cannot carry; write it to a file and return the Path, or return text"
    )


def _refuse(value: Any) -> Any:
    name = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
    if hasattr(value, "__await__") or hasattr(value, "__anext__"):
        raise OutputError(f"is {name}, which was not awaited; return what it gives")
    raise OutputError(
        f"is {name}, which JSON cannot carry;"
        " return str, int, float, bool, list, dict, Path, a dataclass or a BaseModel"
    )


def key_text(key: Any) -> str:
    """The JSON text of a dict's key. Raises `OutputError`."""
    if isinstance(key, Enum):
        return key_text(key.value)
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    simplify = _library_type(type(key))
    if simplify is not None:
        return key_text(simplify(key))
    raise OutputError(f"has a key of type {type(key).__name__}, and the keys of JSON are strings")
