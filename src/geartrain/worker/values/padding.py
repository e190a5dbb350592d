"""Arrays of different lengths in one: filled up where they are joined, and what comes of them cut to length again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from geartrain.domain.predictions.batching import Cut, Lengths

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of one request's inputs that are filled up, by their names."""


def shapes_of(request: Mapping[str, Any], names: Sequence[str]) -> Shapes:
    """Return the shapes of the arrays that a request has under these names."""
    return {name: tuple(request[name].shape) for name in names if request.get(name) is not None}


def joined_with(arrays: Sequence[Any], fill: float) -> Any:
    """Arrays of numpy or torch of one rank, one behind the other along their first dimension.

    The other dimensions are as long as the longest; the rest is `fill`. An array by itself is given as it is.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    shape = (sum(len(each) for each in arrays), *map(max, zip(*(each.shape[1:] for each in arrays), strict=True)))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        target: Any = torch.full(shape, fill, dtype=first.dtype, device=first.device)
    else:
        import numpy as np

        target = np.full(shape, fill, dtype=first.dtype)
    at = 0
    for each in arrays:
        target[(slice(at, at + len(each)), *map(slice, each.shape[1:]))] = each
        at += len(each)
    return target


def lengths_of(lengths: Lengths, array: Any, shapes: Sequence[Shapes]) -> Any:
    """Return the own length of each row of a filled `array`, in an array of the same package.

    Of an input with several open dimensions it has a column for each. None if no request brings the input.
    """
    if array is None:
        return None
    rows: list[Any] = []
    for each in shapes:
        own = each[lengths.input]
        sizes = [own[at] for at in lengths.dimensions]
        rows.extend([sizes[0] if len(sizes) == 1 else sizes] * own[0])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        kind = torch.int32 if lengths.datatype == "INT32" else torch.int64
        found = torch.tensor(rows, dtype=kind, device=array.device)
    else:
        import numpy as np

        found = np.array(rows, dtype=np.int32 if lengths.datatype == "INT32" else np.int64)
    return found if rows or len(lengths.dimensions) == 1 else found.reshape(0, len(lengths.dimensions))


def cut(part: Any, cuts: Sequence[Cut], shapes: Shapes) -> Any:
    """Return the part of one request without what belongs to the filling alone."""
    if part is None or isinstance(part, BaseException):
        return part
    for each in cuts:
        own = shapes.get(each.input)
        if own is None:
            continue
        if not each.output:
            part = _shortened(part, each.at, own[each.dimension])
        elif part.get(each.output) is not None:
            part[each.output] = _shortened(part[each.output], each.at, own[each.dimension])
    return part


def _shortened(value: Any, at: int, length: int) -> Any:
    """An array, or nested lists of arrays, of at most this length along one dimension."""
    if isinstance(value, (list, tuple)):
        return value[:length] if at == 0 else [_shortened(each, at - 1, length) for each in value]
    return value[(*(slice(None),) * at, slice(length))]
