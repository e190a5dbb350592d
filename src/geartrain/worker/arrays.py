"""Between the bytes of a tensor, or nested lists, and the arrays of numpy and torch.

Loads numpy, and nothing else: torch and ml_dtypes are only touched where the author's annotations name them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

from geartrain.domain.tensors.tensor import (
    ARRAY_NAMES,
    Buffer,
    Shaped,
    Tensor,
    describe_shape,
    fits,
    join_bytes,
    split_bytes,
)

BFLOAT: Final = "BF16"
NAMES: Final[dict[str, str]] = {name: datatype for datatype, name in ARRAY_NAMES.items()}
"""The datatype of each array type's name, which numpy, torch and jaxtyping share."""
_TYPES: Final = {datatype: np.dtype(name) for datatype, name in ARRAY_NAMES.items() if datatype != BFLOAT}
_DATATYPES: Final = {kind: datatype for datatype, kind in _TYPES.items()}  # to ask for a type's name takes a while
_TEXT_KINDS: Final = frozenset("USO")
_SMALL: Final = 2048  # bytes; so many are copied faster than looked at in place


class WrongArrayError(ValueError):
    """A value is not the array that was declared: the message is a sentence without its subject."""


def numpy_type(datatype: str) -> Any:
    """The numpy type of a datatype other than BYTES; that of BF16 is of the package ml_dtypes."""
    if datatype != BFLOAT:
        return _TYPES[datatype]
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)


# input


def datatype_of(kind: Any) -> str:
    """The datatype of an array's type, of numpy or torch; empty for a type that no datatype has."""
    found = _DATATYPES.get(kind)
    if found is None:
        name = getattr(kind, "name", "") or str(kind).removeprefix("torch.")
        found = NAMES.get(name, "BYTES" if getattr(kind, "kind", "") in _TEXT_KINDS else "")
    return found


def numbers_of(tensor: Tensor, *, is_own: bool = False) -> Any:
    """A numpy array with a copy of a tensor's numbers, or those themselves; BF16 as the 16 bits that they are."""
    kind = np.dtype(np.uint16) if tensor.datatype == BFLOAT else numpy_type(tensor.datatype)
    if not len(tensor.data):
        return np.empty(tensor.shape, kind)
    if tensor.datatype == "BOOL":  # any other byte than 0 is true
        return np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape) != 0
    array = np.frombuffer(tensor.data, kind).reshape(tensor.shape)
    return array if is_own else array.copy()


def strings_of(tensor: Tensor) -> list[bytes]:
    """The elements of a tensor of BYTES, one after the other."""
    return split_bytes(tensor.name, tensor.data)


def numbers_from_json(values: Any, datatype: str, shape: Sequence[int]) -> Any:
    """A numpy array of checked nested lists; BF16 as the 16 bits that they are."""
    array = np.array(values, np.dtype(np.float32) if datatype == BFLOAT else numpy_type(datatype))
    array = array.reshape(whole_shape(array.shape, shape))
    return bits_of_bfloat(array) if datatype == BFLOAT else array


def whole_shape(found: tuple[int, ...], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of nested lists with the dimensions that they could not show for want of elements: `[]` is [0, 3]."""
    return found if 0 not in found else (*found, *(max(size, 0) for size in shape[len(found) :]))


def bits_of_bfloat(array: Any) -> Any:
    """The 16 bits of each BF16 that is nearest to a float32, ties to even. There are no NaNs in it."""
    bits = np.atleast_1d(array).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return rounded.astype(np.uint16).reshape(array.shape)


# output


def is_torch(value: Any) -> bool:
    """True if this is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_of(value: Any, datatype: str) -> Any:
    """The numpy array of a value that a model gave, cast to a datatype where nothing but precision is lost.

    BF16 is the 16 bits of each. Raises `WrongArrayError`.
    """
    if is_torch(value):
        value = value.detach().cpu().contiguous()
        if str(value.dtype) == "torch.bfloat16":
            value = value.view(sys.modules["torch"].int16).numpy().view(np.uint16)
            return value if datatype == BFLOAT else _cast(_widened(value), BFLOAT, datatype)
        value = value.numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise WrongArrayError(f"is of type {type(value).__name__}, which is no array: {error}") from None
    given = _DATATYPES.get(array.dtype) or NAMES.get(array.dtype.name, "")
    if given == BFLOAT:
        array = array.view(np.uint16)
        return array if datatype == BFLOAT else _cast(_widened(array), BFLOAT, datatype)
    if not given:
        kind = "text" if array.dtype.kind == "U" else array.dtype.name
        what = f"an array of {kind}" if array.ndim else f"of type {type(value).__name__}"
        raise WrongArrayError(f"is {what}, and {datatype} is declared")
    if given != datatype:
        return _cast(array, given, datatype)
    return array if array.dtype.isnative else array.astype(numpy_type(datatype))


def _widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)


def _cast(array: Any, given: str, datatype: str) -> Any:
    """Cast to another precision of the same kind, or a whole number to a float; raise `WrongArrayError` otherwise."""
    kind = np.dtype(np.float32) if datatype == BFLOAT else numpy_type(datatype)
    if array.dtype.kind in "iu" and kind.kind in "iu":
        limits = np.iinfo(kind)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise WrongArrayError(f"is {given}, and holds values that are not in the range of the declared {datatype}")
    elif array.dtype.kind not in "iuf" or kind.kind != "f":
        raise WrongArrayError(f"is {given}, and {datatype} is declared")
    try:
        with np.errstate(over="raise"):
            array = array.astype(kind)
    except FloatingPointError:
        raise WrongArrayError(f"is {given}, and holds values beyond the range of the declared {datatype}") from None
    return bits_of_bfloat(array) if datatype == BFLOAT else array


def check_shape(found: Sequence[int], declared: Shaped) -> None:
    """Raise `WrongArrayError` if a shape is not the declared one."""
    if not fits(found, declared):
        raise WrongArrayError(f"has the shape {list(found)}, and {describe_shape(declared)} is declared")


def contents_of(array: Any) -> Buffer:
    """The bytes of a numpy array in row-major order, without a copy if they lie so and are many."""
    if array.nbytes <= _SMALL:
        return cast("bytes", array.tobytes())
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat.view(np.uint8))


def bytes_of(value: Any) -> tuple[tuple[int, ...], list[bytes]]:
    """The shape and the elements of an array or a list of texts or bytes; raise `WrongArrayError`."""
    array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    if array.dtype.kind not in "USO":
        raise WrongArrayError(f"is an array of {array.dtype.name}, and BYTES is declared")
    return array.shape, [_bytes(element) for element in array.ravel().tolist()]


def _bytes(element: Any) -> bytes:
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise WrongArrayError(f"holds an element of type {type(element).__name__}, and BYTES is declared")


def tensor_of(name: str, datatype: str, value: Any) -> Tensor:
    """The tensor of an array that a model gave, cast where nothing but precision is lost; raise `WrongArrayError`."""
    if datatype == "BYTES":
        shape, elements = bytes_of(value)
        return Tensor(name, datatype, shape, join_bytes(elements))
    array = array_of(value, datatype)
    return Tensor(name, datatype, array.shape, contents_of(array))


def any_tensor(name: str, value: Any) -> Tensor:
    """The tensor of an array of any type; raise `TypeError` for one whose elements no datatype has."""
    if type(value) is np.ndarray:
        known = _DATATYPES.get(value.dtype)
        if known is not None:
            return Tensor(name, known, value.shape, contents_of(value))
    kind = str(value.dtype).removeprefix("torch.") if is_torch(value) else np.asarray(value).dtype.name
    array = value if is_torch(value) else np.asarray(value)
    datatype = "BYTES" if getattr(array.dtype, "kind", "") in tuple("USO") else NAMES.get(kind, "")
    if not datatype:
        raise TypeError(f"input {name!r} is an array of {kind}, which cannot be sent to another model")
    try:
        return tensor_of(name, datatype, array)
    except WrongArrayError as error:
        raise TypeError(f"input {name!r} {error}") from None


def array_from(tensor: Tensor, *, is_own: bool = False) -> Any:
    """A numpy array with a copy of a tensor's contents, or over them; BYTES are texts where all of them are UTF-8."""
    if tensor.datatype != "BYTES":
        found = numbers_of(tensor, is_own=is_own)
        return found.view(numpy_type(BFLOAT)) if tensor.datatype == BFLOAT else found
    elements = strings_of(tensor)
    try:
        values: list[Any] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        values = [*elements]
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(tensor.shape)


def plain_of(datatype: str, value: Any) -> Any:
    """The nested lists of an array that a model gave: numbers widened to double, BYTES as text; and its shape.

    Raises `WrongArrayError`.
    """
    if datatype == "BYTES":
        shape, elements = bytes_of(value)
        try:
            texts = [element.decode() for element in elements]
        except UnicodeDecodeError:
            raise WrongArrayError("holds bytes that are no UTF-8 text, which JSON cannot carry") from None
        return shape, np.array(texts, dtype=object).reshape(shape).tolist()
    array = array_of(value, datatype)
    return array.shape, (_widened(array) if datatype == BFLOAT else array).tolist()
