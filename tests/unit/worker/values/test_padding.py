"""Arrays of different lengths in one, and their parts again: of numpy and of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geartrain.domain.predictions.batching import Cut, Lengths
from geartrain.worker.values.padding import cut, joined_with, lengths_of, shapes_of

LENGTHS = Lengths("lengths", "x", (1,), "INT64")
SIZES = Lengths("sizes", "x", (1, 2), "INT32")


def array(kind: str, values: Any) -> Any:
    if kind == "numpy":
        return np.array(values, np.float32)
    torch = pytest.importorskip("torch")
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_joined_arrays(kind: str) -> None:
    first, second = array(kind, [[[1, 2, 3]]]), array(kind, [[[4], [5]], [[6], [7]]])
    found = joined_with([first, second], -1)
    assert type(found) is type(first)
    assert found.dtype == first.dtype
    assert found.tolist() == [
        [[1, 2, 3], [-1, -1, -1]],
        [[4, -1, -1], [5, -1, -1]],
        [[6, -1, -1], [7, -1, -1]],
    ]
    shapes = [shapes_of({"x": each}, ["x"]) for each in (first, second)]
    sizes = lengths_of(SIZES, found, shapes)
    assert (sizes.tolist(), str(sizes.dtype).removeprefix("torch.")) == ([[1, 3], [2, 1], [2, 1]], "int32")
    lengths = lengths_of(LENGTHS, found, shapes)
    assert (lengths.tolist(), str(lengths.dtype).removeprefix("torch.")) == ([1, 2, 2], "int64")
    assert type(lengths) is type(first)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_nothing_to_join(kind: str) -> None:
    alone, empty = array(kind, [[1, 2]]), array(kind, [[1, 2]])[:0]
    assert joined_with([alone], 0) is alone
    assert joined_with([empty, alone, alone[:, :0]], 9).tolist() == [[1, 2], [9, 9]]
    assert tuple(lengths_of(SIZES, empty, []).shape) == (0, 2)
    assert tuple(lengths_of(LENGTHS, empty, []).shape) == (0,)
    assert lengths_of(LENGTHS, None, []) is None
    assert shapes_of({"x": None}, ["x", "y"]) == {}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_parts_are_cut(kind: str) -> None:
    whole, error = array(kind, [[1, 2, 3], [4, 5, 6]]), ValueError("no")
    of_itself, of_field = (Cut("", 1, "x", 1),), (Cut("y", 1, "x", 1),)
    shapes = {"x": (2, 2)}
    assert cut(whole, of_itself, shapes).tolist() == [[1, 2], [4, 5]]
    assert [row.tolist() for row in cut([whole[0], whole[1]], of_itself, shapes)] == [[1, 2], [4, 5]]
    record = cut({"y": whole, "z": whole}, of_field, shapes)
    assert (record["y"].tolist(), record["z"].shape) == ([[1, 2], [4, 5]], whole.shape)
    assert cut({"y": None}, of_field, shapes) == {"y": None}
    assert cut(whole, of_itself, {}) is whole
    assert cut(error, of_itself, shapes) is error
    assert cut(None, of_itself, shapes) is None
