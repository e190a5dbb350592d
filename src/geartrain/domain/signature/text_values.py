"""From texts to the values of inputs: the signature says what each text means.

The command line and forms give inputs as texts. Values come out as JSON; whether they keep to `ge`, `max_length` and
the like is the validator's to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from geartrain.domain.rendering import render
from geartrain.domain.signature.types import FILE_KINDS, InputField, TypeSpec

TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
FALSE: Final = frozenset({"false", "0", "no", "off", "f", "n"})

_KIND_NAMES: Final = {
    "path": "a file",
    "file": "a file",
    "secret": "string",
    "record": "object",
    "opaque": "JSON",
    "tensor": "nested arrays",
}
# A union takes the narrowest member that fits: `1` is a number before it is text.
_UNION_ORDER: Final = (
    "integer",
    "number",
    "boolean",
    "array",
    "record",
    "object",
    "path",
    "file",
    "secret",
    "string",
)


class MismatchError(Exception):
    """A text that is no value of a type. `problem` follows `invalid input "x": `."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def parse_boolean(text: str) -> bool:
    """Read `true`, `false` and their usual short forms, in any case; raises ValueError for other text."""
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_json(text: str) -> Any:
    """Read text as JSON, without `NaN` and the like; raises ValueError or RecursionError."""
    return json.loads(text, parse_constant=_refuse_constant)


def encode_values(values: dict[str, Any]) -> bytes:
    """Return values as JSON text; raises ValueError for what JSON cannot carry, such as `1e999`."""
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError("the input is nested too deeply") from None
    except ValueError:
        raise ValueError("the input holds a number that JSON cannot carry") from None


class TextReader:
    """Turns the texts of an input into its value.

    `read` makes of a text what it stands for, and `read_file` the URL of a file; both may raise `MismatchError`.
    """

    def __init__(self, *, read: Callable[[str], str], read_file: Callable[[str], str]) -> None:
        self._read = read
        self._read_file = read_file

    def value(self, field: InputField, texts: Sequence[str]) -> Any:
        """Return the value of an input; several texts are the elements of a list.

        Raises `MismatchError`.
        """
        if field.type.kind == "array":
            return self._array(field.type, texts, choices=field.choices)
        refuse_several(len(texts))
        choices = field.choices if field.choices is not None else field.type.choices
        value = self._scalar(field.type, texts[0])
        return _choose(choices, value) if choices else value

    def element(self, field: InputField, text: str) -> Any:
        """Return one element of an input that is a list; raises `MismatchError`."""
        return self._elements(field.type, (text,), choices=field.choices)[0]

    def _array(self, spec: TypeSpec, texts: Sequence[str], *, choices: tuple[Any, ...] | None = None) -> list[Any]:
        if len(texts) == 1:
            whole = self._json_list(texts[0], spec.items or _OPAQUE)
            if whole is not None:
                return whole
        return self._elements(spec, texts, choices=choices)

    def _elements(self, spec: TypeSpec, texts: Sequence[str], *, choices: tuple[Any, ...] | None) -> list[Any]:
        items = spec.items or _OPAQUE
        choices = choices if choices is not None else items.choices
        values = [self._scalar(items, text) for text in texts]
        return [_choose(choices, value) for value in values] if choices else values

    def _json_list(self, text: str, items: TypeSpec) -> list[Any] | None:
        """Return the list that one text is as a whole; None when it is a single element."""
        if items.kind not in FILE_KINDS:  # the text of a file is not its content
            text = self._read(text)
        if not text.lstrip().startswith("["):
            return None
        try:
            value = parse_json(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, list):
            return None
        if items.kind == "array" and not all(isinstance(element, list) for element in value):
            return None
        return value

    def _scalar(self, spec: TypeSpec, text: str) -> Any:
        if spec.kind in FILE_KINDS:
            return self._read_file(text)
        if spec.kind == "array":
            return self._array(spec, (self._read(text),))
        if spec.kind == "union":
            return self._union(spec, self._read(text))
        return _CONVERTERS[spec.kind](spec, self._read(text))

    def _union(self, spec: TypeSpec, text: str) -> Any:
        for kind in _UNION_ORDER:
            for member in spec.members:
                if member.kind != kind or (kind == "boolean" and text.lower() not in ("true", "false")):
                    continue
                try:
                    value = self._array(member, (text,)) if kind == "array" else self._scalar(member, text)
                    return _choose(member.choices, value) if member.choices else value
                except MismatchError:
                    continue
        kinds = " or ".join(_KIND_NAMES.get(member.kind, member.kind) for member in spec.members)
        raise MismatchError(f"expected {kinds}, got {json_kind(_json_or_text(text))}")


def refuse_several(count: int) -> None:
    """Raise `MismatchError` if there is more than one value for an input that is no list."""
    if count > 1:
        raise MismatchError(f"given {count} times, but it is no list")


def json_kind(value: Any) -> str:
    """Return JSON's name of a value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _choose(choices: tuple[Any, ...], value: Any) -> Any:
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        raise MismatchError(f"must be one of: {', '.join(map(_show, choices))}")
    return value


def _string(_: TypeSpec, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # the shell passed bytes that are no UTF-8
        raise MismatchError("the text is not valid UTF-8") from None
    return text


def _integer(_: TypeSpec, text: str) -> int:
    value = _json_or_text(text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _expected("integer", value)
    return value


def _number(_: TypeSpec, text: str) -> int | float:
    value = _json_or_text(text)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _expected("number", value)
    return value


def _boolean(_: TypeSpec, text: str) -> bool:
    try:
        return parse_boolean(text)
    except ValueError:
        raise _expected("boolean", _json_or_text(text)) from None


def _object(_: TypeSpec, text: str) -> dict[str, Any]:
    value = _json_or_text(text)
    if not isinstance(value, dict):
        hint = ' written as JSON, such as {"a": 1}'
        raise MismatchError(f"expected object{hint}, got {json_kind(value)}")
    return value


def _opaque(spec: TypeSpec, text: str) -> Any:
    value = _json_or_text(text)
    return _string(spec, text) if value is None or isinstance(value, str) else value


def _tensor(spec: TypeSpec, text: str) -> Any:
    value = _json_or_text(text)
    if isinstance(value, list) or not spec.shape:
        return value
    raise MismatchError(f"expected nested arrays written as JSON, such as [[1, 2], [3, 4]], got {json_kind(value)}")


_OPAQUE: Final = TypeSpec("opaque")
_CONVERTERS: Final[dict[str, Callable[[TypeSpec, str], Any]]] = {
    "string": _string,
    "secret": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "record": _object,
    "opaque": _opaque,
    "tensor": _tensor,
}


def _json_or_text(text: str) -> Any:
    """Read text as JSON; what is no JSON is itself, a string."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _expected(kind: str, value: Any) -> MismatchError:
    if value is None:
        return MismatchError("must not be null; leave it out instead")
    return MismatchError(f'{render(value)} is not of type "{kind}"')  # in the words of the validator


def _show(choice: Any) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)
