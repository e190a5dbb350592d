"""Limits of a JSON text, counted before it is decoded. Pure.

Every count is native: a Python step for each pass over the text, and none for each element. A pass over a text of more
than `json_scan.PIECE` bytes is made in pieces, so that a thread that counts lets others run.
"""

from __future__ import annotations

import json.decoder
import re
from collections.abc import Callable, Collection, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 64
MAX_ELEMENTS: Final = 2_000_000  # of what is not the data of a tensor
MAX_MEMBERS: Final = 10_000  # of an object whose members are looked at one by one
MAX_INPUTS: Final = 10_000  # of an infer request

_SMALL: Final = 65_536  # bytes; the module for larger ones takes a tenth of a second to load
_SEPARATORS: Final = b",[{"
_RARE: Final = 20_000  # of a character that `count_some` finds one by one
_NOT_BRACKETS: Final = bytes(sorted({*range(256)} - {*b"[]{}"}))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_TOO_MANY: Final = b"[" * (MAX_DEPTH + 1)
_NOT_STRUCTURE: Final = bytes(sorted({*range(256)} - {*b"[]{},:"}))
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\n\r]*")

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_lenient: Any = JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)  # reads numbers of any size
_skip_value: Callable[[str, int], tuple[object, int]] = _lenient.scan_once
_read_string: Callable[[str, int], tuple[str, int]] = json.decoder.scanstring  # type: ignore[attr-defined]
_decode_lenient = _lenient.decode


class JsonLimitError(ValueError):
    """A JSON text is beyond a limit; the message says which one."""


def count_some(text: bytes | bytearray, signs: bytes, most: int) -> int:
    """Count these characters in a text; the result exceeds `most` if there are more.

    A rare character is found by a search, which reads a text ten times as fast as `bytes.count`. Each one that is found
    takes a tenth of a microsecond.
    """
    count = 0
    find = text.find
    for sign in signs:
        at = find(sign)
        while at >= 0:
            count += 1
            if count > most:
                return count
            at = find(sign, at + 1)
    return count


def structure(text: bytes | bytearray) -> bytes:
    """Return the brackets, braces, commas and colons of a JSON text that stand outside of its strings, in order."""
    if len(text) <= _SMALL:
        return _STRING.sub(b"", text).translate(None, _NOT_STRUCTURE)
    from geartrain.apis import json_scan  # late: it imports numpy

    return b"".join(json_scan.structure(text))


def check_depth(text: bytes | bytearray) -> None:
    """Raise `JsonLimitError` if this text, which is JSON, is nested more than `MAX_DEPTH` deep."""
    if len(text) <= 2 * MAX_DEPTH or count_some(text, b"[{", MAX_DEPTH) <= MAX_DEPTH:
        return
    if _is_deep(text) and _is_deep(structure(text)):  # brackets in strings count the first time only
        msg = f"it is nested more than {MAX_DEPTH} deep"
        raise JsonLimitError(msg)


def check_run(text: bytes | bytearray) -> None:
    """Check the depth like `check_depth`, at a fraction of the cost, if nothing shallow precedes the deep part.

    It finds `[[[…`, and not `[[],[[],…`: enough where nothing recursive reads the text.
    """
    if len(text) <= 2 * MAX_DEPTH or count_some(text, b"[{", MAX_DEPTH) <= MAX_DEPTH:
        return
    if _TOO_MANY in text.translate(_ONE_KIND, _NOT_BRACKETS):
        check_depth(text)


def _is_deep(text: bytes | bytearray) -> bool:
    """True if pairs are left after `MAX_DEPTH` passes, each removing the innermost ones."""
    brackets = text.translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        if _TOO_MANY in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def check_elements(
    text: bytes | bytearray, most: int = MAX_ELEMENTS, *, tensors: Collection[str] = (), what: str = "the input"
) -> None:
    """Raise `JsonLimitError` if an object of JSON holds more than `most` values, at any depth.

    What the members named in `tensors` hold is not counted.
    """
    if len(text) < most or count_some(text, _SEPARATORS, min(most, _RARE)) < min(most, _RARE):
        return
    from geartrain.apis import json_scan

    if json_scan.count(text, _SEPARATORS) < most:  # all that separates values, in strings or not
        return
    values = _decode_members(text) if tensors else {"": msgspec.Raw(text)}
    count = 0
    for value in [memoryview(value) for name, value in values.items() if name not in tensors]:
        count += 1
        for piece in json_scan.structure(value):
            count += len(piece) - len(piece.translate(None, _SEPARATORS))
            if count > most:
                msg = f"{what} has more than {most} elements, the limit max_json_elements"
                raise JsonLimitError(msg)


def repeated_member(text: str) -> str | None:
    """Return the name of a member that stands twice in an object of a JSON text, at any depth; None without one.

    What the text is decoded to has one of such members, so that its own text has fewer colons.
    """
    body = text.encode()
    value = _decode_lenient(text)
    if structure(body).count(b":") == structure(_encode(value)).count(b":"):
        return None
    return _search_repeated(text) or "of an object in a list"


def _search_repeated(text: str) -> str | None:
    """Look for it in the object itself, then in its members that are objects."""
    seen: dict[str, str] = {}
    for name, begin, end in members(text):
        if name in seen:
            return name
        seen[name] = text[begin:end]
    nested = (repeated_member(value) for value in seen.values() if value.startswith("{"))
    return next((name for name in nested if name is not None), None)


def members(text: str, at: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of each member of the object at `at`, those that stand twice included.

    The text is JSON from its first to its last character. Takes a Python step for each member of this object, and none
    for what they hold. Raises `JsonLimitError` beyond `MAX_MEMBERS`, and `ValueError` where there is no object.
    """
    at = skip_space(text, at)
    if text[at : at + 1] != "{":
        msg = "expected an object"
        raise JSONDecodeError(msg, text, at)
    at = skip_space(text, at + 1)
    if text[at] == "}":
        return
    for _ in range(MAX_MEMBERS):
        name, at = _read_string(text, at + 1)
        begin = skip_space(text, skip_space(text, at) + 1)
        end = end_of(text, begin)
        yield name, begin, end
        at = skip_space(text, end)
        if text[at] == "}":
            return
        at = skip_space(text, at + 1)
    msg = f"an object has more than {MAX_MEMBERS} members"
    raise JsonLimitError(msg)


def elements(text: str, at: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each element of the array at `at`.

    Raises `JsonLimitError` beyond `most` of them, and `ValueError` where there is no array.
    """
    if text[at : at + 1] != "[":
        msg = "expected an array"
        raise JSONDecodeError(msg, text, at)
    begin = skip_space(text, at + 1)
    if text[begin] == "]":
        return
    for _ in range(most):
        end = end_of(text, begin)
        yield begin, end
        at = skip_space(text, end)
        if text[at] == "]":
            return
        begin = skip_space(text, at + 1)
    msg = f"an array has more than {most} elements"
    raise JsonLimitError(msg)


def end_of(text: str, at: int) -> int:
    """Return the end of the value that begins at `at`."""
    try:
        return _skip_value(text, at)[1]
    except StopIteration:
        msg = "expected a value"
        raise JSONDecodeError(msg, text, at) from None


def skip_space(text: str, at: int) -> int:
    """Return the position of the next character that is no white space."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
