"""Tensors from and to nested arrays of JSON that have been checked, in steps that are short.

Imported late: it needs numpy and orjson. No single call here keeps the interpreter for long, so a thread that converts
large tensors lets others run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import ARRAY_NAMES, Tensor, join_bytes, split_bytes

_PIECE: Final = 65_536  # bytes of JSON that are read at a time, and elements that are written: some 3 ms
_BFLOAT: Final = "BF16"
_SPACE: Final = b" \t\r\n"
_decode: Final = msgspec.json.Decoder().decode


def tensor_of(name: str, datatype: str, text: bytes, *, shape: Sequence[int]) -> Tensor:
    """Return the tensor of nested arrays; `shape` is the declared one, for dimensions that an empty array hides."""
    if datatype == "BYTES":
        array = np.array(_decode(text), dtype=object)
        found = _whole(array.shape, shape)
        return Tensor(name, datatype, found, join_bytes([element.encode() for element in array.ravel().tolist()]))
    kind = np.dtype(np.float32 if datatype == _BFLOAT else ARRAY_NAMES[datatype])
    bare = text.translate(None, _SPACE)
    if b"[]" in bare or not bare.startswith(b"["):
        array = np.array(_decode(bare), kind)
        found = _whole(array.shape, shape)
    else:
        array = np.concatenate([np.array(piece, kind) for piece in _pieces(bare.translate(None, b"[]"))])
        found = _sizes(bare)
    return Tensor(name, datatype, found, _bits_of_bfloat(array) if datatype == _BFLOAT else array.tobytes())


def _whole(found: tuple[int, ...], shape: Sequence[int]) -> tuple[int, ...]:
    return found if 0 not in found else (*found, *(max(size, 0) for size in shape[len(found) :]))


def _pieces(elements: bytes) -> list[list[Any]]:
    """Return the numbers of a text without brackets, some at a time."""
    found, at = [], 0
    while at < len(elements):
        comma = elements.find(b",", at + _PIECE)
        end = len(elements) if comma < 0 else comma
        found.append(_decode(b"[%b]" % elements[at:end]))
        at = end + 1
    return found


def _sizes(bare: bytes) -> tuple[int, ...]:
    """Return the sizes of nested arrays without empty ones, whose rows are equally long, by counts of brackets.

    The commas behind `n` brackets separate arrays that are `n` levels above the elements.
    """
    rank = len(bare) - len(bare.lstrip(b"["))
    behind = [bare.count(b"]" * closed + b",") for closed in range(rank)]
    sizes: list[int] = []
    arrays = 1
    for closed in range(rank - 1, -1, -1):
        commas = behind[closed] - (behind[closed + 1] if closed + 1 < rank else 0)
        sizes.append(commas // arrays + 1)
        arrays *= sizes[-1]
    return tuple(sizes)


def _bits_of_bfloat(array: Any) -> bytes:
    """Round to the nearest BF16, ties to even."""
    bits = np.atleast_1d(array).view(np.uint32)
    return bytes(((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16).tobytes())


def text_of(tensor: Tensor) -> bytes:
    """Return the nested arrays of a tensor; raise `RUN_FAILED` for what JSON cannot carry."""
    if tensor.datatype == "BYTES":
        return _texts(tensor)
    array: Any
    if tensor.datatype == "BOOL":
        array = np.frombuffer(tensor.data, np.uint8) != 0
    elif tensor.datatype == _BFLOAT:
        array = (np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        array = np.frombuffer(tensor.data, ARRAY_NAMES[tensor.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise GeartrainError(
            Code.RUN_FAILED,
            f"output '{tensor.name}' holds NaN or infinity, which JSON cannot carry; ask for binary data",
        )
    return _write(array.reshape(tensor.shape))


def _texts(tensor: Tensor) -> bytes:
    try:
        texts = [element.decode() for element in split_bytes(tensor.name, tensor.data)]
    except UnicodeDecodeError:
        raise GeartrainError(
            Code.RUN_FAILED, f"output '{tensor.name}' holds bytes that are no UTF-8 text, which JSON cannot carry"
        ) from None
    return msgspec.json.encode(np.array(texts, dtype=object).reshape(tensor.shape).tolist())


def _write(array: Any) -> bytes:
    if array.ndim == 0 or array.size <= _PIECE:
        # The text of a float is that of its value, and not the shortest one that FP32 would tell apart.
        kind = np.float64 if array.dtype.kind == "f" else array.dtype
        return orjson.dumps(np.ascontiguousarray(array, kind) if array.ndim else array.item(), option=_OPTIONS)
    row = array.size // array.shape[0]
    if row > _PIECE:
        return b"[%b]" % b",".join([_write(each) for each in array])
    step = max(1, _PIECE // max(1, row))
    parts = [_write(array[at : at + step])[1:-1] for at in range(0, array.shape[0], step)]
    return b"[%b]" % b",".join(parts)


_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY
