"""Holds the outputs of a model to the annotation of its `run()`.

A check is compiled once from the signature. A value whose exact type is in `Check.exact` conforms without a step in
Python; every other one is looked at as the JSON that it becomes: a numpy scalar is a number, a tuple is a list, a
dataclass is an object. As for inputs, an int is a float but a bool is no number. A float is no int, not even 7.0.
"""

from __future__ import annotations

import sys
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from reprlib import Repr
from typing import Any, Final, NamedTuple

from geartrain.domain.signature.types import Kind, TypeSpec
from geartrain.worker.loading.annotations import is_pydantic
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.objects import key_text, object_step, simplifier_of
from geartrain.worker.values.output_files import is_file

_NAMES: Final[Mapping[Kind, str]] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "path": "Path",
    "file": "File",
    "secret": "Secret",
    "object": "dict",
    "opaque": "Any",
}
_SCALARS: Final[Mapping[Kind, frozenset[type]]] = {
    "string": frozenset({str}),
    "secret": frozenset({str}),
    "integer": frozenset({int}),
    "number": frozenset({float, int}),
    "boolean": frozenset({bool}),
}
_NONE: Final = frozenset({type(None)})
_TEXTS: Final = (str, bytes, bytearray, memoryview)
_LISTS: Final = (abc.Sequence, abc.Set, abc.ValuesView)
_STEPS: Final = 8  # from an object to a scalar: an Enum whose value is a number of numpy has two
_LEARNED: Final = 64  # types
_MAX_TEXT: Final = 200  # characters of a type in a message

_shorten = Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 60
_shorten.maxlist = _shorten.maxtuple = _shorten.maxset = _shorten.maxdict = 4
_shorten.maxlevel = 3


class Contract(NamedTuple):
    """Required form of a model's outputs."""

    what: str  # e.g. "run() is annotated int"
    warn: Callable[[str], None] | None = None  # takes the one warning about a wrong output; None: it is an error


def contract_of(returns: str, *, for_cog: bool, warn: Callable[[str], None]) -> Contract | None:
    """Return the required form of outputs: an error for a model of geartrain's, a warning for one of Cog's.

    `returns` is its annotated return type; without one, any output is right.
    """
    if not returns or not for_cog:
        return Contract(returns) if returns else None
    rest = "it is passed on, as Cog does, and so is the next one, without a warning"
    return Contract(returns, lambda text: warn(f"{text}; {rest}"))


class Mismatch:
    """A value that is not of the annotated type; `instead` says what came in words, where it is not the value."""

    def __init__(self, value: Any, wanted: str, instead: str = "") -> None:
        self._value = value
        self._wanted = wanted
        self._instead = instead
        self.place: list[str | int] = []  # from the inside out

    def inside(self, segment: str | int) -> Mismatch:
        """Add the key or the index, one level further out, at which the value stands."""
        self.place.append(segment)
        return self

    def error(self, contract: Contract, verb: str, *, shown: bool = True) -> OutputError:
        """Say what came and what is wanted; `verb` is `returned` or `yielded`, and `shown` includes the value."""
        came, text = (self._instead, "") if self._instead else _describe(self._value, shown=shown)
        wanted = self._wanted if len(self._wanted) <= _MAX_TEXT else f"{self._wanted[:_MAX_TEXT]}…"
        known = not self.place and contract.what.endswith(f" {self._wanted}")
        where = "" if known else f" where {wanted} is wanted"
        error = OutputError(f"{contract.what}, and {verb} {came}{where}{text}", separator=": ")
        for segment in self.place:
            error.inside(segment)
        return error


def _describe(value: Any, *, shown: bool) -> tuple[str, str]:
    """The type of a value with its article, and the value itself, shortened."""
    if value is None:
        return "None", ""
    name = type(value).__name__
    article = "an" if name[:1].lower() in {"a", "e", "i", "o", "u"} else "a"
    if not shown:
        return f"{article} {name}", ""
    try:
        text = " ".join(_shorten.repr(value).split())
    except Exception:  # noqa: BLE001 - the author's __repr__ may raise anything
        return f"{article} {name}", ""
    return f"{article} {name}", f": {text if len(text) <= _MAX_TEXT else f'{text[:_MAX_TEXT]}…'}"


def type_text(spec: TypeSpec) -> str:
    """A type of the signature as an author would write it."""
    if spec.choices is not None:
        text = f"Literal[{', '.join(map(repr, spec.choices))}]"
    elif spec.kind == "array":
        text = "list" if spec.items is None or spec.items.kind == "opaque" else f"list[{type_text(spec.items)}]"
    elif spec.kind == "union":
        text = " | ".join(map(type_text, spec.members))
    elif spec.kind == "record":
        text = spec.title or "dict"
    elif spec.kind == "tensor":
        text = spec.datatype if spec.variadic else f"{spec.datatype} {list(spec.shape)}"
    elif spec.kind == "object" and spec.values is not None:
        text = f"dict[str, {type_text(spec.values)}]"
    else:
        text = _NAMES[spec.kind]
    return f"{text} | None" if spec.nullable else text


class Check:
    """Check of values' types. A subclass names the type."""

    def __init__(self, spec: TypeSpec, exact: Iterable[type] = ()) -> None:
        self.exact: set[type] = {*exact, *(_NONE if spec.nullable else ())}  # every value of these types conforms
        self._wanted = type_text(spec)

    def find(self, value: Any) -> Mismatch | None:
        """The first part of a value that is not as annotated; None if there is none."""
        if type(value) in self.exact:
            return None
        return self._mismatch(value) if value is None else self._look(value)

    def _look(self, value: Any) -> Mismatch | None:
        raise NotImplementedError

    def _mismatch(self, value: Any, instead: str = "") -> Mismatch:
        return Mismatch(value, self._wanted, instead)


def compile_check(spec: TypeSpec, *, outermost: bool = True) -> Check | None:
    """Make the check of a type; None if it admits everything.

    `outermost`: of a whole output, whose tensors `TensorOutputs` has checked and taken out before.
    """
    if spec.kind == "opaque" or spec.anything:
        return None
    if spec.kind == "union":
        members = [compile_check(member, outermost=False) for member in spec.members]
        checks = [member for member in members if member is not None]
        return _UnionCheck(spec, checks) if len(checks) == len(members) else None
    if spec.kind == "tensor":
        return None if outermost else _TensorCheck(spec)
    if spec.kind == "record":
        return _RecordCheck(spec, tensors_apart=outermost)
    if spec.kind == "array":
        return _ListCheck(spec)
    if spec.kind == "object":
        return _ObjectCheck(spec)
    return _FileCheck(spec) if spec.kind in {"path", "file"} else _ScalarCheck(spec)


class _ScalarCheck(Check):
    """Text, a number, a bool, or one of some choices."""

    def __init__(self, spec: TypeSpec) -> None:
        self._types = _SCALARS[spec.kind]
        self._choices = spec.choices
        super().__init__(spec, self._types if spec.choices is None else ())

    def _look(self, value: Any) -> Mismatch | None:
        plain = _scalar(value)
        if type(plain) not in self._types or (self._choices is not None and plain not in self._choices):
            return self._mismatch(value)
        if self._choices is None and _is_numpy_scalar(value) and len(self.exact) < _LEARNED:
            self.exact.add(type(value))  # each of these conforms: a list of them is settled by one look at its types
        return None


class _FileCheck(Check):
    """A path or an open file."""

    def _look(self, value: Any) -> Mismatch | None:
        return None if is_file(value) else self._mismatch(value)


class _ListCheck(Check):
    """A list, or what becomes one."""

    def __init__(self, spec: TypeSpec) -> None:
        super().__init__(spec)
        self._items = None if spec.items is None else compile_check(spec.items, outermost=False)

    def _look(self, value: Any) -> Mismatch | None:
        items = self._items
        if type(value) is list:
            values: Any = value
        elif hasattr(value, "__array__") and hasattr(value, "tolist"):
            values = [] if items is None else value.tolist()
        elif isinstance(value, abc.Iterator):
            return None  # it can be read only once, and has been
        else:
            values = value if isinstance(value, _LISTS) and not isinstance(value, _TEXTS) else None
        if not isinstance(values, (list, *_LISTS)):
            return self._mismatch(value)
        if items is None or items.exact.issuperset(map(type, values)):
            return None
        for index, each in enumerate(values):
            found = items.find(each)
            if found is not None:
                return found.inside(index)
        return None


class _ObjectCheck(Check):
    """A dict, or what becomes one."""

    def __init__(self, spec: TypeSpec) -> None:
        super().__init__(spec)
        self._values = None if spec.values is None else compile_check(spec.values, outermost=False)

    def _look(self, value: Any) -> Mismatch | None:
        fields = _fields_of(value)
        if fields is None:
            return self._mismatch(value)
        values = self._values
        if values is None or values.exact.issuperset(map(type, fields.values())):
            return None
        for key, each in fields.items():
            found = values.find(each)
            if found is not None:
                return found.inside(key_text(key))
        return None


class _RecordCheck(Check):
    """A dict or an object with the fields of a record; others beside them are admitted."""

    def __init__(self, spec: TypeSpec, *, tensors_apart: bool) -> None:
        super().__init__(spec)
        apart = {field.name for field in spec.fields if tensors_apart and field.type.kind == "tensor"}
        self._required = tuple(field.name for field in spec.fields if field.required and field.name not in apart)
        self._checks = tuple(
            (field.name, check)
            for field in spec.fields
            if field.name not in apart and (check := compile_check(field.type, outermost=False)) is not None
        )

    def _look(self, value: Any) -> Mismatch | None:
        fields = _fields_of(value)
        if fields is None:
            return self._mismatch(value)
        for name in self._required:
            if name not in fields:
                return self._mismatch(value, f"no field {name!r}")
        for name, check in self._checks:
            if name in fields and type(fields[name]) not in check.exact:
                found = check.find(fields[name])
                if found is not None:
                    return found.inside(name)
        return None


class _UnionCheck(Check):
    """A value of any of several types."""

    def __init__(self, spec: TypeSpec, members: list[Check]) -> None:
        super().__init__(spec, frozenset().union(*(member.exact for member in members)))
        self._members = members

    def _look(self, value: Any) -> Mismatch | None:
        found = []
        for member in self._members:
            mismatch = member.find(value)
            if mismatch is None:
                return None
            found.append(mismatch)
        nearest = max(found, key=lambda each: len(each.place))  # of `list[int] | str`, the element of the list
        return nearest if nearest.place else self._mismatch(value)


class _TensorCheck(Check):
    """A tensor within a list, a union or a record that is itself within something."""

    def __init__(self, spec: TypeSpec) -> None:
        from geartrain.worker import arrays  # a worker without tensors needs no numpy

        super().__init__(spec)
        self._arrays = arrays
        self._spec = spec

    def _look(self, value: Any) -> Mismatch | None:
        spec, arrays = self._spec, self._arrays
        try:
            shape, _ = arrays.plain_of(spec.datatype, value)
            arrays.check_shape(shape, spec)
        except ValueError as error:
            return self._mismatch(value, f"a value that {error},")
        return None


class StreamCheck(Check):
    """For the values of a stream that came where one value is declared: none of them conforms."""

    def __init__(self, spec: TypeSpec) -> None:
        super().__init__(spec)
        self.exact.clear()

    def find(self, value: Any) -> Mismatch | None:
        return self._mismatch(value, "a stream of values")


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _scalar(value: Any) -> Any:
    """The JSON scalar that a value becomes; anything else if it becomes none."""
    for _ in range(_STEPS):
        if value is None or type(value) in {str, int, float, bool, list, dict} or is_file(value):
            return value
        if hasattr(value, "tolist") and getattr(value, "shape", ()) != ():
            return value  # an array: what is in it does not matter
        try:
            value = simplifier_of(type(value))(value)
        except OutputError:
            return value
    return value


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    """The fields of an object as JSON has them, with their values as they are; None for what becomes no object."""
    if isinstance(value, abc.Mapping):
        return value
    kind = type(value)
    if is_pydantic(kind):
        return {name: getattr(value, name) for name in kind.model_fields if hasattr(value, name)}
    step = object_step(kind)
    return None if step is None else step(value)
