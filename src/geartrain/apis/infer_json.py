"""The JSON of an infer request, taken apart, not yet understood; what has a wrong type is told by its place. Pure."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError

_Size = Annotated[int, msgspec.Meta(ge=0)]

# An optional member may be null, which means that it is absent: clients such as KServe's write null for what they leave
# out. Here None stays apart from UNSET, because the search for repeated members counts the names in the text.


class InputParameters(msgspec.Struct, frozen=True):
    """The parameters of an input that mean something; others are passed over. Sizes in bytes."""

    binary_data_size: _Size | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_region: str | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_offset: _Size | None = 0
    shared_memory_byte_size: _Size | msgspec.UnsetType | None = msgspec.UNSET


class OutputParameters(msgspec.Struct, frozen=True):
    """Those of a requested output."""

    binary_data: bool | msgspec.UnsetType | None = msgspec.UNSET
    classification: _Size | None = 0
    shared_memory_region: str | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_offset: _Size | None = 0
    shared_memory_byte_size: _Size | msgspec.UnsetType | None = msgspec.UNSET


class InputJson(msgspec.Struct, frozen=True):
    """An input."""

    name: str
    shape: tuple[_Size, ...]
    datatype: str
    parameters: InputParameters | msgspec.UnsetType | None = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class OutputJson(msgspec.Struct, frozen=True):
    """A requested output."""

    name: str
    parameters: OutputParameters | msgspec.UnsetType | None = msgspec.UNSET


class RequestJson(msgspec.Struct, frozen=True):
    """The whole. Members it does not know are passed over, as observed."""

    inputs: list[InputJson]
    id: str | None = ""
    parameters: dict[str, Any] | None = {}
    outputs: list[OutputJson] | None = []


_NULL: Final = msgspec.Raw(b"null")


def is_given(value: object) -> bool:
    """Whether an optional member is there; null counts as absent."""
    return value is not None and value is not msgspec.UNSET and value != _NULL


_decode = msgspec.json.Decoder(RequestJson).decode
_encode = msgspec.json.Encoder().encode


def decode(text: bytes | bytearray) -> RequestJson:
    """Read the JSON text; of a member that stands twice the first one counts.

    Raises `GeartrainError`: `UNPARSABLE` when it is no JSON in UTF-8, `INVALID_INPUT` naming the field of a wrong type.
    """
    check_utf8(text)
    try:
        request = _decode(text)
        if _is_plain(text, request):
            return request
    except msgspec.ValidationError:
        pass  # it may be a repetition that is wrong
    except (ValueError, RecursionError) as error:
        raise _fault(error) from None
    read: RequestJson = guard(_decode, guard(_with_first_members, text))
    return read


def convert(members: dict[str, Any], data: list[Any]) -> tuple[RequestJson, list[Any]]:
    """Check what another reader has found in the JSON; raises as `decode` does."""
    try:
        request = msgspec.convert(members, RequestJson)
    except msgspec.ValidationError as error:
        raise wrong_shape(error) from None
    return request, data


def check_utf8(text: bytes | bytearray) -> None:
    """Raise `UNPARSABLE` for bytes that are not UTF-8, wherever they stand."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise unparsable(f"not valid UTF-8 at byte {error.start}") from None


def guard(read: Any, text: bytes | bytearray) -> Any:
    """Call a reader of JSON; turn its errors into `UNPARSABLE` or `INVALID_INPUT`."""
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        raise _fault(error) from None


def _fault(error: Exception) -> GeartrainError:
    if isinstance(error, msgspec.ValidationError):
        return wrong_shape(error)
    return unparsable("nested too deeply" if isinstance(error, RecursionError) else str(error))


def unparsable(fault: str) -> GeartrainError:
    """Say that a body is no JSON, and why."""
    return GeartrainError(Code.UNPARSABLE, f"failed to parse the request JSON buffer: {fault}")


_AT: Final = re.compile(r" - at `\$\.?(.*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")


def wrong_shape(error: msgspec.ValidationError) -> GeartrainError:
    """Say which field has a wrong type or is missing."""
    text = str(error)
    at = _AT.search(text)
    place = at[1] if at else ""
    text = text[: at.start()] if at else text
    missing = _MISSING.match(text)
    if missing is not None:
        place = f"{place}.{missing[1]}" if place else missing[1]
        text = "the field is missing"
    text = text.replace("`", "'").replace("Expected", "expected", 1).replace(" | null'", "'")
    what = f"Unable to parse '{place}'" if place else "Unable to parse the request"
    return GeartrainError(Code.INVALID_INPUT, f"{what}: {text}")


# Members that stand twice. The decoder lets the last one win, and leaves no trace of it; whether there can be one is
# seen from the number of quotes: a text with as many of them as its known members need has no others.


def _is_plain(text: bytes | bytearray, request: RequestJson) -> bool:
    if b"\\" in text:
        return False
    quotes = 2 + (4 if request.id else 0)  # `inputs`, `id`
    quotes += 2 * (request.id, request.parameters, request.outputs).count(None)
    for one in request.inputs:
        quotes += 10  # `name` and `datatype` with their values, `shape`
        if one.data is not msgspec.UNSET:
            quotes += 2 + bytes(one.data).count(b'"')
        if one.parameters is not msgspec.UNSET:
            quotes += 2 + _quotes_of(one.parameters, _INPUT_DEFAULTS)
    if request.parameters:
        quotes += 2 + sum(4 if isinstance(value, str) else 2 for value in request.parameters.values())
    if request.outputs:
        quotes += 2
        for each in request.outputs:
            quotes += 4
            if each.parameters is not msgspec.UNSET:
                quotes += 2 + _quotes_of(each.parameters, _OUTPUT_DEFAULTS)
    return text.count(b'"') == quotes


_INPUT_DEFAULTS: Final = InputParameters()
_OUTPUT_DEFAULTS: Final = OutputParameters()


def _quotes_of(given: InputParameters | OutputParameters | None, defaults: InputParameters | OutputParameters) -> int:
    if given is None:
        return 0
    quotes = 0
    for field in given.__struct_fields__:
        value = getattr(given, field)
        if value != getattr(defaults, field):
            quotes += 4 if isinstance(value, str) else 2
    return quotes


def _with_first_members(text: bytes | bytearray) -> bytes:
    """Return the same JSON without the repetitions. Numbers stay as they are written."""
    value = json.loads(
        text.decode(),
        object_pairs_hook=_first,
        parse_int=_verbatim,
        parse_float=_verbatim,
        parse_constant=_no_number,
    )
    return _encode(value)


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _verbatim(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _no_number(text: str) -> None:
    msg = f"{text} is no JSON"
    raise ValueError(msg)
