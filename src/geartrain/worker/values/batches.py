"""The arguments of a batch, made of the inputs of its requests, and their parts of what `run()` gives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

from geartrain.authoring.values import BaseModel
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.tensors.tensor import SIZES, Buffer, Tensor, join_bytes, split_bytes, unpack
from geartrain.ipc.messages import CallItem
from geartrain.worker.errors import ClientError, ReportedError
from geartrain.worker.loading.annotations import is_pydantic
from geartrain.worker.loading.descriptions import Converter
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.values.arguments import ArgumentBinder, ArgumentError
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.padding import Shapes, joined_with, lengths_of, shapes_of

_Values = list[dict[str, Any]]

_decode_all = msgspec.json.Decoder(_Values).decode
_decode_one = msgspec.json.Decoder(dict[str, Any]).decode


class Bound(NamedTuple):
    """The arguments of one call, and what its caller has to know of them.

    `sizes` are those of its requests. `size` is how many rows or elements the call has, those included that only fill
    it up. If there are `refused` requests, whose values the author's own classes do not take, there are no arguments.
    `shapes` are those of each request's inputs that are filled up; none of a model that has no such input.
    """

    arguments: dict[str, Any]
    sizes: Sequence[int]
    size: int
    refused: dict[int, ReportedError]
    shapes: Sequence[Shapes] = ()


class BatchBinder:
    """Binds the inputs of one batch after the other to the parameters of one `run()`."""

    def __init__(self, parameters: Sequence[Parameter], batching: Batching) -> None:
        """`parameters` are those of one request."""
        self._binder = ArgumentBinder(parameters)
        self._pad_to = batching.policy.pad_to
        self._by_rows = batching.by_rows
        self._shared = batching.shared
        self._is_apart = batching.travels_apart
        self._pad = batching.policy.pad
        self._lengths = batching.lengths
        batched = [each for each in parameters if each.field.name not in batching.shared]
        tensors = [each for each in batched if batching.by_rows and each.field.type.kind == "tensor"]
        self._tensors: dict[str, Converter] = {each.field.name: each.convert for each in tensors if each.convert}
        self._lists = tuple(each.field.name for each in batched if each.field.name not in self._tensors)
        self._is_tensors_only = len(self._tensors) == len(parameters)

    def bind(self, raw: Buffer, items: Sequence[CallItem], chosen: Sequence[int]) -> Bound:
        """Bind the `chosen` items of a call, by their indexes; give the arguments to `release` when the run is over.

        `raw` is the input of the whole call, as in `ipc.messages.Predict`. It is decoded anew each time, so that no
        invocation sees what another one did to its arguments.
        """
        json, tensors = unpack(raw) if len(items) > 1 or items[0].packed else (bytes(raw), [])
        sizes = [items[index].rows for index in chosen]
        size = sum(sizes)
        whole = self._is_whole(items, chosen)
        shapes: list[Shapes] = []
        if whole and self._is_tensors_only:
            arguments = self._whole(tensors)
        else:
            values = _decode_all(json) if len(items) > 1 else [_decode_one(json)]
            stacked = self._stacked(tensors, items, values, chosen=chosen, whole=whole)
            bound, refused = self._bind_each(values, chosen)
            if refused:
                for one in bound:
                    self.release(one)
                return Bound({}, sizes, 0, refused)
            shapes = [shapes_of(one, tuple(self._pad)) for one in bound] if self._pad else []
            arguments = self._join(bound)
            for each in self._lengths:
                arguments[each.parameter] = lengths_of(each, arguments[each.input], shapes)
            if stacked is not None:
                arguments.update(stacked)
        padded = self.padded(size)
        if padded > size:
            for name in (*self._tensors, *self._lists, *(each.parameter for each in self._lengths)):
                if arguments[name] is not None:
                    arguments[name] = _filled(arguments[name], padded - size)
        return Bound(arguments, sizes, padded, {}, shapes)

    def release(self, arguments: dict[str, Any]) -> None:
        """Close the files that `bind` has opened."""
        self._binder.release(arguments)

    def _is_whole(self, items: Sequence[CallItem], chosen: Sequence[int]) -> bool:
        """True if the tensors of a call have the rows of all requests that are chosen, and of no other."""
        return not self._is_apart and len(chosen) == len(items) and all(item.packed for item in items)

    def _stacked(
        self,
        tensors: Sequence[Tensor],
        items: Sequence[CallItem],
        values: Sequence[dict[str, Any]],
        *,
        chosen: Sequence[int],
        whole: bool,
    ) -> dict[str, Any] | None:
        """The arrays of all rows; None if each request has its own tensors now, among its `values`."""
        if self._is_apart:
            deal_apart(tensors, values)
            return None
        stacked = self._whole(tensors) if whole else self._nested(items, values, chosen)
        if stacked is None and tensors:
            _deal(tensors, items, values)
        return stacked

    def _whole(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The arrays of tensors that have the rows of all requests already."""
        arguments: dict[str, Any] = dict.fromkeys(self._tensors)
        for tensor in tensors:
            arguments[tensor.name] = self._tensors[tensor.name](tensor)
        return arguments

    def _nested(
        self, items: Sequence[CallItem], values: Sequence[dict[str, Any]], chosen: Sequence[int]
    ) -> dict[str, Any] | None:
        """The arrays of tensors that all come as nested lists, which are taken out of `values`; None if they do not."""
        if not self._tensors or any(items[index].packed for index in chosen):
            return None
        arguments: dict[str, Any] = dict.fromkeys(self._tensors)
        for name, convert in self._tensors.items():
            nested = [values[index].pop(name, None) for index in chosen]
            if nested[0] is not None:
                arguments[name] = convert([row for rows in nested for row in rows])
        return arguments

    def _bind_each(
        self, values: Sequence[dict[str, Any]], chosen: Sequence[int]
    ) -> tuple[list[dict[str, Any]], dict[int, ReportedError]]:
        if self._binder.takes_as_given and not self._shared:
            return [values[index] for index in chosen], {}
        bound: list[dict[str, Any]] = []
        refused: dict[int, ReportedError] = {}
        for index in chosen:
            given = values[index]
            if bound:  # the first one's are those of all
                for name in self._shared:
                    given.pop(name, None)
            try:
                bound.append(self._binder.bind_values(given))
            except (ArgumentError, ClientError) as error:
                refused[index] = error
        return bound, refused

    def _join(self, bound: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The arguments of a call, of those of its requests."""
        first = bound[0]
        arguments = {name: first[name] for name in self._shared}
        for name in self._tensors:
            if first.get(name) is None:
                arguments[name] = None
                continue
            arrays = [one[name] for one in bound]
            arguments[name] = joined_with(arrays, self._pad[name]) if name in self._pad else joined(arrays)
        for name in self._lists:
            values = [one[name] for one in bound]
            if not self._by_rows:
                arguments[name] = values
            else:
                arguments[name] = None if first[name] is None else [each for value in values for each in value]
        return arguments

    def padded(self, size: int) -> int:
        """Return the rows of a call with so many rows of requests."""
        if not self._pad_to:
            return size
        return next((fixed for fixed in self._pad_to if fixed >= size), size) if size else 0


def _deal(tensors: Sequence[Tensor], items: Sequence[CallItem], values: Sequence[dict[str, Any]]) -> None:
    """Give each packed request its rows of the tensors."""
    for tensor in tensors:
        position = 0
        rows = _Rows(tensor)
        for item, given in zip(items, values, strict=True):
            if item.packed:
                given[tensor.name] = rows.part(position, position + item.rows)
                position += item.rows


def deal_apart(tensors: Sequence[Tensor], values: Sequence[dict[str, Any]]) -> None:
    """Give each request its own tensors, of a call in which they are not joined: `2:x` is that of the third request."""
    for tensor in tensors:
        place, _, name = tensor.name.partition(":") if len(values) > 1 else ("0", "", tensor.name)
        values[int(place)][name] = Tensor(name, tensor.datatype, tensor.shape, tensor.data)


class _Rows:
    """A tensor, to be cut along its first dimension."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._row = tensor.shape[1:]
        count = 1
        for size in self._row:
            count *= size
        self._count = count  # elements of one row
        self._strings = None if tensor.datatype in SIZES else split_bytes(tensor.name, tensor.data)

    def part(self, start: int, stop: int) -> Tensor:
        name, datatype, _, data = msgspec.structs.astuple(self._tensor)
        if self._strings is None:
            size = self._count * SIZES[datatype]
            data = data[start * size : stop * size]
        else:
            data = join_bytes(self._strings[start * self._count : stop * self._count])
        return Tensor(name, datatype, (stop - start, *self._row), data)


def joined(arrays: Sequence[Any]) -> Any:
    """Arrays of one kind, of numpy or torch, or lists, laid one behind the other along their first dimension."""
    first = arrays[0]
    if len(arrays) == 1:
        return first
    if isinstance(first, list):
        return [each for array in arrays for each in array]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.cat(list(arrays))
    import numpy as np

    return np.concatenate(arrays)


def _filled(rows: Any, count: int) -> Any:
    """The rows, and so many copies of the last one."""
    if not isinstance(rows, list):
        return joined([rows, *[rows[-1:]] * count])
    last = rows[-1]
    return rows + [last if hasattr(last, "read") else deepcopy(last) for _ in range(count)]


Sizes = Sequence[int]
"""Number of rows of each request of a call."""


class Splitter:
    """Splits what the `run()` of one model gives. The parts that are exceptions are requests that failed."""

    def __init__(self, *, by_rows: bool, nullable: bool) -> None:
        """`by_rows` as of `Batching`; `nullable`: None may stand for as many results as there should be."""
        self._by_rows = by_rows
        self._nullable = nullable

    def split(self, value: Any, sizes: Sizes, total: int) -> list[Any]:
        """Return the part of each request, of a value with `total` results. Raises `OutputError`.

        `total` is the sum of `sizes`, or larger: what is beyond only filled the call up.
        """
        if value is None and self._nullable:
            return [None] * len(sizes)
        if type(value) is not list:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(value, torch.Tensor):
                value = value.detach().cpu()  # once for all
            fields = _fields_of(value)
            if fields is not None:
                return self._split_record(fields, sizes, total)
        count = _count(value)
        if count != total:
            is_none = f"is of type {type(value).__name__}"
            has = is_none if count is None else "has 1 result" if count == 1 else f"has {count} results"
            raise OutputError(f"{has}; for a batch of {total}, return a list or a tensor with {total} results")
        if not self._by_rows:
            return list(value[: len(sizes)])
        parts, position = [], 0
        for size in sizes:
            part = value[position : position + size]
            parts.append(_failure_in(part) if isinstance(part, (list, tuple)) else part)
            position += size
        return parts

    def is_nothing(self, part: Any) -> bool:
        """True if a request gets nothing of a yielded value: its part is None, or that of each of its rows."""
        if self._by_rows and isinstance(part, (list, tuple)):
            return len(part) > 0 and all(each is None for each in part)
        return part is None

    def _split_record(self, fields: Mapping[str, Any], sizes: Sizes, total: int) -> list[Any]:
        parts: list[Any] = [{} for _ in sizes]
        for name, value in fields.items():
            try:
                own = [None] * len(sizes) if value is None else self.split(value, sizes, total)
            except OutputError as error:
                raise error.inside(name) from None
            for index, part in enumerate(own):
                if isinstance(parts[index], BaseException):
                    continue
                if isinstance(part, BaseException):
                    parts[index] = part
                else:
                    parts[index][name] = part
        return parts


def _count(value: Any) -> int | None:
    """Return the number of results in a value; None for a value without parts."""
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape and hasattr(value, "__getitem__") else None


def _failure_in(part: Sequence[Any]) -> Any:
    """The first exception in a part; the part if there is none."""
    for each in part:
        if isinstance(each, BaseException):
            return each
    return part


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of a record, None for what is none."""
    if isinstance(value, Mapping):
        return value
    kind = type(value)
    names: Iterable[str] | None = None
    if isinstance(value, tuple):
        names = getattr(kind, "_fields", None)
    elif is_pydantic(kind):
        names = kind.model_fields
    elif hasattr(kind, "__dataclass_fields__"):
        names = kind.__dataclass_fields__
    elif isinstance(value, BaseModel):
        names = vars(value)
    elif hasattr(kind, "__struct_fields__"):
        names = kind.__struct_fields__
    return None if names is None else {name: getattr(value, name) for name in names}
