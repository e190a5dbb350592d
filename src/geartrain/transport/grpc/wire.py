"""Raw contents in protobuf's wire format, without the copies that a message object would make of them.

A field of bytes is a tag, its length as a varint, and the bytes. Fields of a message may stand in any order, and one
that is repeated may have others in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from geartrain.domain.tensors.tensor import Buffer

ID_TAG: Final = 3 << 3 | 2  # ModelInferRequest.id and ModelInferResponse.id
RAW_INPUT_TAG: Final = 7 << 3 | 2  # ModelInferRequest.raw_input_contents
RAW_OUTPUT_TAG: Final = b"\x32"  # ModelInferResponse.raw_output_contents: 6 << 3 | 2
INFER_RESPONSE_TAG: Final = b"\x12"  # ModelStreamInferResponse.infer_response: 2 << 3 | 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT: Final = 10  # bytes
_BYTES_OF: Final = [bytes((value,)) for value in range(128)]


_NESTED_TAG: Final = 5 << 3 | 2  # ModelInferRequest.inputs, and in these InferInputTensor.contents
_CONTENTS_LEVEL: Final = 3
_BULK: Final = frozenset(number << 3 | 2 for number in (1, 6, 7, 8))  # bool, fp32, fp64, bytes of InferTensorContents
_TEXT_TAG: Final = 8 << 3 | 2  # InferTensorContents.bytes_contents
_NUMBERS: Final = frozenset(number << 3 | 2 for number in (2, 3, 4, 5))  # packed integers, of one byte or more each


class Survey(NamedTuple):
    """Counts of a serialized `ModelInferRequest`.

    Attributes:
        fields: of the request, its inputs and their contents together, `texts` apart.
        texts: elements of `bytes_contents`.
        typed: bytes of typed contents of inputs, packed integers apart.
        numbers: bytes of packed integers.
        rest: bytes of all that is neither packed integers nor other contents of tensors.
    """

    fields: int
    texts: int
    typed: int
    numbers: int
    rest: int


def survey(data: Buffer, most: int, most_texts: int) -> Survey | None:
    """Count what a parser would make objects of, without one. Return None for what is no message.

    Stops when there are more than `most` fields, or more than `most_texts` elements of `bytes_contents`.
    """
    fields = texts = raw = typed = numbers = position = 0
    ends = [len(data)]  # of the messages around `position`, the innermost one last
    while ends:
        end, level = ends[-1], len(ends)
        if position == end:
            ends.pop()
            continue
        if fields > most or texts > most_texts:
            break
        tag, position = read_varint(data, position)
        position, after = _value(data, position, tag & 7)
        if tag < 0 or not 0 <= position <= after <= end:
            return None
        size = after - position
        if level == _CONTENTS_LEVEL and tag == _TEXT_TAG:
            texts += 1
        else:
            fields += 1
        if tag == _NESTED_TAG and level < _CONTENTS_LEVEL:
            ends.append(after)
            continue
        if level == 1:
            raw += size if tag == RAW_INPUT_TAG else 0
        elif level == _CONTENTS_LEVEL:
            typed += size if tag in _BULK else 0
            numbers += size if tag in _NUMBERS else 0
        position = after
    return Survey(fields, texts, typed, numbers, len(data) - raw - typed - numbers)


def _value(data: Buffer, position: int, kind: int) -> tuple[int, int]:
    """Return begin and end of the value behind a tag, a varint at its end; -1 for none."""
    if kind == _BYTES:
        size, position = read_varint(data, position)
        return position, position + size
    if kind == _VARINT:
        position = read_varint(data, position)[1]
        return position, position
    return (position, position + _FIXED[kind]) if kind in _FIXED else (-1, -1)


def find_id(data: Buffer, most: int) -> str:
    """Return the id of a serialized `ModelInferRequest`, empty if its first `most` fields have none."""
    view = memoryview(data)
    position = 0
    for _ in range(most):
        tag, position = read_varint(view, position)
        if tag & 7 != _BYTES or position < 0:
            return ""
        size, position = read_varint(view, position)
        if size < 0:
            return ""
        if tag == ID_TAG:
            return bytes(view[position : position + size]).decode(errors="replace")
        position += size
    return ""


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
