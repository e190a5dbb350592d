"""Long texts in JSON bodies, which no parser copies: a mark stands in their place until a model's input is made.

To decode or encode a text of many megabytes is one call that keeps the interpreter. No step here takes more than a
piece.
Imported late, see `large_bodies`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from geartrain.apis import generate, json_limits
from geartrain.domain.errors import GeartrainError
from geartrain.outbound.data_urls import whole_json
from geartrain.service.models.admission import CheckedInput, Interface, without_secrets
from geartrain.transport.held_urls import LONG, NUL, Cut, cut, filled, strings

_Members = dict[str, msgspec.Raw]

_STEP: Final = 1 << 16  # bytes that are checked at once: other threads run in between
_HELD: Final = frozenset(
    {"messages", "prompt", "input", "system"}
)  # members whose texts go into an input, and no answer
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # the first of two escapes of one character
_CHARACTER: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]*\Z")  # of several bytes, or its beginning
_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(_Members).decode
_encode = msgspec.json.Encoder().encode


class HeldBody(msgspec.Struct, frozen=True):
    """A body whose long texts are left out of its members."""

    members: _Members
    body: bytes | bytearray
    cut: Cut
    max_elements: int

    def input(
        self, given: _Members, chat: _Members, interface: Interface
    ) -> tuple[generate.GenerateRequest, CheckedInput] | None:
        """Make the input of a model of members in which marks stand; None if its texts have to be seen to check it.

        `chat`: members that take the place of those that have been checked.
        """
        if not _takes_any_text(interface):
            return None
        request = generate.make_request(
            {"parameters": msgspec.Raw(_encode(given))}, interface.signature, interface.view
        )
        if request.tensors is not None or interface.validator.check(request.values):
            return None
        try:
            json_limits.check_elements(request.values, self.max_elements)
        except json_limits.JsonLimitError:
            return None
        text = _encode({**_decode_members(request.values), **chat}) if chat else request.values
        places = dict(enumerate(self.cut.places))
        secrets = interface.validator.secret_fields
        echo = filled(without_secrets(text, secrets), self.body, places)[0] if secrets else None
        values = filled(text, self.body, places)[0]
        return msgspec.structs.replace(request, values=values), CheckedInput(interface, echo=echo)


def hold_texts(body: bytes | bytearray, max_elements: int) -> HeldBody | None:
    """Read the members of a body, but for its long texts; None if there are none, or the body has any fault.

    `max_elements`: the values that an input may hold.
    """
    found = cut(body, _long_texts(body))
    if found is None:
        return None
    try:
        members = generate.read_members(found.text)
    except GeartrainError:
        return None  # the whole body has the same fault, at another place
    if any(NUL in bytes(value) for name, value in members.items() if name not in _HELD):
        return None
    return HeldBody(members, body, found, max_elements)


def _takes_any_text(interface: Interface) -> bool:
    """True if every text is as good as its mark to the checks of an input."""
    return not interface.validator.file_fields and all(
        (field.choices, field.regex, field.min_length, field.max_length) == (None,) * 4
        for field in interface.signature.inputs
    )


def _long_texts(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield where the inside of each long string lies, if it is without a fault of JSON."""
    for begin, end in strings(body):
        if end - begin > LONG and _is_sound(body, begin, end):
            yield begin, end


def _is_sound(body: bytes | bytearray, begin: int, end: int) -> bool:
    while begin < end:
        piece = bytes(body[begin : min(begin + _STEP, end)])
        if begin + len(piece) < end:
            piece = piece[: _whole(piece)]
        if not piece:
            return False
        try:
            _decode_text(b'"%b"' % piece)
        except ValueError:
            return False
        begin += len(piece)
    return True


def _whole(piece: bytes) -> int:
    """Return the length of a piece without the character, or the escape, that its end may have cut."""
    size = len(piece)
    character = _CHARACTER.search(piece, max(0, size - 4))
    if character is not None:
        size = character.start()
    size = whole_json(piece[:size])
    half = _HALF.search(piece, max(0, size - 6), size)
    return size if half is None else half.start()
