"""Raw contents in protobuf's wire format, without the copies that a message object would make of them.

A field of bytes is a tag, its length as a varint, and the bytes. Fields of a message may stand in any order, and one
that is repeated may have others in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from geartrain.domain.tensors.tensor import Buffer

ID_TAG: Final = 3 << 3 | 2  # ModelInferRequest.id and ModelInferResponse.id
RAW_INPUT_TAG: Final = 7 << 3 | 2  # ModelInferRequest.raw_input_contents
RAW_OUTPUT_TAG: Final = b"\x32"  # ModelInferResponse.raw_output_contents: 6 << 3 | 2
INFER_RESPONSE_TAG: Final = b"\x12"  # ModelStreamInferResponse.infer_response: 2 << 3 | 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT: Final = 10  # bytes
_BYTES_OF: Final = [bytes((value,)) for value in range(128)]


def split_raw(data: Buffer) -> tuple[bytes, list[memoryview]] | None:
    """Take the raw contents out of a serialized `ModelInferRequest`.

    Returns what is left, still a request, and the contents as views of `data`; None for what is no such message, or one
    with parts that only a full parser knows.
    """
    view = memoryview(data)
    kept: list[memoryview] = []
    raw: list[memoryview] = []
    position, kept_from, end = 0, 0, len(view)
    while position < end:
        begin = position
        tag, position = read_varint(view, position)
        kind = tag & 7
        if kind == _BYTES:
            length, position = read_varint(view, position)
            after = position + length
        elif kind == _VARINT:
            after = read_varint(view, position)[1]
        elif kind in _FIXED:
            after = position + _FIXED[kind]
        else:
            return None
        if tag < 0 or position < 0 or not position <= after <= end:
            return None
        if tag == RAW_INPUT_TAG:
            raw.append(view[position:after])
            kept.append(view[kept_from:begin])
            kept_from = after
        position = after
    kept.append(view[kept_from:end])
    return b"".join(kept), raw


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return a number and the position after it; both -1 for none."""
    value = shift = 0
    try:
        for at in range(position, position + _MAX_VARINT):
            byte = data[at]
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
                return value, at + 1
            shift += 7
    except IndexError:
        pass
    return -1, -1


def varint(value: int) -> bytes:
    """Write a number that is not negative."""
    if value < 128:  # noqa: PLR2004 - one byte
        return _BYTES_OF[value]
    written = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def with_raw(head: bytes, contents: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts of a `ModelInferResponse`: a serialized one, and raw contents to be added to it."""
    parts: list[Buffer] = [head]
    for each in contents:
        parts += (RAW_OUTPUT_TAG + varint(len(each)), each)
    return parts


def as_stream_response(parts: list[Buffer]) -> list[Buffer]:
    """Return the parts of a `ModelStreamInferResponse` around those of a `ModelInferResponse`."""
    return [INFER_RESPONSE_TAG + varint(sum(map(len, parts))), *parts]
