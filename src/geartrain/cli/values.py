"""From `-i name=value` to a model's input: the signature says what each text means.

Values come out as JSON; whether they keep to `ge`, `max_length` and the like is the validator's to say.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from geartrain.cli.failure import fail
from geartrain.domain.data_urls import data_url_of, media_type_of
from geartrain.domain.errors import MISSING, FieldError
from geartrain.domain.signature.text_values import MismatchError, TextReader, encode_values, json_kind, parse_json
from geartrain.domain.signature.types import InputField, Signature

_URL_SCHEMES = ("http://", "https://", "data:")


class InputError(Exception):
    """Inputs that cannot be given to the model. Each of `sentences` is for the person who typed them."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


class WrongInputsError(InputError):
    """Inputs with some wrong ones; `names` are those, and `values` the others as JSON values."""

    def __init__(self, sentences: Iterable[str], names: frozenset[str], values: dict[str, Any]) -> None:
        super().__init__(*sentences)
        self.names = names
        self.values = values


def split_pairs(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Gather `name=value` texts by name, in order; a repeated name has several texts.

    Raises InputError for a text without `=` or without a name.
    """
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{pair!r} is no input; write name=value")
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

    Raises `WrongInputsError` for unknown, missing, repeated and mistyped inputs, all of them at once.
    """
    fields = {field.name: field for field in signature.inputs}
    wrong: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, given in texts.items():
        try:
            values[name] = _field_value(fields[name], given)
        except KeyError:
            wrong[name] = _unknown(name, fields)
        except InputError as error:
            wrong[name] = str(error)
    for field in signature.inputs:
        if field.required and field.name not in texts:
            wrong[field.name] = f'missing required input "{field.name}"'
    if wrong:
        raise WrongInputsError(wrong.values(), frozenset(wrong), values)
    return values


def parse_json_input(text: str) -> dict[str, Any]:
    """Read a whole input written as a JSON object; raises InputError when it is not one."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the input is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f'the input must be a JSON object such as {{"name": 1}}, got {json_kind(value)}')
    return value


def describe(errors: Iterable[FieldError]) -> list[str]:
    """Say what the validator found, in the terms of the command line."""
    return [_describe(error) for error in errors]


def _describe(error: FieldError) -> str:
    name = "/".join(error.loc[2:]) or "/".join(error.loc)
    if error.type == MISSING:
        return f'missing required input "{name}"'
    if error.type == "value_error.extra":
        return f'unknown input "{name}"; {error.msg.removeprefix("unexpected; ")}'
    if error.msg.startswith("null is not of type"):
        return f'invalid input "{name}": must not be null; leave it out instead'
    return f'invalid input "{name}": {error.msg}'


def encode_input(values: dict[str, Any]) -> bytes:
    """Return the input as JSON text; raises InputError for a number too large for JSON (`1e999`)."""
    try:
        return encode_values(values)
    except ValueError as error:
        raise InputError(str(error)) from None


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


def _field_value(field: InputField, texts: list[str]) -> Any:
    try:
        return _READER.value(field, texts)
    except MismatchError as mismatch:
        raise InputError(f'invalid input "{field.name}": {mismatch.problem}') from None


def _file(text: str) -> str:
    if text.startswith("@"):
        return data_url(text[1:])
    if text.startswith(_URL_SCHEMES):
        return text
    raise MismatchError(f"expected a URL or @file, got {text!r}; for a file of your own write @{text}")


def data_url(name: str) -> str:
    """Return the file's content as a `data:` URL, its media type guessed from the name; raises InputError."""
    return data_url_of(_read(name), media_type_of(name))


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


_READER: Final = TextReader(read=read_argument, read_file=_file)


class Request(NamedTuple):
    """One prediction on the command line: inputs as `texts` by name, or as one JSON `document`."""

    texts: dict[str, list[str]]
    document: dict[str, Any] | None
    output: pathlib.Path | None


def read_request(inputs: list[str] | None, json_input: str | None, output: pathlib.Path | None) -> Request:
    """Look at all that can be looked at before there is a model. Raises `values.InputError`."""
    if inputs and json_input is not None:
        fail("--json is the whole input; leave -i out")
    if output is not None and not output.parent.is_dir():
        fail(f"cannot write {output}: there is no folder {output.parent}")
    texts = split_pairs(inputs or ())
    check_files(texts)
    return Request(texts, None if json_input is None else parse_json_input(_whole(json_input)), output)


def _whole(text: str) -> str:
    return read_argument("@-" if text == "-" else text)
