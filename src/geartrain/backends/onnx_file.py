"""Facts of an .onnx file that onnxruntime does not give: whether it is cut, its open shapes, its files of weights.

An .onnx file is one message of Protocol Buffers. Only the few fields that are asked for are looked at; the weights,
which are most of it, are stepped over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from geartrain.backends.foreign import what_is
from geartrain.backends.interface import BackendError

# The numbers of fields in onnx.proto.
_IR_VERSION: Final = 1  # of ModelProto
_GRAPH: Final = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE: Final = 1  # of TypeProto
_SHAPE: Final = 2  # of TypeProto.Tensor
_EXTERNAL_DATA: Final = 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # encodings of a field

Span = tuple[int, int]  # begin and end of a field
_Field = tuple[int, int, Span]  # its number, how it is written, and where


class OnnxFile(NamedTuple):
    """Facts of a file. `unranked` are inputs and outputs without a known number of dimensions.

    `weights` are the files with external data, and the least bytes of each.
    """

    unranked: frozenset[str]
    weights: dict[str, int]


class _NoMessageError(Exception):
    pass


class _CutError(Exception):
    """The message ends so many bytes too early."""


def read(path: Path) -> OnnxFile:
    """Look into a file; raise `BackendError` for one that is cut, or no ONNX at all."""
    other = what_is(path)
    if other in {"is a folder", "is empty"} or other.startswith("cannot be read"):
        raise BackendError(f"this {other}; an ONNX model is expected")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        starts_well = data[0] == _IR_VERSION << 3
        try:
            return _model(data)
        except _CutError as error:
            if starts_well:
                raise BackendError(f"the file is cut: at least {error} bytes are missing at its end") from None
        except _NoMessageError:
            pass
    raise BackendError(f"this {other or 'is another kind of file'}; an ONNX model is expected")


def _model(data: mmap.mmap) -> OnnxFile:
    graphs = [span for number, kind, span in _fields(data, (0, len(data))) if (number, kind) == (_GRAPH, _LENGTH)]
    if not graphs:
        raise _NoMessageError
    unranked: set[str] = set()
    weights: dict[str, int] = {}
    for number, kind, span in _fields(data, graphs[0]):
        if kind != _LENGTH:
            continue
        if number in {_INPUT, _OUTPUT}:
            unranked |= _without_shape(data, span)
        elif number == _INITIALIZER:
            place = dict(_pairs(data, span))
            if "location" in place:
                end = int(place.get("offset", "0")) + int(place.get("length", "0"))
                weights[place["location"]] = max(end, weights.get(place["location"], 0))
    return OnnxFile(frozenset(unranked), weights)


def _without_shape(data: mmap.mmap, value_info: Span) -> set[str]:
    """The name of an input or output, if it is a tensor without a shape."""
    found = {number: span for number, _, span in _fields(data, value_info)}
    kind = {number: span for number, _, span in _fields(data, found.get(_TYPE, (0, 0)))}
    if _TENSOR_TYPE not in kind:
        return set()
    has_shape = any(number == _SHAPE for number, _, _ in _fields(data, kind[_TENSOR_TYPE]))
    return set() if has_shape else {_text(data, found.get(_NAME, (0, 0)))}


def _pairs(data: mmap.mmap, tensor: Span) -> Iterator[tuple[str, str]]:
    """The keys and values that say where the contents of a tensor are, if they are not in it."""
    for number, kind, span in _fields(data, tensor):
        if (number, kind) == (_EXTERNAL_DATA, _LENGTH):
            entry = {number: span for number, _, span in _fields(data, span)}
            yield _text(data, entry.get(_KEY, (0, 0))), _text(data, entry.get(_VALUE, (0, 0)))


def _text(data: mmap.mmap, span: Span) -> str:
    return data[span[0] : span[1]].decode(errors="replace")


def _fields(data: mmap.mmap, span: Span) -> Iterator[_Field]:
    """The fields of a message; raise `_NoMessageError` or `_CutError`."""
    at, end = span
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        begin = at
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _LENGTH:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        if number == 0 or kind not in {_VARINT, _FIXED64, _LENGTH, _FIXED32}:
            raise _NoMessageError
        if at > end:
            raise _CutError(at - end)
        yield number, kind, (begin, at)


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            raise _CutError(1)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return value, at
    raise _NoMessageError
