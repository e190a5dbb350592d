"""Tensor contents as JSON: numbers, booleans and texts to bytes in row-major order, and back. Pure.

Source: "Tensor Data" of the Open Inference Protocol; observed Triton, sections 4 and 6. What is stricter here than
there: an integer has to fit its datatype, a number has to be finite, and text has to be UTF-8, both ways.

Small tensors are read and written with msgspec alone. From `LARGE` on, an array package does it without a Python object
for each element; servers load it in time, see `load_arrays`.
"""

from __future__ import annotations

import importlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.apis import json_limits
from geartrain.domain.rendering import clip
from geartrain.domain.tensors.tensor import (
    MAX_TEXTS,
    SIZES,
    Tensor,
    count_of,
    join_bytes,
    pieces_of,
    tensor_error,
    too_many_texts,
)

if TYPE_CHECKING:
    from types import ModuleType

    from geartrain.domain.errors import GeartrainError

LARGE: Final = 16_384  # bytes, of JSON text or of contents

_PIECE: Final = 65_536  # texts that are written at a time: a thread that writes lets others run in between

BINARY_ONLY: Final = frozenset({"FP16", "BF16"})  # JSON has no form for them that all would read alike

CODES: Final = {  # of numbers, as `struct` has them
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
}
_FLOATS: Final = frozenset({"FP32", "FP64"})

_decode_any = msgspec.json.Decoder().decode
_decode_floats = msgspec.json.Decoder(list[float]).decode
_decode_integers = msgspec.json.Decoder(list[int]).decode
_decode_booleans = msgspec.json.Decoder(list[bool]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode
_COMMAS: Final = re.compile(rb",{2,}")


class SlowPathError(Exception):
    """This text is for the reader of small ones: it is wrong, which that one can explain, or unusual."""


class _Arrays:
    """The module for large tensors, once it is loaded."""

    module: ModuleType | None = None


def arrays() -> Any:
    """Return `apis.tensor_arrays` if it is loaded, else None."""
    return _Arrays.module


def load_arrays() -> None:
    """Load what large tensors are read and written with. It takes a tenth of a second: best in a thread."""
    _Arrays.module = importlib.import_module("geartrain.apis.tensor_arrays")


def binary_only(kind: str, name: str, datatype: str) -> GeartrainError:
    """Say that JSON does not carry the tensor of this name; `kind` is "input" or "output"."""
    verb = "receiving" if kind == "input" else "sending"
    msg = f"{verb} {datatype} data via JSON is not supported. Please use the binary data format for {kind} '{name}'"
    return tensor_error(msg)


def decode(name: str, datatype: str, text: msgspec.Raw, *, count: int) -> bytes:
    """Return the contents that a JSON array stands for, nested or flat; raise `INVALID_TENSOR`.

    `count` is how many elements the shape has.
    """
    if datatype in BINARY_ONLY:
        raise binary_only("input", name, datatype)
    elements = read_elements(name, datatype, text)
    check_count(name, len(elements), count)
    return pack(name, datatype, elements)


def check_count(name: str, given: int, count: int) -> None:
    """Raise `INVALID_TENSOR` unless there are as many elements as the shape has."""
    if given != count:
        msg = (
            f"Unable to parse 'data': Shape does not match true shape of 'data' field: "
            f"input '{name}' has {given} element(s), and its shape takes {count}"
        )
        raise tensor_error(msg)


def pack(name: str, datatype: str, elements: Sequence[Any]) -> bytes:
    """Return contents made of values of the right Python type; raise `INVALID_TENSOR` if one is out of range."""
    if datatype == "BOOL":
        return bytes(elements)
    if datatype == "BYTES":
        return join_bytes(list(map(str.encode, elements)))
    code = CODES[datatype]
    try:
        return struct.pack(f"<{len(elements)}{code}", *elements)
    except (struct.error, OverflowError):
        raise _out_of_range(name, datatype, elements) from None


def _out_of_range(name: str, datatype: str, elements: Sequence[Any]) -> GeartrainError:
    """Say which element is the first that does not fit: it is looked for by halves."""
    begin, end = 0, len(elements)
    while end - begin > 1:
        middle = (begin + end) // 2
        if _fit(datatype, elements[begin:middle]):
            begin = middle
        else:
            end = middle
    return out_of_range(name, datatype, begin, element=elements[begin])


def _fit(datatype: str, elements: Sequence[Any]) -> bool:
    try:
        struct.pack(f"<{len(elements)}{CODES[datatype]}", *elements)
    except (struct.error, OverflowError):
        return False
    return True


def out_of_range(name: str, datatype: str, index: int, *, element: object) -> GeartrainError:
    """Say which element does not fit."""
    return tensor_error(
        f"Unable to parse 'data': {_shown(element)} at [{index}] of input '{name}' is out of range of {datatype}"
    )


# input


def read_elements(name: str, datatype: str, text: msgspec.Raw) -> list[Any]:
    """Return the elements in row-major order, as Python values of the datatype's JSON form; raise `INVALID_TENSOR`."""
    read = reader(datatype)
    if datatype == "BYTES" and memoryview(text).nbytes > MAX_TEXTS and bytes(text).count(b",") >= MAX_TEXTS:
        _check_texts(name, text)
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        if not _is_nested(text):
            raise unparsable(name, datatype, error) from None
    # Only the order counts, so brackets of numbers need no reading. Texts may have brackets of their own.
    raw = bytes(text)
    if datatype != "BYTES" and b'"' not in raw:
        bare = raw.translate(None, b"[]")
        try:
            return read(b"[%b]" % bare)
        except ValueError:
            if b"{" not in raw:
                return _read_uneven(name, datatype, bare)
    return _flatten(name, datatype, raw)


def _read_uneven(name: str, datatype: str, bare: bytes) -> list[Any]:
    """Read elements without their brackets: where a list was empty, there is a comma too many."""
    text = _COMMAS.sub(b",", bare.translate(None, b" \t\r\n")).strip(b",")
    try:
        return reader(datatype)(b"[%b]" % text)
    except ValueError as error:
        raise unparsable(name, datatype, error) from None


def _check_texts(name: str, text: msgspec.Raw) -> None:
    if json_limits.structure(bytes(text)).count(b",") >= MAX_TEXTS:
        raise too_many_texts(name)


def reader(datatype: str) -> Callable[[Any], list[Any]]:
    """Create the reader of a flat array's text; it raises ValueError for any other text."""
    if datatype in _FLOATS:
        return _decode_floats
    if datatype == "BOOL":
        return _decode_booleans
    return _decode_texts if datatype == "BYTES" else _decode_integers


def _is_nested(text: msgspec.Raw) -> bool:
    return bytes(text).count(b"[", 0) > 1


def _flatten(name: str, datatype: str, raw: bytes) -> list[Any]:
    """Read nested lists of texts, and those of something that is wrong."""
    try:
        if datatype != "BYTES":  # these are not too many
            json_limits.check_elements(raw, MAX_TEXTS, what="it")
        flat = flat_list(_decode_any(raw))
        return reader(datatype)(_encode(flat))
    except (ValueError, RecursionError) as error:
        raise unparsable(name, datatype, error) from None


def flat_list(value: Any) -> list[Any]:
    """Return the elements of lists in lists, in their order. Takes a step for each dimension, if they are even."""
    flat = [value]
    while not {list}.isdisjoint(map(type, flat)):
        if {*map(type, flat)} != {list}:
            flat = [one if type(one) is list else [one] for one in flat]
        flat = list(chain.from_iterable(flat))
    return flat


def _shown(element: object) -> str:
    """Return a number as an error has it."""
    try:
        return clip(str(element))
    except ValueError:  # more digits than Python writes
        return "a number of more than 4300 digits"


_EXPECTED: Final = re.compile(r"Expected `(\w+)`, got `(\w+)`(?: - at `\$(.*)`)?")
_WORDS: Final = {"str": "a string", "float": "a number", "int": "an integer", "bool": "true or false"}


def unparsable(name: str, datatype: str, error: Exception) -> GeartrainError:
    """Say what is wrong with the `data` of an input."""
    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    found = _EXPECTED.match(text)
    if found is not None:
        wanted, got, at = found[1], found[2], found[3] or ""
        if wanted == "array":
            text = f"expected an array, got {got}"
        else:
            text = f"{datatype} takes {_WORDS.get(wanted, wanted)}, got {got}" + (f" at {at}" if at else "")
    elif isinstance(error, UnicodeDecodeError):
        text = "it is not valid UTF-8"
    return tensor_error(f"Unable to parse 'data' of input '{name}': {text}")


# output


def encode(tensor: Tensor) -> bytes:
    """Return the contents as the text of a flat JSON array; raise `INVALID_TENSOR` if JSON cannot carry them."""
    datatype, data = tensor.datatype, tensor.data
    code = CODES.get(datatype)
    if code is not None:
        text = _encode(struct.unpack(f"<{len(data) // SIZES[datatype]}{code}", data))
        if b"null" in text:
            raise not_finite(tensor)
        return text
    if datatype in BINARY_ONLY:
        raise binary_only("output", tensor.name, datatype)
    if datatype == "BYTES":
        return join_lists([*_text_lists(tensor)])
    return _encode([byte != 0 for byte in bytes(data)])  # BOOL


def join_lists(lists: list[bytes]) -> bytes:
    """Return the text of one JSON array with the elements of several."""
    if len(lists) == 1:
        return lists[0]
    if not lists:
        return b"[]"
    # Of `bytes` and nothing else: a join of these lets other threads run.
    inner = [each[1:-1] for each in lists]
    inner[0], inner[-1] = b"[" + inner[0], inner[-1] + b"]"
    return b",".join(inner)


def not_finite(tensor: Tensor) -> GeartrainError:
    """Say that a tensor holds what is no number to JSON."""
    msg = f"output '{tensor.name}' holds NaN or Infinity, which JSON cannot carry. {_AS_BINARY}"
    return tensor_error(msg)


_AS_BINARY: Final = 'Ask for it as binary: "parameters": {"binary_data": true}'


def _text_lists(tensor: Tensor) -> Iterator[bytes]:
    """Yield the elements as JSON arrays: to free the objects of all of them at once would take long."""
    data, texts = tensor.data, list[str]()
    try:
        for begin, end in pieces_of(tensor.name, data, count_of(tensor.shape)):
            texts.append(str(data[begin:end], "utf-8"))
            if len(texts) == _PIECE:
                yield _encode(texts)
                texts = []
        if texts:
            yield _encode(texts)
    except UnicodeDecodeError:
        msg = f"output '{tensor.name}' holds bytes that are not valid UTF-8, which JSON cannot carry. {_AS_BINARY}"
        raise tensor_error(msg) from None
