"""Places of files in an input: the values of path and file parameters, at any depth of the signature's types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.domain.signature.types import FILE_KINDS

if TYPE_CHECKING:
    from geartrain.domain.signature.types import Signature, TypeSpec

_URL_SCHEMES = ("http:", "https:", "data:")
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "secret": (str,),
    "path": (str,),
    "file": (str,),
    "integer": (int, float),  # 7.0 is an integer in JSON
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "opaque": (object, bool),
}


class FilePlace(msgspec.Struct):
    """One file value: the list or dict that holds it, its key there, and its place for an error.

    `place` is `name` for a parameter and `name/0/field` within one, as the validation of inputs writes it.
    """

    holder: Any
    key: str | int
    url: str
    place: str

    def put(self, value: str) -> None:
        """Replace the value."""
        self.holder[self.key] = value


class FileReferences:
    """Finds the file values in the inputs of one signature."""

    def __init__(self, signature: Signature) -> None:
        self._types = {field.name: field.type for field in signature.inputs if holds_files(field.type)}
        # An author's default may hold URLs as well. Any other file in it is the author's own and stays as it is.
        self._defaults = {
            field.name: {field.name: field.default}
            for field in signature.inputs
            if field.name in self._types and self._urls({field.name: field.default}, field.name)
        }

    def any_in(self, values: dict[str, Any]) -> bool:
        """True if `values` may hold a file value; costs a look-up per path or file parameter."""
        if not self._types:
            return False
        return bool(self._defaults) or any(values.get(name) is not None for name in self._types)

    def find(self, values: dict[str, Any]) -> tuple[dict[str, Any], list[FilePlace]]:
        """A copy of `values`, deep where files are, and the places of the files in the copy."""
        copied = dict(values)
        places: list[FilePlace] = []
        for name, spec in self._types.items():
            if name in copied:
                _visit(spec, FilePlace(copied, name, "", name), places)
            elif name in self._defaults:
                copied.update(self._defaults[name])
                places += self._urls(copied, name)
        return copied, places

    def _urls(self, values: dict[str, Any], name: str) -> list[FilePlace]:
        """The places of a value that hold URLs; what is copied on the way takes the place of the value."""
        places: list[FilePlace] = []
        _visit(self._types[name], FilePlace(values, name, "", name), places)
        return [place for place in places if is_url(place.url)]


def holds_files(spec: TypeSpec) -> bool:
    """True if a value of this type can be or contain a file."""
    return (
        spec.kind in FILE_KINDS
        or (spec.items is not None and holds_files(spec.items))
        or any(holds_files(member) for member in spec.members)
        or any(holds_files(field.type) for field in spec.fields)
    )


def is_url(text: str) -> bool:
    """True if `text` begins with a scheme that is fetched or decoded, in any case."""
    return text[:6].lower().startswith(_URL_SCHEMES)


def _visit(spec: TypeSpec, at: FilePlace, places: list[FilePlace]) -> None:
    """Add the files of the value at `at`; values of another shape than `spec` are left to the validation."""
    value = at.holder[at.key]
    match spec.kind:
        case "path" | "file" if isinstance(value, str):
            places.append(FilePlace(at.holder, at.key, value, at.place))
        case "array" if isinstance(value, list) and spec.items is not None and holds_files(spec.items):
            at.holder[at.key] = copied = list(value)
            for index in range(len(copied)):
                _visit(spec.items, FilePlace(copied, index, "", f"{at.place}/{index}"), places)
        case "record" if isinstance(value, dict):
            at.holder[at.key] = fields = dict(value)
            for field in spec.fields:
                if field.name in fields and holds_files(field.type):
                    _visit(field.type, FilePlace(fields, field.name, "", f"{at.place}/{field.name}"), places)
        case "union":
            member = _member_for(spec, value)
            if member is not None:
                _visit(member, at, places)
        case _:
            pass


def _member_for(spec: TypeSpec, value: object) -> TypeSpec | None:
    """The member of a union that a value belongs to: the first that fits it.

    A text may be a file or plain text; it is a file when it is a URL, or when no other member admits it.
    """
    fitting = [member for member in _members(spec) if _fits(member, value)]
    if isinstance(value, str):
        files = [member for member in fitting if member.kind in FILE_KINDS]
        if files and not is_url(value):
            fitting = [member for member in fitting if member.kind not in FILE_KINDS] or files
        elif files:
            fitting = files
    return next(iter(fitting), None)


def _members(spec: TypeSpec) -> Iterator[TypeSpec]:
    for member in spec.members:
        if member.kind == "union":
            yield from _members(member)
        else:
            yield member


def _fits(spec: TypeSpec, value: object) -> bool:
    """True if a JSON value has the shape of a type; a fit of shapes, not a validation."""
    if value is None:
        return spec.nullable or spec.kind == "opaque"
    if spec.choices is not None and value not in spec.choices:
        return False
    match spec.kind:
        case "array":
            items = spec.items
            return isinstance(value, list) and (items is None or all(_fits(items, item) for item in value))
        case "record":
            return isinstance(value, dict) and all(
                _fits(field.type, value[field.name]) if field.name in value else not field.required
                for field in spec.fields
            )
        case "union":
            return any(_fits(member, value) for member in spec.members)
        case kind:
            types = _JSON_TYPES[kind]
            return isinstance(value, types) and (bool in types or not isinstance(value, bool))
