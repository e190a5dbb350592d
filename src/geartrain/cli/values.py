"""From `-i name=value` to a model's input: the signature says what each text means.

Values come out as JSON; whether they keep to `ge`, `max_length` and the like is the validator's to say.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import mimetypes
import pathlib
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from geartrain.cli.options import parse_boolean
from geartrain.domain.errors import FieldError
from geartrain.domain.signature.types import InputField, Signature, TypeSpec

_URL_SCHEMES = ("http://", "https://", "data:")
_KIND_NAMES = {
    "path": "a file",
    "file": "a file",
    "secret": "string",
    "record": "object",
    "opaque": "JSON",
    "tensor": "nested arrays",
}
# A union takes the narrowest member that fits: `1` is a number before it is text.
_UNION_ORDER = ("integer", "number", "boolean", "array", "record", "object", "path", "file", "secret", "string")


class InputError(Exception):
    """An input that cannot be given to the model; the message is one sentence for the person who typed it."""


class _MismatchError(Exception):
    """A text that is no value of a type. `problem` follows `invalid input "x": `."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def split_pairs(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Gather `name=value` texts by name, in order; a repeated name has several texts.

    Raises InputError for a text without `=` or without a name.
    """
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{pair!r} is no input; write -i name=value")
        texts.setdefault(name.strip(), []).append(text)
    return texts


def check_files(texts: dict[str, list[str]]) -> None:
    """Read stdin to its end if a text is `@-`, and look at the files that the other `@` texts name.

    Raises InputError for one that is not there or cannot be read. Whatever the type of an input, `@` means a file, so
    this needs no model.
    """
    for text in (text for given in texts.values() for text in given if text.startswith("@")):
        name = text[1:]
        if name == "-":
            _read(name)  # before the worker is there: Ctrl-C still ends a wait for stdin
        else:
            _look_at(name)


def build_input(signature: Signature, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Turn the texts of each input into its JSON value.

    `@file` stands for the file's content, `@-` for what comes on stdin: a `data:` URL for a Path or File, the text or
    JSON in it for any other type. Several texts for a list are its elements; one text may also be the list as JSON.

    Raises InputError for an unknown, missing, repeated or mistyped input.
    """
    fields = {field.name: field for field in signature.inputs}
    for name in texts:
        if name not in fields:
            raise InputError(_unknown(name, fields))
    values = {name: _field_value(fields[name], given) for name, given in texts.items()}
    _require(signature, values)
    return values


def parse_json_input(text: str) -> dict[str, Any]:
    """Read a whole input written as a JSON object; raises InputError when it is not one."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the input is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f'the input must be a JSON object such as {{"name": 1}}, got {_json_kind(value)}')
    return value


def describe(errors: Iterable[FieldError]) -> list[str]:
    """Say what the validator found, in the terms of the command line."""
    return [_describe(error) for error in errors]


def _describe(error: FieldError) -> str:
    name = "/".join(error.loc[2:]) or "/".join(error.loc)
    if error.type == "value_error.missing":
        return f'missing required input "{name}"'
    if error.type == "value_error.extra":
        return f'unknown input "{name}"; {error.msg}'
    if error.msg.startswith("null is not of type"):
        return f'invalid input "{name}": must not be null; leave it out instead'
    return f'invalid input "{name}": {error.msg}'


def encode_input(values: dict[str, Any]) -> bytes:
    """Return the input as JSON text; raises InputError for a number too large for JSON (`1e999`)."""
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise InputError("the input holds a number that JSON cannot carry") from None


def read_argument(text: str) -> str:
    """Return `text`, or the text of the file it names as `@file`, stdin as `@-`; raises InputError if unreadable."""
    if not text.startswith("@"):
        return text
    try:
        return _read(text[1:]).decode()
    except UnicodeDecodeError:
        raise InputError(f"{'stdin' if text == '@-' else text[1:]} is not UTF-8 text") from None


def _unknown(name: str, fields: dict[str, InputField]) -> str:
    takes = f"this model takes {', '.join(fields)}" if fields else "this model takes no inputs"
    return f'unknown input "{name}"; {takes}'


def _require(signature: Signature, values: dict[str, Any]) -> None:
    for field in signature.inputs:
        if field.required and field.name not in values:
            raise InputError(f'missing required input "{field.name}"')


def _field_value(field: InputField, texts: list[str]) -> Any:
    choices = field.choices if field.choices is not None else field.type.choices
    try:
        if field.type.kind == "array":
            return _array(field.type, texts, element_choices=field.choices)
        if len(texts) > 1:
            raise _MismatchError(f"given {len(texts)} times, but it is no list")
        return _choose(choices, _scalar(field.type, texts[0])) if choices else _scalar(field.type, texts[0])
    except _MismatchError as mismatch:
        raise InputError(f'invalid input "{field.name}": {mismatch.problem}') from None


def _choose(choices: tuple[Any, ...], value: Any) -> Any:
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        raise _MismatchError(f"must be one of: {', '.join(map(_show, choices))}")
    return value


def _array(spec: TypeSpec, texts: list[str], *, element_choices: tuple[Any, ...] | None = None) -> list[Any]:
    items = spec.items or TypeSpec("opaque")
    if len(texts) == 1 and (whole := _json_list(texts[0], items)) is not None:
        return whole
    choices = element_choices if element_choices is not None else items.choices
    values = [_scalar(items, text) for text in texts]
    return [_choose(choices, value) for value in values] if choices else values


def _json_list(text: str, items: TypeSpec) -> list[Any] | None:
    """Return the list that one text is as a whole; None when it is a single element."""
    if items.kind in ("path", "file") and text.startswith("@"):
        return None
    text = read_argument(text)
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list):
        return None
    if items.kind == "array" and not all(isinstance(element, list) for element in value):
        return None
    return value


def _scalar(spec: TypeSpec, text: str) -> Any:
    if spec.kind in ("path", "file"):
        return _file(text)
    return _CONVERTERS[spec.kind](spec, read_argument(text))


def _string(_: TypeSpec, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # the shell passed bytes that are no UTF-8
        raise _MismatchError("the text is not valid UTF-8") from None
    return text


def _integer(_: TypeSpec, text: str) -> int:
    value = _json(text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _expected("integer", value)
    return value


def _number(_: TypeSpec, text: str) -> int | float:
    value = _json(text)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _expected("number", value)
    return value


def _boolean(_: TypeSpec, text: str) -> bool:
    try:
        return parse_boolean(text)
    except ValueError:
        raise _expected("boolean", _json(text)) from None


def _object(_: TypeSpec, text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        hint = ' written as JSON, such as {"a": 1}'
        raise _MismatchError(f"expected object{hint}, got {_json_kind(value)}")
    return value


def _union(spec: TypeSpec, text: str) -> Any:
    for kind in _UNION_ORDER:
        for member in spec.members:
            if member.kind != kind or (kind == "boolean" and text.lower() not in ("true", "false")):
                continue
            try:
                value = _array(member, [text]) if kind == "array" else _scalar(member, text)
                return _choose(member.choices, value) if member.choices else value
            except _MismatchError:
                continue
    kinds = " or ".join(_KIND_NAMES.get(member.kind, member.kind) for member in spec.members)
    raise _MismatchError(f"expected {kinds}, got {_json_kind(_json(text))}")


def _opaque(_: TypeSpec, text: str) -> Any:
    value = _json(text)
    return _string(TypeSpec("string"), text) if value is None or isinstance(value, str) else value


def _tensor(spec: TypeSpec, text: str) -> Any:
    value = _json(text)
    if isinstance(value, list) or not spec.shape:
        return value
    raise _MismatchError(f"expected nested arrays written as JSON, such as [[1, 2], [3, 4]], got {_json_kind(value)}")


_CONVERTERS: dict[str, Callable[[TypeSpec, str], Any]] = {
    "string": _string,
    "secret": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "record": _object,
    "array": lambda spec, text: _array(spec, [text]),
    "union": _union,
    "opaque": _opaque,
    "tensor": _tensor,
}


def _file(text: str) -> str:
    if text.startswith("@"):
        return data_url(text[1:])
    if text.startswith(_URL_SCHEMES):
        return text
    raise _MismatchError(f"expected a URL or @file, got {text!r}; for a file of your own write @{text}")


def data_url(name: str) -> str:
    """Return the file's content as a `data:` URL, its media type guessed from the name; raises InputError."""
    content = _read(name)
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _read(name: str) -> bytes:
    with _unreadable_explained(name):
        return _whole_of(sys.stdin.buffer) if name == "-" else pathlib.Path(name).expanduser().read_bytes()


@functools.lru_cache(maxsize=1)
def _whole_of(stream: BinaryIO) -> bytes:
    """Return all of stdin, also when asked a second time."""
    return stream.read()


def _look_at(name: str) -> None:
    """Raise `InputError` for a file that is missing or unreadable. A pipe is left alone: it can be opened once only."""
    with _unreadable_explained(name):
        path = pathlib.Path(name).expanduser()
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            path.open("rb").close()


@contextlib.contextmanager
def _unreadable_explained(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: NUL in the name; RuntimeError: no such ~user
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "to give text that begins with @, use --json"
        raise InputError(f"cannot read {name or 'a file without a name'}: {reason} ({hint})") from None


def _json(text: str) -> Any:
    """Read text as JSON; what is no JSON is itself, a string."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _expected(kind: str, value: Any) -> _MismatchError:
    if value is None:
        return _MismatchError("must not be null; leave it out instead")
    return _MismatchError(f"expected {kind}, got {_json_kind(value)}")


def _json_kind(value: Any) -> str:
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


def _show(choice: Any) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)
