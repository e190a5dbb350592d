"""From what one call of a batched `run()` gives to what each of its requests gets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from geartrain.authoring.values import BaseModel
from geartrain.worker.loading.annotations import is_pydantic
from geartrain.worker.values.faults import OutputError

Sizes = Sequence[int]
"""How many rows each request of a call has."""


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
