"""Record types of a signature: TypedDict, dataclass, `BaseModel` and pydantic models."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from geartrain.authoring.model import BaseModel
from geartrain.domain.signature.types import RecordField, TypeSpec
from geartrain.worker.loading.descriptions import (
    Converter,
    Described,
    UnsupportedTypeError,
    is_typed_dict,
    strip,
)
from geartrain.worker.loading.tensor_types import read_tensor

if TYPE_CHECKING:
    from geartrain.worker.loading.annotations import AnnotationReader


class _Field(NamedTuple):
    """A field as its class declares it; `name` is its name in JSON."""

    name: str
    annotation: Any
    required: bool


def read_record(cls: type, reader: AnnotationReader) -> Described | None:
    """Describe a record type, or return None if it is none. Raises `UnsupportedTypeError` for one of its fields."""
    if is_typed_dict(cls):
        return _describe(cls, _typed_dict_fields(cls), reader, make=dict)
    if is_pydantic(cls):
        return _pydantic(cls, reader)
    fields: list[_Field]
    if hasattr(cls, "__dataclass_fields__"):
        fields = _dataclass_fields(cls, reader)
    elif issubclass(cls, BaseModel):
        fields = _plain_fields(cls)
    else:
        return None
    return _describe(cls, fields, reader, make=lambda values: cls(**values), closed=not reader.output)


def read_named_tensors(cls: type, reader: AnnotationReader) -> Described | None:
    """Describe a NamedTuple with a tensor among its fields as a record; without one it is an array, as in Cog: None."""
    if all(read_tensor(strip(hint)[0], output=True) is None for hint in _members(_hints(cls).values())):
        return None
    return read_named_tuple(cls, reader)


def read_named_tuple(cls: type, reader: AnnotationReader) -> Described:
    """Describe a NamedTuple as a record."""
    fields = [_Field(name, hint, required=True) for name, hint in _hints(cls).items()]
    return _describe(cls, fields, reader, make=dict)


def _members(hints: Iterable[Any]) -> Iterator[Any]:
    """The annotations, and what an Optional is optional of."""
    for hint in hints:
        yield hint
        yield from typing.get_args(strip(hint)[0])


def is_pydantic(cls: type) -> bool:
    """Tell whether this is a pydantic model, without importing pydantic for the question."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _describe(
    cls: type,
    fields: list[_Field],
    reader: AnnotationReader,
    *,
    make: Callable[[dict[str, Any]], Any],
    closed: bool = False,
) -> Described:
    described = {field.name: _read_field(cls, field, reader) for field in fields}
    specs = tuple(
        RecordField(field.name, described[field.name].spec, field.required and not described[field.name].spec.nullable)
        for field in fields
    )
    spec = TypeSpec("record", fields=specs, title=cls.__name__, closed=closed)
    converters = {name: field.convert for name, field in described.items() if field.convert is not None}
    absent = tuple(field.name for field, known in zip(fields, specs, strict=True) if field.required > known.required)
    if is_typed_dict(cls):
        return Described(spec, _filling(converters, absent) if converters or absent else None)
    fill = _filling(converters, absent)
    return Described(spec, lambda value: make(fill(value)) if isinstance(value, Mapping) else value)


def _read_field(cls: type, field: _Field, reader: AnnotationReader) -> Described:
    try:
        return reader.read(field.annotation)
    except UnsupportedTypeError as error:
        error.place = error.place or f"in the field {field.name!r} of {cls.__name__}, "
        raise


def _filling(converters: Mapping[str, Converter], absent: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    """Return the converter of an object's fields that sets an Optional that was left out to None."""

    def fill(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        filled = {**dict.fromkeys(absent), **value}
        for name, convert in converters.items():
            if filled.get(name) is not None:
                filled[name] = convert(filled[name])
        return filled

    return fill


def _typed_dict_fields(cls: Any) -> list[_Field]:
    """The keys of a TypedDict. With string annotations the class does not know about `NotRequired`; the hints do."""
    fields = []
    for name, hint in _hints(cls).items():
        wrapper = getattr(typing.get_origin(hint), "_name", None)
        required = wrapper == "Required" or (wrapper != "NotRequired" and name in cls.__required_keys__)
        fields.append(_Field(name, hint, required))
    return fields


def _dataclass_fields(cls: type, reader: AnnotationReader) -> list[_Field]:
    """The fields that `__init__` takes; of an output, all."""
    from dataclasses import MISSING, fields

    hints = _hints(cls)
    return [
        _Field(
            field.name,
            hints[field.name],
            reader.output or (field.default is MISSING and field.default_factory is MISSING),
        )
        for field in fields(cls)
        if field.init or reader.output
    ]


def _plain_fields(cls: type) -> list[_Field]:
    """The fields of a `BaseModel` that is no dataclass: what is annotated, required unless the class has a value."""
    return [_Field(name, hint, not hasattr(cls, name)) for name, hint in _hints(cls).items()]


def _pydantic(cls: Any, reader: AnnotationReader) -> Described:
    """Describe a pydantic model.

    It checks its values itself, so a type that the signature cannot express is left open.
    """
    fields, converters = [], {}
    for name, info in cls.model_fields.items():
        known = name if reader.output else _alias(name, info)
        try:
            spec, convert, _ = reader.read(info.annotation)
        except UnsupportedTypeError:
            spec, convert = TypeSpec("opaque"), None
        fields.append(RecordField(known, spec, reader.output or info.is_required()))
        if convert is not None:
            converters[known] = convert
    closed = not reader.output and cls.model_config.get("extra") == "forbid"
    spec = TypeSpec("record", fields=tuple(fields), title=cls.__name__, closed=closed)
    fill = _filling(converters, ())
    return Described(spec, lambda value: cls.model_validate(fill(value)) if isinstance(value, Mapping) else value)


def _alias(name: str, info: Any) -> str:
    alias = info.validation_alias or info.alias
    return alias if isinstance(alias, str) else name


def _hints(cls: type) -> dict[str, Any]:
    try:
        return {
            name: hint
            for name, hint in typing.get_type_hints(cls, include_extras=True).items()
            if typing.get_origin(hint) is not typing.ClassVar and hint is not typing.ClassVar
        }
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise UnsupportedTypeError(
            cls, f"its annotations cannot be read ({error}): import what they name where the class is defined"
        ) from error
