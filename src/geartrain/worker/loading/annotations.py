"""From a type annotation to a type of the signature, and to the function that makes the Python value of a JSON value.

One walk gives both, so what the schema promises and what `run()` receives cannot drift apart. Records are TypedDicts,
dataclasses, subclasses of `BaseModel`, and pydantic models.
"""

from __future__ import annotations

import enum
import io
import os
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, Union

from msgspec.structs import replace

from geartrain.authoring.coders import Coder
from geartrain.authoring.values import BaseModel, File, Path, Secret
from geartrain.domain.signature.types import Kind, RecordField, TypeSpec
from geartrain.worker.loading.coders import CoderError, coder_of, decoder_of
from geartrain.worker.loading.descriptions import Converter, Described, UnsupportedTypeError, is_typed_dict, strip
from geartrain.worker.loading.tensor_types import read_tensor

_GENERAL_INPUT = (
    "use str, int, float, bool, Path, Secret, list, dict, a Literal, an Enum, a TypedDict, a dataclass or a BaseModel"
)
_GENERAL_OUTPUT = (
    "use str, int, float, bool, Path, list, dict, Iterator, a TypedDict, a dataclass or a BaseModel,"
    " or Annotated[..., Opaque] to leave the type open"
)
_LIST = "use list[...] instead"
_ADVICE: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"bytes", "bytearray", "memoryview"}),
        "use Path for a file, or str",
        "write it to a file and return Path, or return a str",
    ),
    (frozenset({"set", "frozenset", "tuple", "deque", "Set"}), _LIST, _LIST),
    (frozenset({"Iterator", "Generator", "AsyncIterator", "AsyncGenerator", "AsyncIterable"}), _LIST, _LIST),
    (frozenset({"ConcatenateIterator", "AsyncConcatenateIterator"}), _LIST, _LIST),
    (frozenset({"PIL"}), "use Path, and open the image in run()", "save the image to a file and return Path"),
    (frozenset({"numpy"}), "use float, int or str, or NDArray[...] for an array", "return .tolist() as list[float]"),
    (frozenset({"torch"}), "use Float32[torch.Tensor, ...] of jaxtyping", "return .tolist() as list[float]"),
    (frozenset({"datetime", "uuid", "decimal"}), "use str, and parse it in run()", "return a str or a float"),
    (frozenset({"TextIO", "StringIO", "TextIOWrapper"}), "use Path, and open it in run()", "return Path"),
)


def advice_for(annotation: Any, *, output: bool) -> str:
    """Return half a sentence about a type that is not supported, as an input or as an output."""
    origin = typing.get_origin(annotation) or annotation
    module = getattr(origin, "__module__", "").partition(".")[0]
    name = getattr(origin, "__name__", "")
    for names, of_input, of_output in _ADVICE:
        if name in names or module in names:
            return of_output if output else of_input
    return _GENERAL_OUTPUT if output else _GENERAL_INPUT


_SCALARS: dict[type, Kind] = {str: "string", bool: "boolean", int: "integer", float: "number"}  # bool is an int, too
_UNION_KINDS = frozenset({"string", "integer", "number", "boolean", "object", "array", "opaque", "union"})
_NO_LISTS = (str, bytes, bytearray, memoryview)
_TIMES = frozenset({"datetime", "date", "time"})


class AnnotationReader:
    """Reads the annotations of inputs, or those of an output, which may be of more types."""

    def __init__(self, *, output: bool = False, batched: bool = False) -> None:
        """`batched`: where a result may be an exception as well, `list[str | Exception]`, that is left aside."""
        self.output = output
        self._batched = batched
        self._open: list[Any] = []  # the records and dicts that are being read, to notice one that contains itself

    def read(self, annotation: Any) -> Described:
        """Describe a type. Raises `UnsupportedTypeError`."""
        annotation, is_opaque = strip(annotation)
        if is_opaque:
            return self._opaque(annotation)
        if isinstance(annotation, type) and annotation in _SCALARS:
            kind = _SCALARS[annotation]
            return Described(TypeSpec(kind), _NUMBERS.get(kind), is_plain=True)
        if annotation is Any or annotation is object:
            kind = "object" if annotation is Any else "opaque"
            return Described(TypeSpec(kind, anything=self.output and annotation is Any))
        if annotation is Secret:
            return Described(TypeSpec("secret"), _as_secret)
        coded = _coded(annotation, output=self.output)
        if coded is not None:
            return coded
        tensor = read_tensor(annotation, output=self.output)
        if tensor is not None:
            return tensor
        origin = typing.get_origin(annotation)
        if origin is Literal:
            return _literal(annotation)
        if origin is Union or origin is types.UnionType:
            return self._union(annotation)
        if isinstance(origin or annotation, type):
            return self._class(annotation, origin or annotation)
        raise UnsupportedTypeError(annotation, advice_for(annotation, output=self.output))

    def _opaque(self, annotation: Any) -> Described:
        """Describe an opaque type: a list, or optional."""
        members = [member for member in typing.get_args(annotation) if member is not NoneType]
        if typing.get_origin(annotation) in {Union, types.UnionType} and len(members) == 1:
            return Described(replace(self._opaque(members[0]).spec, nullable=True))
        if annotation is list or typing.get_origin(annotation) is list:
            return Described(TypeSpec("array", items=TypeSpec("opaque"), anything=self.output))
        return Described(TypeSpec("opaque"))

    def _union(self, annotation: Any) -> Described:
        arguments = [each for each in typing.get_args(annotation) if not (self._batched and _is_exception(each))]
        members = [self.read(member) for member in arguments if member is not NoneType]
        nullable = NoneType in arguments
        if len(members) == 1:
            spec, convert, is_plain = members[0]
            return Described(replace(spec, nullable=nullable or spec.nullable), convert, is_plain=is_plain)
        if not self.output:
            for member, described in zip((a for a in arguments if a is not NoneType), members, strict=True):
                if described.makes or described.spec.kind not in _UNION_KINDS:
                    advice = "a union holds only str, int, float, bool, dict, list and Literal: use one of its types"
                    raise UnsupportedTypeError(member, advice)
        spec = TypeSpec("union", nullable=nullable, members=tuple(member.spec for member in members))
        return Described(spec, _one_of(members), is_plain=True)

    def _class(self, annotation: Any, origin: type) -> Described:
        """Describe a class, or a generic one with its arguments; the first reader that knows it decides."""
        for reader in (self._file, self._collection, self._enum, self._record, self._foreign):
            described = reader(annotation, origin)
            if described is not None:
                return described
        raise UnsupportedTypeError(annotation, advice_for(annotation, output=self.output))

    def _file(self, _: Any, origin: type) -> Described | None:
        if issubclass(origin, os.PathLike):
            return Described(TypeSpec("path"), Path)
        is_text = issubclass(origin, (io.TextIOBase, typing.TextIO))
        if issubclass(origin, (File, io.IOBase, typing.BinaryIO)) and not is_text:
            return Described(TypeSpec("file"), _as_file)
        return None

    def _collection(self, annotation: Any, origin: type) -> Described | None:
        if is_typed_dict(origin):
            return None
        if issubclass(origin, abc.Mapping) and (self.output or origin in _INPUT_MAPPINGS):
            return self._mapping(annotation)
        if origin in _INPUT_LISTS:
            return self._array(typing.get_args(annotation))
        is_list = issubclass(origin, (tuple, abc.Set, abc.Sequence)) and not issubclass(origin, _NO_LISTS)
        if not self.output or not is_list:
            return None
        return self._named_tensors(origin) or self._output_array(typing.get_args(annotation), origin)

    def _mapping(self, annotation: Any) -> Described:
        """Describe a dict.

        The values of an output are in the schema and are checked. Those of an input are not: they must not be of a
        type that has to be made, and only their numbers are converted.
        """
        values = typing.get_args(annotation)[1:]
        if not values or isinstance(values[0], TypeVar):
            return Described(TypeSpec("object"))
        if self.output:
            is_open = any(annotation is each for each in self._open)
            return Described(TypeSpec("object", values=None if is_open else self._output_values(annotation)))
        described = self.read(values[0])
        if described.makes:
            advice = "a dict holds plain JSON values: use a TypedDict or a BaseModel, whose fields have types"
            raise UnsupportedTypeError(annotation, advice)
        return Described(TypeSpec("object"), _each_value(described.convert), is_plain=True)

    def _output_values(self, annotation: Any) -> TypeSpec | None:
        self._open.append(annotation)
        try:
            return self.read(typing.get_args(annotation)[1]).spec
        except UnsupportedTypeError:
            return None
        finally:
            self._open.pop()

    def _array(self, arguments: tuple[Any, ...]) -> Described:
        if not arguments or arguments[0] is Any or isinstance(arguments[0], TypeVar):
            return Described(TypeSpec("array", items=TypeSpec("opaque")))
        items = self.read(arguments[0])
        return Described(TypeSpec("array", items=items.spec), _each(items.convert), is_plain=items.is_plain)

    def _named_tensors(self, origin: type) -> Described | None:
        return read_named_tensors(origin, self) if hasattr(origin, "_fields") else None

    def _output_array(self, arguments: tuple[Any, ...], origin: type) -> Described:
        distinct = list(dict.fromkeys(member for member in arguments if member is not Ellipsis))
        if not distinct or hasattr(origin, "_fields"):
            return Described(TypeSpec("array", items=TypeSpec("opaque")))
        specs = tuple(self.read(member).spec for member in distinct)
        return Described(TypeSpec("array", items=specs[0] if len(specs) == 1 else TypeSpec("union", members=specs)))

    def _enum(self, annotation: Any, origin: type) -> Described | None:
        if not issubclass(origin, enum.Enum):
            return None
        return Described(choice_spec([member.value for member in origin], annotation), origin)

    def _record(self, _: Any, origin: type) -> Described | None:
        if origin not in self._open:
            self._open.append(origin)
            try:
                return read_record(origin, self)
            finally:
                self._open.pop()
        if self.output:
            return Described(TypeSpec("object"))
        raise UnsupportedTypeError(origin, "it contains itself: use dict for that field")

    def _foreign(self, _: Any, origin: type) -> Described | None:
        """Describe a type that only outputs may have."""
        if not self.output:
            return None
        if origin is NoneType:
            return Described(TypeSpec("opaque", nullable=True))
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(origin, numpy.generic):
            return _numpy_scalar(numpy, origin)
        if (hasattr(origin, "__array__") and hasattr(origin, "tolist")) or issubclass(origin, abc.Iterator):
            return Described(TypeSpec("array", items=TypeSpec("opaque")))
        if origin.__module__ in {"datetime", "uuid"} and origin.__name__ in {*_TIMES, "UUID"}:
            return Described(TypeSpec("string"))
        if hasattr(origin, "__struct_fields__") or hasattr(origin, "__attrs_attrs__"):
            return Described(TypeSpec("object"))
        kinds = [kind for base, kind in _SCALARS.items() if issubclass(origin, base)]
        return Described(TypeSpec(kinds[0])) if kinds else None


_INPUT_MAPPINGS = frozenset({dict, abc.Mapping, abc.MutableMapping})
_INPUT_LISTS = frozenset({list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable})


def choice_spec(values: typing.Iterable[Any], annotation: Any) -> TypeSpec:
    """Describe a fixed set of JSON values; a mixed set is a union of sets of one type each."""
    by_kind: dict[Kind, list[Any]] = {}
    nullable = False
    for value in values:
        if value is None:
            nullable = True
            continue
        choice = plain_scalar(value.value if isinstance(value, enum.Enum) else value)  # Literal[Color.RED]
        kind = _SCALARS.get(type(choice))
        if kind is None:
            raise UnsupportedTypeError(annotation, f"{choice!r} is no JSON value: let its values be strings or numbers")
        by_kind.setdefault(kind, []).append(choice)
    if not by_kind:
        raise UnsupportedTypeError(annotation, "it lists no value: give it some, or use str")
    specs = tuple(TypeSpec(kind, choices=tuple(choices)) for kind, choices in by_kind.items())
    if len(specs) == 1:
        return replace(specs[0], nullable=nullable)
    return TypeSpec("union", nullable=nullable, members=specs)


_NATIVE = frozenset({NoneType, types.UnionType, *_INPUT_MAPPINGS, *_INPUT_LISTS})


def _coded(annotation: Any, *, output: bool) -> Described | None:
    """A type that a coder of the author's translates: a JSON object. Cog asks none for its own types.

    What a coder makes of an output is not checked.
    """
    origin = typing.get_origin(annotation) or annotation
    if not Coder.all() or not isinstance(origin, type) or origin in _NATIVE:
        return None
    if is_typed_dict(origin) or issubclass(origin, (os.PathLike, io.IOBase)):
        return None
    try:
        coder = coder_of(annotation)
    except CoderError as error:
        raise UnsupportedTypeError(annotation, str(error)) from error
    return None if coder is None else Described(TypeSpec("object", anything=output), decoder_of(annotation, coder))


def _is_exception(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def _literal(annotation: Any) -> Described:
    values = typing.get_args(annotation)
    members = {value.value: value for value in values if isinstance(value, enum.Enum)}
    spec = choice_spec(values, annotation)
    if members:
        return Described(spec, lambda value: members.get(value, value))
    return Described(spec, _NUMBERS.get(spec.kind), is_plain=True)


def plain_scalar(value: Any) -> Any:
    """Return the plain value of one whose class derives from str, int or float, and any other as it is."""
    if isinstance(value, str):
        return str.__str__(value)
    for base in (bool, int, float):
        if isinstance(value, base):
            return base(value)
    return value


def _numpy_scalar(numpy: Any, origin: type) -> Described | None:
    families: tuple[tuple[Any, Kind], ...] = (
        (numpy.bool_, "boolean"),
        (numpy.integer, "integer"),
        (numpy.floating, "number"),
        (numpy.str_, "string"),
    )
    kinds = [kind for family, kind in families if issubclass(origin, family)]
    return Described(TypeSpec(kinds[0])) if kinds else None


def _as_int(value: Any) -> Any:
    """Make an int of an integral float: JSON has one type of numbers, and 3.0 is an integer in it."""
    return int(value) if type(value) is float and value.is_integer() else value


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value


_NUMBERS: dict[Kind, Converter] = {"integer": _as_int, "number": _as_float}
_OTHER_NUMBER: dict[Converter, type] = {_as_int: float, _as_float: int}
_CONTAINERS: dict[Kind, type] = {"array": list, "object": dict}
_NO_ARRAYS = (str, int, float, dict, NoneType)  # of JSON: the values of a dict are not checked


def _one_of(members: list[Described]) -> Converter | None:
    """Return the converter of a union, which goes by the type of a value. `int | float` takes each number as it is."""
    kinds = [member.spec.kind for member in members]
    by_type: dict[type, Converter] = {}
    for member in members:
        kind, convert = member.spec.kind, member.convert
        if convert is None or not member.is_plain or kinds.count(kind) > 1:
            continue
        if kind in _CONTAINERS:
            by_type[_CONTAINERS[kind]] = convert
        elif kind in _NUMBERS and not {"integer", "number"} <= set(kinds):
            by_type[_OTHER_NUMBER[convert]] = convert
    return (lambda value: by_type[type(value)](value) if type(value) in by_type else value) if by_type else None


def _as_secret(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


def _as_file(value: Any) -> Any:
    return value if hasattr(value, "read") else open(value, "rb")  # noqa: PTH123 - so that its name is a str


def _each(convert: Converter | None) -> Converter | None:
    """Return the converter of a list of such values."""
    if convert is None:
        return None
    other = _OTHER_NUMBER.get(convert)

    def each(values: Any) -> Any:
        if isinstance(values, _NO_ARRAYS) or (other is not None and other not in set(map(type, values))):
            return values
        return [item if item is None else convert(item) for item in values]

    return each


def _each_value(convert: Converter | None) -> Converter | None:
    """Return the converter of a dict with such values."""
    if convert is None:
        return None
    other = _OTHER_NUMBER.get(convert)

    def each(values: Any) -> Any:
        if not isinstance(values, dict) or (other is not None and other not in set(map(type, values.values()))):
            return values
        return {key: item if item is None else convert(item) for key, item in values.items()}

    return each


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
