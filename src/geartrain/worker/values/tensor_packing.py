"""Packs the tensors of a batch for all of its requests at once: the way of nearly all batches that have any."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.domain.tensors.tensor import SIZES, VARIABLE, Buffer, Tensor, heads
from geartrain.worker.arrays import WrongArrayError, check_shape, tensor_of
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.tensor_outputs import TensorOutputs, tensor_types


def of_rows(part: TypeSpec) -> TypeSpec:
    """Return the type of a tensor that has such a part in each of its rows."""
    names = ("", *part.names) if part.names else ()
    return replace(part, shape=(VARIABLE, *part.shape), variadic_at=part.variadic_at + 1, names=names)


class TensorPacker:
    """Packs the outputs of a whole batch at once, where they are nothing but tensors of numbers."""

    def __init__(self, output: OutputSpec, *, by_rows: bool) -> None:
        """`output` is that of one request."""
        self._types = tensor_types(output.type)
        self._by_rows = by_rows
        self._declared = {name: kind if by_rows else of_rows(kind) for name, kind in self._types.items()}
        self._outputs = TensorOutputs(output.type)
        only = output.type.kind == "tensor" or len(self._types) == len(output.type.fields)
        self._is_simple = bool(self._types) and only and all(kind.datatype in SIZES for kind in self._types.values())

    def pack(self, value: Any, sizes: Sequence[int], total: int) -> list[tuple[Buffer, ...]] | None:
        """Return the parts of each request's packed output; None if there is anything to be looked at more closely.

        `sizes` are the rows of each request, and `total` those of the call.
        """
        if not self._is_simple or not total:
            return None
        try:
            fields = self._outputs.fields(value)
            if fields is None or fields.keys() != self._types.keys():
                return None
            tensors = [self._tensor(name, fields[name], total) for name in self._types]
        except (OutputError, WrongArrayError):
            return None
        return self._cut(tensors, sizes, total)

    def _tensor(self, name: str, value: Any, total: int) -> Tensor:
        kind = self._types[name]
        tensor = tensor_of(name, kind.datatype, value)
        check_shape(tensor.shape, self._declared[name])
        if tensor.shape[:1] != (total,):
            raise WrongArrayError("has another number of rows")
        return tensor

    def _cut(self, tensors: Sequence[Tensor], sizes: Sequence[int], total: int) -> list[tuple[Buffer, ...]]:
        headers = {size: heads([self._part(tensor, size, total) for tensor in tensors]) for size in set(sizes)}
        columns: list[list[Buffer]] = []
        for index, tensor in enumerate(tensors):
            data, row = tensor.data, len(tensor.data) // total  # bytes of each
            columns.append([headers[size][index] for size in sizes])
            bounds = [0, *accumulate([size * row for size in sizes])]
            columns.append(list(map(data.__getitem__, map(slice, bounds, bounds[1:]))))
        return list(zip(*columns, strict=True))

    def _part(self, tensor: Tensor, size: int, total: int) -> Tensor:
        """A tensor as a request with so many rows has it, with the contents of the first one."""
        shape = (size, *tensor.shape[1:]) if self._by_rows else tensor.shape[1:]
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data[: size * len(tensor.data) // total])
