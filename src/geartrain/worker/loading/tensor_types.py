"""The annotations that are tensors: those of jaxtyping, `NDArray[...]`, and `list[bytes]`.

The one walk over an annotation gives the datatype and the shape for the signature, and what makes the model's array of
a tensor's bytes or of nested lists. Neither jaxtyping nor numpy nor torch is imported for the question whether an
annotation is one of theirs: its author has done so.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from geartrain.domain.signature.types import TypeSpec
from geartrain.domain.tensors.tensor import VARIABLE, Tensor, split_bytes
from geartrain.worker.loading.descriptions import Converter, Described, UnsupportedTypeError

ADVICE: Final = (
    'use a type that says its datatype, such as NDArray[np.float32], or Float32[np.ndarray, "batch 3"] of jaxtyping'
)
_RANKED: Final = 2  # arguments of np.ndarray[shape, dtype]


def read_tensor(annotation: Any, *, output: bool) -> Described | None:
    """Describe an annotation that is a tensor, None if it is none; raise `UnsupportedTypeError` for one we cannot take.

    A bare `np.ndarray` or `torch.Tensor` is none for an `output`, where nothing has to be known of it.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and arguments == (bytes,):
        return Described(TypeSpec("tensor", datatype="BYTES", shape=(VARIABLE,)), _as_list_of_bytes)
    numpy = sys.modules.get("numpy")
    jaxtyping = sys.modules.get("jaxtyping")
    is_class = isinstance(annotation, type) and origin is None
    if jaxtyping is not None and is_class and issubclass(annotation, jaxtyping.AbstractArray):
        return _jaxtyping(annotation)
    if numpy is not None and origin is numpy.ndarray and len(arguments) == _RANKED:
        return _ndarray(annotation, arguments, numpy, output=output)
    if not output and is_class and (annotation is getattr(numpy, "ndarray", None) or _is_torch(annotation)):
        raise UnsupportedTypeError(annotation, ADVICE)
    return None


def _is_torch(kind: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(kind, type) and issubclass(kind, torch.Tensor)


# jaxtyping


def _jaxtyping(annotation: Any) -> Described:
    datatype = _datatype_of(annotation)
    shape = tuple(map(_size_of, annotation.dims))
    at = annotation.index_variadic
    spec = TypeSpec(
        "tensor",
        datatype=datatype,
        shape=shape,
        variadic=at is not None,
        variadic_at=at or 0,
        names=_names_of(annotation.dims, at),
    )
    array_type = annotation.array_type
    if _is_torch(array_type):
        return Described(spec, _Maker(spec, _as_torch_bfloat if datatype == "BF16" else _as_torch))
    numpy = sys.modules.get("numpy")
    if numpy is None or array_type is not numpy.ndarray:
        raise UnsupportedTypeError(annotation, "let it be an array of numpy or torch: use np.ndarray or torch.Tensor")
    return Described(spec, _numpy_maker(annotation, spec))


def _datatype_of(annotation: Any) -> str:
    """The one datatype of the protocol that an annotation admits."""
    from geartrain.worker.arrays import NAMES

    names = tuple(annotation.dtypes) if isinstance(annotation.dtypes, Iterable) else ()  # otherwise a sentinel for any
    found = {NAMES.get(str(name).removesuffix("_")) for name in names}
    if len(found) == 1 and (datatype := found.pop()) is not None:
        return datatype
    if len(names) == 1:
        advice = f"no protocol has {names[0]}: use one of {', '.join(_jaxtyping_names())}"
    else:
        advice = "a server has to say which datatype it takes: use Float32, Int64 or another one of a known size"
    raise UnsupportedTypeError(annotation, advice)


def _jaxtyping_names() -> Iterable[str]:
    return ("Bool", *(f"{sign}Int{n}" for sign in ("U", "") for n in (8, 16, 32, 64)), "BFloat16", "Float16/32/64")


def _size_of(dimension: Any) -> int:
    """A size that is a number is fixed; a name, an expression, and one that may also be 1 (`#3`), are not."""
    size = getattr(dimension, "size", VARIABLE)
    return VARIABLE if getattr(dimension, "broadcastable", False) else int(size)


def _names_of(dimensions: Sequence[Any], variadic_at: int | None) -> tuple[str, ...]:
    """The names of dimensions that stand more than once in a shape: these have to be equally long."""
    names = [
        "" if index == variadic_at or getattr(each, "broadcastable", False) else getattr(each, "name", "")
        for index, each in enumerate(dimensions)
    ]
    repeated = tuple(name if names.count(name) > 1 else "" for name in names)
    return repeated if any(repeated) else ()


# numpy.typing


def _ndarray(annotation: Any, arguments: tuple[Any, ...], numpy: Any, *, output: bool) -> Described | None:
    scalar = next(iter(typing.get_args(arguments[1])), None)
    shape = typing.get_args(arguments[0])
    is_ranked = bool(shape) and Ellipsis not in shape
    sizes = (VARIABLE,) * len(shape) if is_ranked else (VARIABLE,)
    if scalar in {numpy.str_, numpy.bytes_, numpy.object_}:
        text = scalar is numpy.str_
        spec = TypeSpec("tensor", datatype="BYTES", shape=sizes, variadic=not is_ranked, text=text)
        return Described(spec, _Maker(spec, lambda array: array, scalar))
    from geartrain.worker.arrays import NAMES

    is_concrete = isinstance(scalar, type) and issubclass(scalar, numpy.generic)
    try:
        datatype = NAMES.get(numpy.dtype(scalar).name) if is_concrete else None
    except TypeError:  # an abstract one, such as np.floating
        datatype = None
    if datatype is None:
        if output:
            return None
        raise UnsupportedTypeError(annotation, "use a type of a known size, such as np.float32, np.int64 or np.str_")
    spec = TypeSpec("tensor", datatype=datatype, shape=sizes, variadic=not is_ranked)
    return Described(spec, _numpy_maker(annotation, spec))


# from a value


def array_maker(spec: TypeSpec) -> Converter:
    """Return the maker of numpy arrays from a tensor's bytes, or nested lists; BYTES are objects of type `bytes`.

    Raises `UnsupportedTypeError` for BF16 where numpy has no such type.
    """
    if spec.datatype == "BYTES":
        return _Maker(spec, lambda array: array, importlib.import_module("numpy").object_)
    return _numpy_maker(spec.datatype, spec)


def _numpy_maker(annotation: Any, spec: TypeSpec) -> _Maker:
    if spec.datatype == "BF16":
        if importlib.util.find_spec("ml_dtypes") is None:
            raise UnsupportedTypeError(annotation, "numpy has no bfloat16: use torch.Tensor, or install ml_dtypes")
        return _Maker(spec, _as_bfloat)
    return _Maker(spec, lambda array: array)


class _Maker:
    """Makes the array of a tensor, or of nested lists; what is an array already, such as a default, stays one."""

    def __init__(self, spec: TypeSpec, form: Callable[[Any], Any], strings: Any = None) -> None:
        """`form` makes what the model asks for of a numpy array; `strings` is the element type of one of BYTES."""
        from geartrain.worker import arrays

        self._arrays = arrays
        self._datatype = spec.datatype
        self._shape = spec.shape
        self._form = form
        self._strings = strings

    def __call__(self, value: Any) -> Any:
        """Raises `ValueError`: a default that is no such array."""
        arrays = self._arrays
        if isinstance(value, Tensor):
            if self._strings is None:
                return self._form(arrays.numbers_of(value))
            return self._array(arrays.strings_of(value), value.shape)
        if self._strings is not None:
            return self._array_of_nested(value)
        if isinstance(value, (list, int, float)):
            return self._form(arrays.numbers_from_json(value, self._datatype, self._shape))
        return self._form(arrays.array_of(value, self._datatype).copy())

    def _array(self, elements: list[bytes], shape: tuple[int, ...]) -> Any:
        import numpy as np

        values: list[Any] = [element.decode() for element in elements] if self._strings is np.str_ else elements
        array = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape) if self._strings is np.object_ else array.astype(self._strings).reshape(shape)

    def _array_of_nested(self, value: Any) -> Any:
        shape, elements = self._arrays.bytes_of(value)
        return self._array(elements, self._arrays.whole_shape(shape, self._shape))


def _as_torch(array: Any) -> Any:
    return sys.modules["torch"].from_numpy(array)


def _as_torch_bfloat(array: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16)


def _as_bfloat(array: Any) -> Any:
    from geartrain.worker.arrays import numpy_type

    return array.view(numpy_type("BF16"))


def _as_list_of_bytes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return split_bytes(value.name, value.data)
    return [item.encode() if isinstance(item, str) else item for item in value]
