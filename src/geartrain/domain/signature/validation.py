"""Validation of an input against a signature, at the edge, before anything is run.

A good input pays for one pass of a compiled decoder. Anything else is read again, completely, and every fault is told
at once, as the table of section 7 of the observed API has it; what the documents say more (unknown fields are
rejected) is added.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from geartrain.domain.errors import FIELD_REQUIRED, MISSING, Code, FieldError, GeartrainError
from geartrain.domain.rendering import clip, json_fault, render
from geartrain.domain.signature.constraints import (
    Fault,
    accepts,
    first_faults,
    holds,
    rule_for_input,
    unexpected,
)
from geartrain.domain.tensors.nested_json import INTEGERS
from geartrain.domain.tensors.tensor import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from geartrain.domain.signature.constraints import JsonType, Rule
    from geartrain.domain.signature.types import Signature
    from geartrain.domain.tensors.nested_json import NestedArray

_INT64 = range(-(2**63), 2**63)
_EXACT_FLOAT = 2**53  # integers up to here are the same number as a float

# JSON's own types, to see whether msgspec can tell the members of a union apart
_SHAPES = {
    "string": {"string"},
    "integer": {"integer"},
    "number": {"integer", "float"},
    "boolean": {"boolean"},
    "array": {"array"},
    "object": {"object"},
}
ROOT = "__root__"
_MOST_UNKNOWN = 10  # fields that the model does not have, and that an error names
_decode_any = msgspec.json.Decoder().decode


class InexpressibleError(Exception):
    """msgspec has no type that is at least as strict as this rule."""


class QuickCheck:
    """One decoder for the whole input.

    `rest` are the parameters that the decoder leaves open, as pairs of attribute and rule. `skips_text` is true when
    the decoder passes over fields that no rule names: their text is then not proven to be JSON.
    """

    def __init__(self, rules: Sequence[tuple[str, Rule, bool]]) -> None:
        self._open_records = False
        rest: list[tuple[str, Rule]] = []
        types: list[Any] = []
        for index, (_, rule, _) in enumerate(rules):
            try:
                types.append(self._type(rule))
            except InexpressibleError:
                types.append(Any)
                rest.append((f"f{index}", rule))
        model = _struct("Input", rules, types, closed=True)
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(model).decode
        self.rest = tuple(rest)
        self.skips_text = self._open_records

    def _type(self, rule: Rule) -> Any:
        kind = self._plain_type(rule)
        return kind | None if rule.nullable and kind is not Any else kind

    def _plain_type(self, rule: Rule) -> Any:
        if rule.matches is not None:
            raise InexpressibleError
        if rule.array is not None:
            return _nested(rule.array)
        if rule.choices is not None:
            return _choices(rule)
        if rule.members:
            return self._union(rule)
        if rule.items is not None:
            return list[self._type(rule.items)]  # type: ignore[misc]
        if rule.fields is not None:
            return self._record(rule)
        return _TYPES[rule.json_type](rule)

    def _union(self, rule: Rule) -> Any:
        _refuse_limits(rule)
        seen: set[str] = set()
        for member in rule.members:
            shapes = _SHAPES.get(member.json_type)
            if shapes is None or seen & shapes:
                raise InexpressibleError
            seen |= shapes
        return functools.reduce(operator.or_, (self._type(member) for member in rule.members))

    def _record(self, rule: Rule) -> Any:
        fields = rule.fields or ()
        if not rule.closed:
            self._open_records = True
        return _struct("Record", fields, [self._type(field) for _, field, _ in fields], closed=rule.closed)


def _struct(name: str, fields: Sequence[tuple[str, Rule, bool]], types: Sequence[Any], *, closed: bool) -> Any:
    """A struct type; attributes are numbered, for a JSON name may be any text."""
    members: list[Any] = [
        (f"f{index}", kind) if required else (f"f{index}", kind | msgspec.UnsetType, msgspec.UNSET)
        for index, (kind, (_, _, required)) in enumerate(zip(types, fields, strict=True))
    ]
    names = {f"f{index}": field for index, (field, _, _) in enumerate(fields)}
    return msgspec.defstruct(name, members, rename=names, kw_only=True, forbid_unknown_fields=closed, gc=False)


def _choices(rule: Rule) -> Any:
    """Choices that are text or small integers of the rule's own type."""
    wanted: tuple[type, ...] = {"string": (str,), "integer": (int,), "any": (str, int)}.get(rule.json_type, ())
    _refuse_limits(rule)
    choices = rule.choices or ()
    plain = all(type(choice) in wanted and (isinstance(choice, str) or choice in _INT64) for choice in choices)
    if not choices or not plain or rule.members:
        raise InexpressibleError
    return Literal[choices]


def _nested(array: NestedArray) -> Any:
    """Arrays in arrays whose sizes say that all rows are equally long; only the first one may be open."""
    limits = INTEGERS.get(array.datatype)
    open_inside = any(size == VARIABLE for size in array.shape[1:])
    if array.variadic or open_inside or (limits is None and array.element == "number") or array.datatype == "UINT64":
        raise InexpressibleError
    kind: Any = {"integer": int, "boolean": bool, "string": str}[array.element]
    if limits is not None:
        kind = _constrained(int, ge=limits[0], le=limits[1])
    for size in reversed(array.shape):
        kind = list[kind] if size == VARIABLE else Annotated[list[kind], msgspec.Meta(min_length=size, max_length=size)]
    return kind


def _any(rule: Rule) -> Any:
    _refuse_limits(rule)
    return Any


def _refuse_limits(rule: Rule) -> None:
    """Limits beside a type that is not one msgspec can put them on."""
    limits = (rule.minimum, rule.maximum, rule.min_length, rule.max_length)
    if any(limit is not None for limit in limits):
        raise InexpressibleError


def _integer(rule: Rule) -> Any:
    low = None if rule.minimum is None else math.ceil(rule.minimum)
    high = None if rule.maximum is None else math.floor(rule.maximum)
    if any(limit is not None and limit not in _INT64 for limit in (low, high)):
        raise InexpressibleError
    return _constrained(int, ge=low, le=high)


def _float(rule: Rule) -> Any:
    for limit in (rule.minimum, rule.maximum):
        if isinstance(limit, int) and abs(limit) > _EXACT_FLOAT:
            raise InexpressibleError
    return _constrained(float, ge=rule.minimum, le=rule.maximum)


_TYPES: dict[JsonType, Callable[[Rule], Any]] = {
    "string": lambda rule: _constrained(str, min_length=rule.min_length, max_length=rule.max_length),
    "boolean": lambda _: bool,
    "integer": _integer,
    "number": lambda rule: _integer(rule) | _float(rule),
    "array": lambda _: list[Any],
    "object": lambda _: dict[str, Any],
    "any": _any,
}


def _constrained(kind: type, **limits: float | None) -> Any:
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    return Annotated[kind, msgspec.Meta(**given)] if given else kind


class InputValidator:
    """Checks the JSON text of an input. Made once per signature; holds no state between calls."""

    def __init__(self, signature: Signature) -> None:
        self._rules = {field.name: rule_for_input(field) for field in signature.inputs}
        self._required = tuple(field.name for field in signature.inputs if field.required)
        self.file_fields = tuple(f.name for f in signature.inputs if holds(f.type, "path", "file"))
        self.secret_fields = tuple(f.name for f in signature.inputs if holds(f.type, "secret"))
        quick = QuickCheck([(field.name, self._rules[field.name], field.required) for field in signature.inputs])
        self._decode = quick.decode
        self._rest = quick.rest
        self._skips_text = quick.skips_text
        self._one_pass = not quick.rest and not quick.skips_text

    def check(self, raw: bytes) -> tuple[FieldError, ...]:
        """Every fault of the input whose JSON text is `raw`; empty when it is fine.

        Raises `GeartrainError` (`UNPARSABLE`) when the text is no JSON, no UTF-8, holds a lone surrogate, a number
        beyond the range of a float, or is nested too deeply to be read.
        """
        try:
            value = self._decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._report(raw)
        if self._one_pass or self._rest_is_fine(value, raw):
            return ()
        return self._report(raw)

    def _rest_is_fine(self, value: Any, raw: bytes) -> bool:
        if self._skips_text:
            _parse(raw)
        given = ((rule, getattr(value, name)) for name, rule in self._rest)
        return all(part is msgspec.UNSET or accepts(rule, part) for rule, part in given)

    def _report(self, raw: bytes) -> tuple[FieldError, ...]:
        value = _parse(raw)
        if not isinstance(value, dict):
            return (_error(ROOT, Fault((), f'{render(value)} is not of type "object"')),)
        return (*self._wrong_fields(value), *self._missing_fields(value))

    def _wrong_fields(self, value: dict[str, Any]) -> list[FieldError]:
        errors: list[FieldError] = []
        missing: list[FieldError] = []
        unknown = 0
        for name in sorted(value):
            rule = self._rules.get(name)
            if rule is None:
                unknown += 1
                if unknown <= _MOST_UNKNOWN:
                    errors.append(_error(name, Fault((), self._unexpected(name), "value_error.extra")))
                continue
            for fault in first_faults(rule, value[name]):
                (missing if fault.type == MISSING else errors).append(_error(name, fault))
        if unknown > _MOST_UNKNOWN:
            text = f"{unknown} fields are unexpected, of which the first {_MOST_UNKNOWN} are named"
            errors.insert(0, _error(ROOT, Fault((), text, "value_error.extra")))
        return errors + missing

    def _missing_fields(self, value: dict[str, Any]) -> Iterator[FieldError]:
        for name in self._required:
            if name not in value:
                yield _error(name, Fault((), FIELD_REQUIRED, MISSING))

    def _unexpected(self, name: str) -> str:
        return unexpected(name, self._rules, "inputs of this model")


def _parse(raw: bytes) -> Any:
    try:
        return _decode_any(raw)
    except UnicodeDecodeError as error:
        raise GeartrainError(Code.UNPARSABLE, "The input is not valid UTF-8") from error
    except RecursionError as error:
        raise GeartrainError(Code.UNPARSABLE, "The input is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise GeartrainError(Code.UNPARSABLE, f"The input is not valid JSON: {json_fault(raw, error)}") from error


def _error(name: str, fault: Fault) -> FieldError:
    """The place of a fault is one text, joined by slashes as in a JSON pointer: `scores/3`."""
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in fault.path]
    place = clip("/".join([name, *steps]))
    return FieldError(loc=("body", "input", place), msg=fault.msg, type=fault.type)
