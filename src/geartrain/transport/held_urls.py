"""Large `data:` URLs in JSON bodies, which no parser copies: their payloads are left out of the text that is parsed.

Imported late, see `large_bodies`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import msgspec

from geartrain.apis import cog, generate, json_limits
from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.validation import InputValidator
from geartrain.outbound.data_urls import HeldUrl, json_texts
from geartrain.outbound.inputs import field_errors
from geartrain.outbound.references import FileReferences
from geartrain.service.models.admission import CheckedInput, Interface, without_secrets
from geartrain.transport.body_messages import PIECE

LONG: Final = 65_536  # characters of a payload that is left out
_MOST_STRINGS: Final = 20_000  # of a body; one of more has other large values
_LONGEST_REST: Final = 1_048_576  # bytes of the text that is parsed
_LOOKED_AT: Final = 1 << 16  # bytes that are looked at in one step: other threads run in between
_LONGEST_HEAD: Final = 1024  # bytes of a URL before its comma
_SCHEME: Final = b"data:"
_TEXT: Final = bytes({*range(0x20, 0x7F)} - {*b'"\\'})  # unescaped in a string of JSON, in ASCII
NUL: Final = b"\\u0000"
_MARK: Final = re.compile(rb"\\u0000(\d+)\\u0000")  # of a payload; JSON encoders write a NUL so
_DECODED_MARK: Final = re.compile("\0(\\d+)\0")

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Places = dict[int, tuple[int, int]]
"""Begin and end of each payload, by the number of its mark."""


class Cut(msgspec.Struct, frozen=True):
    """The text of a JSON body with a mark in the place of each large payload, and where these lie in the body."""

    text: bytes
    places: list[tuple[int, int]]


def cut(body: bytes | bytearray, found: Iterator[tuple[int, int]]) -> Cut | None:
    """Leave parts of strings out of a body; None if none is found, or something else looks like a mark."""
    places = [*found]
    if len(body) - sum(end - begin for begin, end in places) > _LONGEST_REST:
        return None
    parts: list[bytes | bytearray] = []
    at = 0
    for number, (begin, end) in enumerate(places):
        parts += (body[at:begin], b"\\u0000%d\\u0000" % number)
        at = end
    text = b"".join([*parts, body[at:]])
    return Cut(text, places) if places and text.count(NUL) == 2 * len(places) else None


def filled(text: bytes, source: bytes | bytearray, places: Places) -> tuple[bytes, Places]:
    """Put payloads, which lie in `source`, in the place of their marks; return also where they lie in the result."""
    result = BytesIO()
    found: Places = {}
    at = 0
    with memoryview(source) as view:
        for mark in _MARK.finditer(text):
            number = int(mark[1])
            result.write(text[at : mark.start()])
            begin, end = places[number]
            found[number] = result.tell(), result.tell() + end - begin
            for piece in range(begin, end, PIECE):  # a step of the copy must not be long
                result.write(view[piece : min(piece + PIECE, end)])
            at = mark.end()
        result.write(text[at:])
    return result.getvalue(), found


def strings(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield where the inside of each string lies in a body, as far as it has few of them."""
    end = 0
    for _ in range(_MOST_STRINGS):
        begin = _find(body, b'"', end)
        end = _end_of_string(body, begin + 1) if begin >= 0 else begin
        if end < 0:
            return
        yield begin + 1, end
        end += 1


def _payloads(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield where the payload of each large `data:` URL lies in a body, if it is ASCII without a fault of JSON."""
    for begin, end in strings(body):
        if end - begin > LONG and body[begin : begin + len(_SCHEME)].lower() == _SCHEME:
            comma = body.find(b",", begin, begin + _LONGEST_HEAD)
            if comma >= 0 and end - comma > LONG and _is_sound(body, comma + 1, end):
                yield comma + 1, end


def _end_of_string(body: bytes | bytearray, begin: int) -> int:
    """Return the position of the quote that ends a string; -1 without one."""
    at = begin
    while (end := _find(body, b'"', at)) >= 0:
        escape = end
        while escape > begin and body[escape - 1] == ord("\\"):
            escape -= 1
        if (end - escape) % 2 == 0:
            return end
        at = end + 1
    return -1


def _find(body: bytes | bytearray, sign: bytes, begin: int) -> int:
    while begin < len(body):
        found = body.find(sign, begin, begin + _LOOKED_AT)
        if found >= 0:
            return found
        begin += _LOOKED_AT
    return -1


def _is_sound(body: bytes | bytearray, begin: int, end: int) -> bool:
    """True if a part of a JSON string is ASCII that may stand there."""
    has_escapes = False
    for at in range(begin, end, _LOOKED_AT):
        rest = body[at : min(at + _LOOKED_AT, end)].translate(None, _TEXT)
        if rest.strip(b"\\"):
            return False
        has_escapes = has_escapes or bool(rest)
    if has_escapes:
        try:
            for _ in json_texts(body, begin, end):
                pass
        except ValueError:
            return False
    return True


class HeldBodies:
    """Reads bodies whose large `data:` URLs are files of the model. Any other body is None: it is to be read whole."""

    def __init__(self, interface: Interface, *, max_elements: int, max_file: int) -> None:
        self._interface = interface
        self._max_elements = max_elements
        self._max_file = max_file
        self._files = FileReferences(interface.signature)

    def read_cog(self, body: bytes | bytearray) -> tuple[cog.PredictionRequest, bytes, CheckedInput] | None:
        """Read a body of Cog's API, and empty it; return also its input."""
        without = cut(body, _payloads(body))
        if without is None:
            return None
        try:
            request = cog.read_request(without.text)
            found = self._find(without, cog.input_of(request), self._interface.validator)
        except GeartrainError:
            return None  # the whole body has the same fault, at another place
        if found is None:
            return None
        raw, checked = self._checked(without, body, found)
        return msgspec.structs.replace(request, input=msgspec.Raw(b"null")), raw, checked

    def read_generate(self, body: bytes | bytearray) -> tuple[generate.GenerateRequest, CheckedInput] | None:
        """Read a generate request, and empty its body."""
        without = cut(body, _payloads(body))
        if without is None:
            return None
        interface = self._interface
        try:
            asked = generate.read_request(without.text, interface.signature, interface.view)
            validator = interface.validator if asked.tensors is None else interface.plain_validator
            found = self._find(without, asked.values, validator)
        except GeartrainError:
            return None
        if found is None:
            return None
        raw, checked = self._checked(without, body, found)
        return msgspec.structs.replace(asked, values=raw), checked

    def _find(self, cut: Cut, text: bytes, validator: InputValidator) -> tuple[bytes, dict[str, Any]] | None:
        """Check an input, and return it and its values, if the payloads that are left out are all in its files."""
        try:
            json_limits.check_elements(text, self._max_elements, tensors=self._tensors)
        except json_limits.JsonLimitError:
            return None
        if validator.check(text):
            return None  # the errors are about the whole values
        values: dict[str, Any] = dict(_decode_members(text))
        for name in validator.file_fields:
            if name in values:
                values[name] = msgspec.json.decode(values[name])
        places = self._files.find(values)[1]
        marks = [int(mark[1]) for place in places for mark in _DECODED_MARK.finditer(place.url)]
        return (text, values) if sorted(marks) == [*range(len(cut.places))] else None

    def _checked(
        self, cut: Cut, body: bytes | bytearray, found: tuple[bytes, dict[str, Any]]
    ) -> tuple[bytes, CheckedInput]:
        text, values = found
        raw, places = filled(text, body, dict(enumerate(cut.places)))
        if isinstance(body, bytearray):
            body.clear()  # its callers keep it until this is done
        copied, files = self._files.find(values)
        for file in files:
            mark = _DECODED_MARK.search(file.url)
            if mark is not None:
                begin, end = places[int(mark[1])]
                file.put(HeldUrl(file.url[: mark.start()], raw, begin=begin, end=end))
        errors = field_errors(self._files.find(copied)[1], largest=self._max_file)
        secrets = self._interface.validator.secret_fields
        echo = filled(without_secrets(text, secrets), raw, places)[0] if secrets and not errors else None
        return raw, CheckedInput(self._interface, errors, {name: copied[name] for name in values}, echo)

    @property
    def _tensors(self) -> frozenset[str]:
        return frozenset(
            field.name
            for field in self._interface.signature.inputs
            if field.type.kind == "tensor" and not field.type.form
        )
