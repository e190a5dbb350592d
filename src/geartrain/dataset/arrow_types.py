"""Outputs as columns of Arrow: their types by the signature, and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.dataset.results import Result
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.domain.tensors.tensor import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

_decode = msgspec.json.Decoder().decode


def nesting_of(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function from a value as Arrow gives it to that of JSON; None where they are the same.

    A map comes as pairs, and a tensor of a fixed shape as a flat list.
    """
    import pyarrow as pa

    if pa.types.is_map(kind):
        return dict
    if isinstance(kind, pa.FixedShapeTensorType) and (kind.permutation or []) == sorted(kind.permutation or []):
        inner = kind.shape[:0:-1]

        def nested(values: list[Any]) -> list[Any]:
            for size in inner:
                values = [values[start : start + size] for start in range(0, len(values), size)]
            return values

        return nested
    return None


def output_columns(
    results: Sequence[Result], output: OutputSpec, text_of: Callable[[Result], Buffer | None]
) -> tuple[pa.Array, pa.Array]:
    """Return the columns `output` and `error` of results. `text_of` returns the JSON text of an output.

    An output that does not fit its type is an error.
    """
    import pyarrow as pa

    outputs, errors = [], []
    kind, read = arrow_type(output)
    for result in results:
        error, value = result.error, None
        if not error:
            try:
                value = read(text_of(result) or b"null")
                if _may_not_fit(value):
                    pa.scalar(value, kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as fault:
                error, value = f"the output does not fit its column: {fault}", None
        outputs.append(value)
        errors.append(error or None)
    return pa.array(outputs, kind), pa.array(errors, pa.string())


def arrow_type(output: OutputSpec) -> tuple[pa.DataType, Callable[[Buffer], Any]]:
    """Return the type of the column for outputs, and the function from their JSON text to its values.

    What Arrow has no type for stays JSON text.
    """
    import pyarrow as pa

    kind = _arrow_type(output.type)
    if output.mode == "concatenate":
        return pa.string(), lambda text: "".join(map(str, _decode(text) or ()))
    if output.mode == "iterator":
        kind = None if kind is None else pa.list_(kind)
    if kind is None:
        return pa.string(), lambda text: bytes(text).decode()
    return kind, _decode


def _arrow_type(spec: TypeSpec) -> pa.DataType | None:
    import pyarrow as pa

    simple = {
        "string": pa.string(),
        "secret": pa.string(),
        "path": pa.string(),
        "file": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
    }
    if spec.kind in simple:
        return simple[spec.kind]
    if spec.kind == "array" and spec.items is not None:
        items = _arrow_type(spec.items)
        return None if items is None else pa.list_(items)
    if spec.kind == "record" and spec.fields:
        fields = [(field.name, _arrow_type(field.type)) for field in spec.fields]
        known = [(name, kind) for name, kind in fields if kind is not None]
        return pa.struct(known) if len(known) == len(fields) else None
    if spec.kind == "tensor" and not spec.variadic and spec.datatype in _TENSORS:
        made = _TENSORS[spec.datatype](pa)
        for size in reversed(spec.shape):
            made = pa.list_(made, size) if size > 0 else pa.list_(made)
        return made
    return None


_TENSORS: Final[dict[str, Callable[[Any], Any]]] = {
    "FP32": lambda pa: pa.float32(),
    "FP64": lambda pa: pa.float64(),
    "INT8": lambda pa: pa.int8(),
    "INT16": lambda pa: pa.int16(),
    "INT32": lambda pa: pa.int32(),
    "INT64": lambda pa: pa.int64(),
    "UINT8": lambda pa: pa.uint8(),
    "UINT16": lambda pa: pa.uint16(),
    "UINT32": lambda pa: pa.uint32(),
    "UINT64": lambda pa: pa.uint64(),
    "BOOL": lambda pa: pa.bool_(),
}


def _may_not_fit(value: Any) -> bool:
    """True for values whose type does not say that they fit: numbers beyond 64 bits, and all that is nested."""
    return isinstance(value, int | list | dict)
