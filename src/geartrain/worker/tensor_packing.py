"""Packs the tensors of a batch for all of its requests at once: the way of nearly all batches that have any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geartrain.domain.signature import OutputSpec
from geartrain.domain.tensors import SIZES, VARIABLE, Buffer, Tensor, pack
from geartrain.worker.arrays import WrongArrayError, check_shape, tensor_of
from geartrain.worker.faults import OutputError
from geartrain.worker.sending import Packet
from geartrain.worker.tensor_outputs import TensorOutputs, tensor_types


class TensorPacker:
    """Packs the outputs of a whole batch at once, where they are nothing but tensors of numbers."""

    def __init__(self, output: OutputSpec, *, by_rows: bool) -> None:
        """`output` is that of one request."""
        self._types = tensor_types(output.type)
        self._by_rows = by_rows
        self._outputs = TensorOutputs(output.type)
        only = output.type.kind == "tensor" or len(self._types) == len(output.type.fields)
        self._is_simple = bool(self._types) and only and all(kind.datatype in SIZES for kind in self._types.values())

    def pack(self, value: Any, sizes: Sequence[int], total: int) -> list[Packet] | None:
        """Return the packed output of each request; None if there is anything to be looked at more closely.

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
        shape = kind.shape if self._by_rows else (VARIABLE, *kind.shape)
        check_shape(tensor.shape, shape, variadic=kind.variadic)
        if tensor.shape[:1] != (total,):
            raise WrongArrayError("has another number of rows")
        return tensor

    def _cut(self, tensors: Sequence[Tensor], sizes: Sequence[int], total: int) -> list[Packet]:
        rows = [len(tensor.data) // total for tensor in tensors]  # bytes of each
        heads: dict[int, list[bytes]] = {}
        packets, position = [], 0
        for size in sizes:
            if size not in heads:
                heads[size] = self._heads(tensors, rows, size)
            parts: list[Buffer] = []
            for tensor, row, head in zip(tensors, rows, heads[size], strict=True):
                parts += (head, tensor.data[position * row : (position + size) * row])
            packets.append(Packet(parts, sum(map(len, parts)), packed=True))
            position += size
        return packets

    def _heads(self, tensors: Sequence[Tensor], rows: Sequence[int], size: int) -> list[bytes]:
        """What stands in front of each tensor's contents in the packed output of a request with so many rows."""
        own = [
            Tensor(tensor.name, tensor.datatype, self._shape(tensor, size), tensor.data[: size * row])
            for tensor, row in zip(tensors, rows, strict=True)
        ]
        heads, parts = [], iter(pack(b"{}", own))
        for tensor in own:
            head = b""
            while (part := next(parts)) is not tensor.data:
                head += part
            heads.append(head)
        return heads

    def _shape(self, tensor: Tensor, size: int) -> tuple[int, ...]:
        return (size, *tensor.shape[1:]) if self._by_rows else tensor.shape[1:]
