"""Small requests that differ from an earlier one in nothing but their numbers: the rest of them is remembered. Pure.

Clients repeat themselves: the same input, of the same shape, with other contents. A text is cut where its `data` begins
and ends. If an earlier text was the same before and behind it, both say the same, whatever the numbers are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from geartrain.apis import tensor_json
from geartrain.apis.infer_json import RequestJson
from geartrain.domain.tensors.tensor import Tensor, count_of

T = TypeVar("T")

MAX_REMEMBERED: Final = 256  # texts that are remembered
_LONGEST: Final = 1024  # bytes of one, without its numbers
_MEMBER: Final = b'"data"'
_OF_NUMBERS: Final = b"0123456789+-.eE, \t\r\n"  # without a bracket, the array cannot end before its end
_MISFITS: Final = (ValueError, OverflowError, struct.error)


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
