"""Tensors as the Open Inference Protocol has them: a name, a datatype, a shape, and bytes in row-major order.

The bytes are little-endian without padding. Each element of a BYTES tensor is its length as 4 little-endian bytes and
then its bytes, as in the protocol's raw contents and the binary tensor extension. No array package is needed here.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",  # Triton's addition to the table
    "BYTES",
]
Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

DATATYPES: Final[frozenset[str]] = frozenset(get_args(Datatype))
SIZES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
}
"""Bytes of one element; BYTES is not among them."""
ARRAY_NAMES: Final[dict[str, str]] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
}
"""Names of the datatypes in array packages, which have no common one for BYTES."""

VARIABLE: Final = -1  # the size of a dimension that is not fixed
MAX_ELEMENTS: Final = 2**40
MAX_RANK: Final = 64  # same as numpy
_JOINED: Final = 65_536  # elements of a BYTES tensor that are joined at a time
MAX_TEXTS: Final = 2_000_000  # elements of a BYTES tensor: each is looked at by itself
_LENGTH: Final = 4  # bytes in front of each element of BYTES
_MOST_BITS: Final = 128  # of a size that errors write out
_LENGTHS: Final = struct.Struct("<I")
_ALIGNMENT: Final = 64  # of the data in packed tensors, as array packages like it

if sys.byteorder != "little":  # pragma: no cover
    msg = "geartrain hands tensors over as they lie in memory, and needs a little-endian machine"
    raise ImportError(msg)


class Tensor(msgspec.Struct, frozen=True):
    """A tensor with its contents: `len(data)` bytes for a `shape` of known sizes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class TensorSpec(msgspec.Struct, frozen=True):
    """Declaration of a tensor. `shape` has -1 for any size.

    `variadic`: any number of dimensions stands at `variadic_at` in `shape`; an empty `shape` is then any shape at all.
    `optional`: may be left out. `names`: one for each dimension, where some have to be equally long; "" for the others.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    variadic: bool = False
    variadic_at: int = 0
    names: tuple[str, ...] = ()


class Shaped(Protocol):
    """Whatever declares a shape; see `TensorSpec` for what the attributes mean."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, -1 for an open one."""

    @property
    def variadic(self) -> bool:
        """True if any number of dimensions stands at `variadic_at`."""

    @property
    def variadic_at(self) -> int:
        """An index of `shape`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of dimensions that have to be equally long."""


def tensor_error(message: str) -> GeartrainError:
    """An error in a tensor that a client has sent or asked for."""
    return GeartrainError(Code.INVALID_TENSOR, message)


def count_of(shape: Sequence[int]) -> int:
    """The number of elements of a shape whose sizes are known; 1 for no dimension."""
    return math.prod(shape)


def check(spec: TensorSpec, tensor: Tensor) -> None:
    """Check a tensor against what the model says of it; raise `INVALID_TENSOR` with what came and what was expected.

    Everything is looked at: the datatype, the shape, and whether the contents are as many bytes as both say.
    """
    check_type(spec, tensor.datatype, tensor.shape)
    check_size(tensor)


def check_type(spec: TensorSpec, datatype: str, shape: Sequence[int]) -> None:
    """Check a tensor without its contents."""
    if datatype != spec.datatype:
        raise tensor_error(f"input '{spec.name}' has datatype {clip(datatype)}; the model expects {spec.datatype}")
    if not fits(shape, spec):
        msg = f"unexpected shape for input '{spec.name}'. Expected {describe_shape(spec)}, got {shown_shape(shape)}"
        raise tensor_error(msg)


def fits(shape: Sequence[int], spec: Shaped) -> bool:
    """True if a shape is one of those that are declared: the number of dimensions, their sizes and their names."""
    wanted = spread(spec, spec.shape, len(shape), fill=VARIABLE) if spec.variadic else spec.shape
    if wanted is None or len(shape) != len(wanted):
        return False
    for size, want in zip(shape, wanted, strict=True):
        if size < 0 or want not in (size, VARIABLE):
            return False
    return not spec.names or names_agree(shape, spec)


def spread(spec: Shaped, items: tuple[T, ...], rank: int, *, fill: T) -> tuple[T, ...] | None:
    """Return one item for each of `rank` dimensions, `fill` for those of any number; None if there are too few.

    `items` has one for each dimension that a variadic `spec` writes down.
    """
    before, after = items[: spec.variadic_at], items[spec.variadic_at + 1 :]
    number = rank - len(before) - len(after)
    return None if number < 0 else (*before, *((fill,) * number), *after)


def names_agree(shape: Sequence[int], spec: Shaped) -> bool:
    """True if all dimensions of one name are equally long, in a shape that has as many of them as are declared."""
    names = spread(spec, spec.names, len(shape), fill="") if spec.variadic else spec.names
    sizes: dict[str, int] = {}
    return all(not name or sizes.setdefault(name, size) == size for name, size in zip(names or (), shape, strict=True))


def describe_shape(spec: Shaped) -> str:
    """A declared shape as errors write it: `[-1, 3]`, `[..., n, n]`, `[...]` for any."""
    texts = [str(size) for size in spec.shape]
    for index, name in enumerate(spec.names):
        texts[index] = name or texts[index]
    if spec.variadic:
        texts[spec.variadic_at : spec.variadic_at + 1] = ["..."]
    return f"[{', '.join(texts)}]"


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Check that array packages could make something of a shape, with or without elements; raise `INVALID_TENSOR`."""
    if len(shape) <= MAX_RANK and 0 < math.prod(shape) <= MAX_ELEMENTS:
        return
    if len(shape) > MAX_RANK:
        raise too_many_dimensions(name, len(shape))
    if math.prod(shape) > MAX_ELEMENTS or (0 in shape and math.prod(filter(None, shape)) > MAX_ELEMENTS):
        raise tensor_error(f"input '{name}' of shape {shown_shape(shape)} has too many elements")


def shown_shape(shape: Sequence[int]) -> str:
    """A shape that a client sent, as errors write it."""
    sizes = [str(size) if size.bit_length() <= _MOST_BITS else f"{str(size)[:20]}…" for size in shape]
    return clip(f"[{', '.join(sizes)}]")


def too_many_dimensions(name: str, count: int) -> GeartrainError:
    """Say that a shape is longer than `MAX_RANK`."""
    return tensor_error(f"input '{name}' has {count} dimensions; at most {MAX_RANK} are accepted")


def check_size(tensor: Tensor) -> None:
    """Check that the contents are what datatype and shape say; raise `INVALID_TENSOR`."""
    check_shape(tensor.name, tensor.shape)
    count = count_of(tensor.shape)
    size = SIZES.get(tensor.datatype)
    if size is None:
        check_bytes(tensor.name, tensor.data, count)
    elif len(tensor.data) != count * size:
        msg = (
            f"input byte size mismatch for input '{tensor.name}'. "
            f"Expected {count * size} bytes for shape {shown_shape(tensor.shape)} of {tensor.datatype}, "
            f"got {len(tensor.data)}"
        )
        raise tensor_error(msg)


def check_bytes(name: str, data: Buffer, count: int) -> None:
    """Check that `data` holds exactly `count` elements of BYTES; raise `INVALID_TENSOR`."""
    for _ in pieces_of(name, data, count):
        pass


def split_bytes(name: str, data: Buffer, count: int | None = None) -> list[bytes]:
    """Return the elements of a BYTES tensor; raise `INVALID_TENSOR` if they are cut, or not `count` of them."""
    return [bytes(data[begin:end]) for begin, end in pieces_of(name, data, count)]


def pieces_of(name: str, data: Buffer, count: int | None) -> Iterator[tuple[int, int]]:
    """Yield where each element of a BYTES tensor begins and ends; raise `INVALID_TENSOR` as `split_bytes` does."""
    found = position = 0
    size = len(data)
    unpack_length = _LENGTHS.unpack_from
    while position < size:
        begin = position + _LENGTH
        if begin > size:
            raise tensor_error(f"incomplete string length indicator for input '{name}': {size - position} bytes of 4")
        if found == MAX_TEXTS:
            raise too_many_texts(name)
        length = unpack_length(data, position)[0]
        position = begin + length
        if position > size:
            left = size - begin
            msg = f"incomplete string data for input '{name}': a string of {length} bytes, but {left} bytes left"
            raise tensor_error(msg)
        found += 1
        yield begin, position
    if count is not None and found != count:
        raise tensor_error(f"unexpected number of string elements for input '{name}': {found} for {count}")


def too_many_texts(name: str) -> GeartrainError:
    """Say that a BYTES tensor has more than `MAX_TEXTS` elements."""
    return tensor_error(f"input '{name}' has more than {MAX_TEXTS} elements, the most that a BYTES tensor may have")


def join_bytes(elements: Sequence[bytes]) -> bytes:
    """Return the contents of a BYTES tensor with these elements."""
    if len(elements) > _JOINED:  # in pieces, so that a thread that joins lets others run in between
        return b"".join([join_bytes(elements[at : at + _JOINED]) for at in range(0, len(elements), _JOINED)])
    return b"".join(chain.from_iterable(zip(map(_LENGTHS.pack, map(len, elements)), elements, strict=True)))


# Packed: how JSON and tensors of one input or output travel as one piece of memory.
#
#   4 bytes    length of the header
#   header     msgpack: [length of the JSON, [[name, datatype, shape, offset, size], …]]
#   JSON       the values that are no tensors, an object
#   tensors    each at its offset from the beginning, a multiple of 64


class _Place(msgspec.Struct, frozen=True, array_like=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Header(msgspec.Struct, frozen=True, array_like=True):
    json_size: int
    tensors: tuple[_Place, ...]
    at: int  # begin of the JSON


class _Layout(NamedTuple):
    """Bytes before the JSON, and before the contents of each tensor so that they are aligned."""

    head: bytes
    gaps: tuple[bytes, ...]


_Sized = tuple[str, str, tuple[int, ...], int]  # a tensor: name, datatype, shape, bytes of its contents

_EMPTY: Final = b"{}"
_encode = msgspec.msgpack.Encoder().encode
_decode = lru_cache(maxsize=256)(msgspec.msgpack.Decoder(_Header).decode)


@lru_cache(maxsize=256)  # most pieces of a model differ in nothing but the contents
def _layout(json_size: int, tensors: tuple[_Sized, ...], room: int = 0) -> _Layout:
    # Room for the header: each place is at most so long, and where the data begins depends on it.
    names = sum([4 * len(name) + 9 * len(shape) for name, _, shape, _ in tensors])
    at = _LENGTH + 32 + 48 * len(tensors) + names
    position = at + json_size + room
    places: list[_Place] = []
    gaps: list[bytes] = []
    for name, datatype, shape, size in tensors:
        offset = -(-position // _ALIGNMENT) * _ALIGNMENT
        places.append(_Place(name, datatype, shape, offset, size))
        gaps.append(bytes(offset - position + room))
        position, room = offset + size, 0
    header = _encode(_Header(json_size, tuple(places), at))
    return _Layout((len(header).to_bytes(_LENGTH, "little") + header).ljust(at, b"\0"), tuple(gaps))


def pack(json: bytes, tensors: Sequence[Tensor], *, room: int = 0) -> list[Buffer]:
    """Return the parts of a packed piece, to be written one after the other: no contents are copied here.

    So many bytes of `room` before the contents of the first tensor mean nothing.
    """
    sized = tuple([(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in tensors])
    head, gaps = _layout(len(json), sized, room)
    if len(gaps) == 1:
        return [b"%b%b%b" % (head, json, gaps[0]), tensors[0].data]
    parts: list[Buffer] = [head + json]
    for gap, tensor in zip(gaps, tensors, strict=True):
        parts += (gap, tensor.data)
    return parts


def pack_parts(json: bytes, tensors: Sequence[tuple[Tensor, Sequence[Buffer]]]) -> list[Buffer]:
    """Pack tensors whose contents are in parts, one behind the other; their `data` is ignored."""
    sized = tuple([(each.name, each.datatype, each.shape, sum(map(len, parts))) for each, parts in tensors])
    head, gaps = _layout(len(json), sized)
    packed: list[Buffer] = [head + json]
    for gap, (_, parts) in zip(gaps, tensors, strict=True):
        packed += (gap, *parts)
    return packed


def heads(tensors: Sequence[Tensor]) -> list[bytes]:
    """Return the bytes before each tensor's contents, in a piece of one tensor or more and an empty object."""
    sized = tuple([(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in tensors])
    head, (first, *gaps) = _layout(len(_EMPTY), sized)
    return [head + _EMPTY + first, *gaps]


def stack(json: bytes, requests: Sequence[Sequence[Tensor]]) -> list[Buffer]:
    """Pack the tensors of several requests, those of one name laid along their first dimension.

    All requests have the same names, and shapes that differ in nothing but the size of that dimension.
    """
    if not requests:
        return pack(json, ())
    stacked: list[tuple[Tensor, Sequence[Buffer]]] = []
    for first in requests[0]:
        name = first.name
        same = [tensor for tensors in requests for tensor in tensors if tensor.name == name]
        rows = sum(tensor.shape[0] for tensor in same)
        shape = (rows, *first.shape[1:])
        stacked.append((Tensor(name, first.datatype, shape, b""), [tensor.data for tensor in same]))
    return pack_parts(json, stacked)


class OnlyTensor(msgspec.Struct, frozen=True):
    """The tensor of a packed piece that has no other one; its contents begin at `offset`, in bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int


def head_of(packed: Buffer) -> bytes:
    """Return the beginning of a packed piece: pieces with the same head differ in their contents only."""
    return bytes(packed[: _LENGTH + int.from_bytes(packed[:_LENGTH], "little")])


def only_tensor(head: bytes) -> OnlyTensor | None:
    """Decode the head of a piece with a single tensor; None if there are several, or none."""
    places = _decode(head[_LENGTH:]).tensors
    if len(places) != 1:
        return None
    (place,) = places
    return OnlyTensor(place.name, place.datatype, place.shape, place.offset)


def contents_at(packed: Buffer) -> int:
    """Return the offset of the first tensor's contents in a packed piece; its size if there is no tensor."""
    places = _decode(head_of(packed)[_LENGTH:]).tensors
    return places[0].offset if places else len(packed)


def room_at(packed: Buffer) -> int:
    """Return the offset of the room before the first tensor's contents in a packed piece."""
    header = _decode(head_of(packed)[_LENGTH:])
    return header.at + header.json_size


def unpack(packed: Buffer) -> tuple[bytes, list[Tensor]]:
    """Return the JSON and the tensors of a packed piece; the contents are views of it."""
    view = memoryview(packed)
    begin = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    header = _decode(bytes(view[_LENGTH:begin]))
    json = bytes(view[header.at : header.at + header.json_size])
    return json, [
        Tensor(place.name, place.datatype, place.shape, view[place.offset : place.offset + place.size])
        for place in header.tensors
    ]
