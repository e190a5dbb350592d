"""Constraints of values, and the complete list of an input's faults.

A `Rule` is a type of the signature together with the limits of its `Input()`. `faults` reads it with the semantics of
JSON Schema (7.0 is an integer, true is not a number, a limit speaks only about values it can measure) and words each
fault as Cog's server does, so a client that parses those sentences goes on working. It runs only for an input that the
compiled check did not accept.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from geartrain.domain.errors import FIELD_REQUIRED, MISSING
from geartrain.domain.rendering import render
from geartrain.domain.signature.json_schema import limit
from geartrain.domain.signature.types import nested_array
from geartrain.domain.tensors.nested_json import NestedArray

if TYPE_CHECKING:
    from geartrain.domain.signature.types import InputField, Kind, TypeSpec

JsonType = Literal["string", "integer", "number", "boolean", "array", "object", "any"]
FaultType = Literal["value_error", "value_error.missing", "value_error.extra"]

MAX_FAULTS_PER_FIELD = 10
MASK = "**********"

_JSON_TYPES: dict[Kind, JsonType] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "path": "string",
    "file": "string",
    "secret": "string",
    "object": "object",
    "array": "array",
    "union": "any",
    "record": "object",
    "opaque": "any",
    "tensor": "any",
}

# Python types whose every value is of the JSON type
_PLAIN_TYPES: dict[JsonType, frozenset[type]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
    "any": frozenset({str, int, float, bool, list, dict, type(None)}),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_IS_TYPE: dict[JsonType, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "any": lambda _: True,
}


class Rule(msgspec.Struct, frozen=True):
    """A type and its limits; a tree for arrays, unions and records."""

    json_type: JsonType
    nullable: bool = False
    items: Rule | None = None
    members: tuple[Rule, ...] = ()
    fields: tuple[tuple[str, Rule, bool], ...] | None = None  # name, rule, required
    closed: bool = False
    choices: tuple[Any, ...] | None = None
    minimum: float | int | None = None
    maximum: float | int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    matches: Callable[[str], bool] | None = None  # the compiled `pattern`
    secret: bool = False
    array: NestedArray | None = None  # of a tensor


class Fault(msgspec.Struct, frozen=True):
    """One fault: where inside the value, what is wrong, and its kind."""

    path: tuple[str | int, ...]
    msg: str
    type: FaultType = "value_error"


def rule_for_type(spec: TypeSpec) -> Rule:
    """The rule of a type that stands inside another one, where an explicit null is a value of a nullable type."""
    return Rule(
        json_type=_JSON_TYPES[spec.kind],
        nullable=spec.nullable,
        items=rule_for_type(spec.items) if spec.items is not None else None,
        members=tuple(rule_for_type(member) for member in spec.members),
        fields=_record_fields(spec),
        closed=spec.closed,
        choices=spec.choices,
        secret=holds(spec, "secret"),
        array=nested_array(spec) if spec.kind == "tensor" and not spec.form else None,
    )


def rule_for_input(field: InputField) -> Rule:
    """The rule of a parameter. Null passes for an Optional, and where None is the default.

    Choices and limits of a list are those of its elements.
    """
    rule = rule_for_type(field.type)
    nullable = field.type.nullable or (field.has_default and field.default is None)
    if rule.items is not None:
        return msgspec.structs.replace(rule, nullable=nullable, items=_limited(rule.items, field))
    return msgspec.structs.replace(_limited(rule, field), nullable=nullable)


def _limited(rule: Rule, field: InputField) -> Rule:
    return msgspec.structs.replace(
        rule,
        choices=field.choices if field.choices is not None else rule.choices,
        minimum=None if field.ge is None else limit(field.ge),
        maximum=None if field.le is None else limit(field.le),
        min_length=field.min_length,
        max_length=field.max_length,
        pattern=field.regex,
        matches=compile_pattern(field.regex) if field.regex is not None else None,
    )


def _record_fields(spec: TypeSpec) -> tuple[tuple[str, Rule, bool], ...] | None:
    if spec.kind != "record":
        return None
    return tuple((field.name, rule_for_type(field.type), field.required) for field in spec.fields)


def holds(spec: TypeSpec, *kinds: Kind) -> bool:
    """True if a type of one of these kinds stands anywhere in `spec`."""
    inner = (spec.items,) if spec.items is not None else ()
    return spec.kind in kinds or any(
        holds(part, *kinds) for part in (*inner, *spec.members, *(field.type for field in spec.fields))
    )


def faults(rule: Rule, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Yield what is wrong with `value`, lazily, so that a caller may stop at a number of faults."""
    if value is None and rule.nullable:
        return
    if rule.array is not None:
        yield from (Fault(place, text) for place, text in rule.array.faults(value, path))
        return
    yield from _choice_faults(rule, value, path)
    yield from _limit_faults(rule, value, path)
    if not _IS_TYPE[rule.json_type](value):
        yield Fault(path, f'{_shown(rule, value)} is not of type "{rule.json_type}"')
        return
    if rule.members and not any(accepts(member, value) for member in rule.members):
        yield Fault(path, f"{_shown(rule, value)} is not valid under any of the schemas listed in the 'anyOf' keyword")
    if rule.items is not None:
        yield from _item_faults(rule.items, value, path)
    if rule.fields is not None:
        yield from _record_faults(rule, value, path)


def accepts(rule: Rule, value: Any) -> bool:
    """True if `value` satisfies `rule`."""
    return next(faults(rule, value), None) is None


def first_faults(rule: Rule, value: Any) -> Iterator[Fault]:
    """The faults of one parameter, at most `MAX_FAULTS_PER_FIELD`: a client may send a million wrong elements."""
    found = faults(rule, value)
    yield from itertools.islice(found, MAX_FAULTS_PER_FIELD)
    if next(found, None) is not None:
        yield Fault((), f"more values are wrong; only the first {MAX_FAULTS_PER_FIELD} are listed")


def _item_faults(rule: Rule, values: list[Any], path: tuple[str | int, ...]) -> Iterator[Fault]:
    """The faults of a list's elements; one look at their types settles most lists, however long."""
    limits = (rule.minimum, rule.maximum, rule.min_length, rule.max_length, rule.pattern, rule.choices, rule.array)
    is_plain = all(limit is None for limit in limits)
    only_type = is_plain and rule.items is None and rule.fields is None and not rule.members
    if only_type and set(map(type, values)) <= _PLAIN_TYPES[rule.json_type]:
        return
    for index, value in enumerate(values):
        if not (only_type and _IS_TYPE[rule.json_type](value)):
            yield from faults(rule, value, (*path, index))


def _record_faults(rule: Rule, value: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Fault]:
    fields = {name: field_rule for name, field_rule, _ in rule.fields or ()}
    for name in sorted(value):
        if name in fields:
            yield from faults(fields[name], value[name], (*path, name))
        elif rule.closed:
            yield Fault((*path, name), unexpected(name, fields, "fields of this object"), "value_error.extra")
    for name, _, required in rule.fields or ():
        if required and name not in value:
            yield Fault((*path, name), FIELD_REQUIRED, MISSING)


def _choice_faults(rule: Rule, value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if rule.choices is not None and not any(_same(choice, value) for choice in rule.choices):
        yield Fault(path, f"{_shown(rule, value)} is not one of {render(list(rule.choices))}")


def _limit_faults(rule: Rule, value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if isinstance(value, str):
        length = len(value)
        if rule.max_length is not None and length > rule.max_length:
            yield Fault(path, f"{_shown(rule, value)} is longer than {_characters(rule.max_length)}")
        if rule.min_length is not None and length < rule.min_length:
            yield Fault(path, f"{_shown(rule, value)} is shorter than {_characters(rule.min_length)}")
        if rule.matches is not None and not rule.matches(value):
            yield Fault(path, f'{_shown(rule, value)} does not match "{rule.pattern}"')
    elif _is_number(value):
        if rule.maximum is not None and value > rule.maximum:
            yield Fault(path, f"{_shown(rule, value)} is greater than the maximum of {render(rule.maximum)}")
        if rule.minimum is not None and value < rule.minimum:
            yield Fault(path, f"{_shown(rule, value)} is less than the minimum of {render(rule.minimum)}")


def _same(choice: Any, value: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but neither equals true."""
    return isinstance(choice, bool) == isinstance(value, bool) and bool(choice == value)


def _characters(count: int) -> str:
    return "1 character" if count == 1 else f"{count} characters"


def _shown(rule: Rule, value: Any) -> str:
    return MASK if rule.secret and value is not None else render(value)


def unexpected(name: str, known: Iterable[str], what: str) -> str:
    """The sentence about an unknown field; `what` names the things that `known` lists."""
    names = ", ".join(known)
    return f"Unexpected field {render(name)}; the {what} are: {names}" if names else f"Unexpected field {render(name)}"


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a predicate: does `pattern` occur in a text (unanchored, section 7 of the observed API)?

    It runs in the parent, on the loop that serves everybody, on text that a client chose, so no pattern may take
    exponential time: `jsonschema_rs` (the dialect of JSON Schema, and Cog's engine) gives up after a fixed number of
    steps. Only a pattern that it cannot read, such as one with Python's named groups, falls to `re`. Raises `re.error`
    for what is no regular expression in either dialect.
    """
    import jsonschema_rs  # 60 ms that only models with a regex need

    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern}).is_valid
    except jsonschema_rs.ValidationError:
        search = re.compile(pattern).search
        return lambda text: search(text) is not None
