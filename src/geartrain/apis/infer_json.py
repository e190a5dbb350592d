"""The JSON of an infer request, taken apart, not yet understood; what has a wrong type is told by its place. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from geartrain.apis import json_limits, tensor_json
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip, json_fault
from geartrain.domain.tensors.tensor import Tensor, count_of

_Size = Annotated[int, msgspec.Meta(ge=0)]

# An optional member may be null, which means that it is absent: clients such as KServe's write null for what they leave
# out. Here None stays apart from UNSET, because the search for repeated members counts the names in the text.
MAX_REMEMBERED: Final = 256  # texts that are remembered
_LONGEST: Final = 1024  # bytes of one, without its numbers
_MEMBER: Final = b'"data"'
_OF_NUMBERS: Final = b"0123456789+-.eE, \t\r\n"  # without a bracket, the array cannot end before its end
_MISFITS: Final = (ValueError, OverflowError, struct.error)


class InputParameters(msgspec.Struct, frozen=True):
    """The parameters of an input that mean something; others are passed over. Sizes in bytes."""

    binary_data_size: _Size | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_region: str | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_offset: _Size | None = 0
    shared_memory_byte_size: _Size | msgspec.UnsetType | None = msgspec.UNSET
    content_type: str | msgspec.UnsetType | None = msgspec.UNSET


class OutputParameters(msgspec.Struct, frozen=True):
    """Those of a requested output."""

    binary_data: bool | msgspec.UnsetType | None = msgspec.UNSET
    classification: _Size | None = 0
    shared_memory_region: str | msgspec.UnsetType | None = msgspec.UNSET
    shared_memory_offset: _Size | None = 0
    shared_memory_byte_size: _Size | msgspec.UnsetType | None = msgspec.UNSET


class InputJson(msgspec.Struct):
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
    """True if an optional member is there; null counts as absent."""
    return value is not None and value is not msgspec.UNSET and value != _NULL


_decode = msgspec.json.Decoder(RequestJson).decode
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode

_NO_DEPTH: Final = 2 * json_limits.MAX_DEPTH  # bytes that do not reach the limit
_encode = msgspec.json.Encoder().encode
_LARGEST: Final = 1_048_576  # bytes of a text whose members are looked at one by one
T = TypeVar("T")


def decode(text: bytes | bytearray) -> RequestJson:
    """Read the JSON text.

    Raises `GeartrainError`: `UNPARSABLE` when it is no JSON in UTF-8, `INVALID_INPUT` naming the field of a wrong type,
    or one that stands twice.
    """
    check_utf8(text)
    try:
        request = _decode(text)
        if len(text) > _NO_DEPTH:
            json_limits.check_run(text)
        if _is_plain(text, request):
            return _checked(request)
    except msgspec.ValidationError:  # it may be a repetition that is wrong
        guard(_check_syntax, text)  # the decoder has stopped in front of the rest
    except (ValueError, RecursionError) as error:
        raise _fault(error, text) from None
    if len(text) > _LARGEST:
        raise unparsable(f"beyond {_LARGEST} bytes it must have no member twice and no number of more than 64 bits")
    return _checked(guard(_decode, guard(_with_first_members, text)))


def _checked(request: RequestJson) -> RequestJson:
    if len(request.inputs) > json_limits.MAX_INPUTS or len(request.outputs or ()) > json_limits.MAX_INPUTS:
        raise too_many(json_limits.MAX_INPUTS)
    if request.parameters and len(request.parameters) > json_limits.MAX_MEMBERS:
        raise too_many_members()
    return request


def too_many_members() -> GeartrainError:
    """Say that an object of parameters has too many members."""
    return GeartrainError(Code.INVALID_INPUT, f"'parameters' has more than {json_limits.MAX_MEMBERS} members")


def duplicate(name: str) -> GeartrainError:
    """Say that a member of an object stands twice: the one that counts would depend on its reader."""
    return GeartrainError(Code.INVALID_INPUT, f"duplicate field '{clip(name)}': send it once")


def too_many(most: int) -> GeartrainError:
    """Say that a request has too many inputs or requested outputs."""
    return GeartrainError(Code.INVALID_INPUT, f"a request has at most {most} inputs and as many requested outputs")


def convert(members: dict[str, Any], data: list[Any]) -> tuple[RequestJson, list[Any]]:
    """Check what another reader has found in the JSON; raises as `decode` does."""
    try:
        request = msgspec.convert(members, RequestJson)
    except msgspec.ValidationError as error:
        raise wrong_shape(error) from None
    return _checked(request), data


def check_utf8(text: bytes | bytearray) -> None:
    """Raise `UNPARSABLE` for bytes that are not UTF-8, wherever they stand."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise unparsable(f"not valid UTF-8 at byte {error.start}") from None


def guard(read: Callable[[bytes | bytearray], T], text: bytes | bytearray) -> T:
    """Call a reader of JSON; turn its errors into `UNPARSABLE` or `INVALID_INPUT`."""
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        raise _fault(error, text) from None


def _fault(error: Exception, text: bytes | bytearray) -> GeartrainError:
    if isinstance(error, msgspec.ValidationError):
        return wrong_shape(error)
    return unparsable(json_fault(text, error) if isinstance(error, ValueError) else "nested too deeply")


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
    text = clip(text.replace("`", "'").replace("Expected", "expected", 1).replace(" | null'", "'"))
    what = f"Unable to parse '{clip(place)}'" if place else "Unable to parse the request"
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


_OWN: Final = frozenset(RequestJson.__struct_fields__)
_LISTS: Final = {"inputs": frozenset(InputJson.__struct_fields__), "outputs": frozenset(OutputJson.__struct_fields__)}


def _with_first_members(text: bytes | bytearray) -> bytes:
    """Return a request without repeated members, and without those unknown to the protocol.

    Values stay as they are written.
    """
    whole = text.decode().strip()
    if not whole.startswith("{"):
        return bytes(text)
    parts = []
    for name, (begin, end) in _first(whole, 0, _OWN).items():
        fields = _LISTS.get(name)
        if name == "parameters":
            value = _first_members(whole, begin) if whole[begin] == "{" else whole[begin:end]
        elif fields is not None and whole[begin] == "[":
            each = json_limits.elements(whole, begin, json_limits.MAX_INPUTS)
            value = f"[{','.join([_entry(whole, at, until, fields=fields) for at, until in each])}]"
        else:
            value = whole[begin:end]
        parts.append(f'"{name}":{value}')
    return f"{{{','.join(parts)}}}".encode()


def _entry(text: str, begin: int, end: int, *, fields: frozenset[str]) -> str:
    """Return an input or a requested output without repetitions."""
    if text[begin] != "{":
        return text[begin:end]
    parts = []
    for name, (at, until) in _first(text, begin, fields).items():
        is_object = name == "parameters" and text[at] == "{"
        parts.append(f'"{name}":{_first_members(text, at) if is_object else text[at:until]}')
    return f"{{{','.join(parts)}}}"


def _first_members(text: str, at: int) -> str:
    found = _first(text, at, None)
    parts = [f"{_encode(name).decode()}:{text[begin:end]}" for name, (begin, end) in found.items()]
    return f"{{{','.join(parts)}}}"


def _first(text: str, at: int, names: frozenset[str] | None) -> dict[str, tuple[int, int]]:
    """Return the position of the value of each of these members, or of any; raise if one stands twice."""
    found: dict[str, tuple[int, int]] = {}
    for name, begin, end in json_limits.members(text, at):
        if names is None or name in names:
            if name in found:
                raise duplicate(name)
            found[name] = begin, end
    return found


class _Known(NamedTuple, Generic[T]):
    """The parts of a text besides its numbers."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    read: Callable[[bytes], list[Any]]
    pack: Callable[..., bytes]  # raises `struct.error` unless it gets as many numbers as the shape has
    rest: T


class Repeats(Generic[T]):
    """Remembers what is made of requests with one input, besides their tensor: a `T`."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], _Known[T]] = {}

    def recall(self, text: bytes) -> tuple[Tensor, T] | None:
        """Return the tensor of a request and the rest of it, or None if nothing is remembered or a number is wrong."""
        before, numbers, after = _cut(text)
        known = self._known.get((before, after))
        if known is None or numbers.translate(None, _OF_NUMBERS):
            return None
        try:
            data = known.pack(*known.read(b"[%b]" % numbers))
        except _MISFITS:
            return None  # reading it all tells what is wrong
        return Tensor(known.name, known.datatype, known.shape, data), known.rest

    def remember(self, text: bytes, request: RequestJson, rest: T) -> None:
        """Remember a request, which has been read without an error, unless the next one will differ in more."""
        if len(request.inputs) != 1 or request.id or b"\\" in text or text.count(_MEMBER) != 1:
            return
        (one,) = request.inputs
        # Parameters hold the place of the contents; texts and truth values are no numbers.
        if one.parameters or one.data is msgspec.UNSET or one.datatype not in tensor_json.CODES:
            return
        before, numbers, after = _cut(text)
        if len(before) + len(after) > _LONGEST or b"[%b]" % numbers != bytes(one.data).strip():
            return
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        packing = struct.Struct(f"<{count_of(one.shape)}{tensor_json.CODES[one.datatype]}")
        read = tensor_json.reader(one.datatype)
        self._known[before, after] = _Known(one.name, one.datatype, one.shape, read, packing.pack, rest)


def _cut(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a text into the part before the numbers, with their bracket, the numbers, and the rest. Takes any text."""
    begin = text.find(b"[", text.find(_MEMBER)) + 1
    end = text.find(b"]", begin)
    return text[:begin], text[begin:end], text[end:]
