"""Tensors from and to nested arrays: the same numbers, shapes and texts as numpy and json have."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from geartrain.domain.errors import GeartrainError
from geartrain.domain.tensors.array_json import tensor_of, text_of
from geartrain.domain.tensors.tensor import ARRAY_NAMES, Tensor

KINDS = {"FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "INT64": np.int64, "UINT8": np.uint8}
SHAPES = arrays.array_shapes(min_dims=0, max_dims=5, min_side=1, max_side=4)


@given(st.sampled_from(sorted(KINDS)), st.data(), st.sampled_from([None, 1]))
def test_numbers_come_back(datatype: str, data: st.DataObject, indent: int | None) -> None:
    elements: Any = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    array = data.draw(arrays.arrays(KINDS[datatype], SHAPES, elements=elements))
    text = json.dumps(array.tolist(), indent=indent).encode()
    tensor = tensor_of("x", datatype, text, shape=array.shape)
    assert (tensor.shape, tensor.data) == (array.shape, array.tobytes())
    assert json.loads(text_of(tensor)) == array.tolist()


@given(arrays.arrays(np.bool_, SHAPES))
def test_booleans_come_back(array: np.ndarray) -> None:
    tensor = tensor_of("x", "BOOL", json.dumps(array.tolist()).encode(), shape=array.shape)
    assert (tensor.shape, tensor.data) == (array.shape, array.tobytes())
    assert json.loads(text_of(tensor)) == array.tolist()


def test_texts_come_back() -> None:
    texts = [["a", "ü[,]"], ["", "日本"]]
    tensor = tensor_of("x", "BYTES", json.dumps(texts).encode(), shape=(-1, 2))
    assert tensor.shape == (2, 2)
    assert json.loads(text_of(tensor)) == texts


@pytest.mark.parametrize(("text", "shape", "found"), [(b"[]", (-1, 3), (0, 3)), (b"[[], []]", (-1, -1), (2, 0))])
def test_empty_arrays_have_the_sizes_that_are_declared(text: bytes, shape: Any, found: Any) -> None:
    tensor = tensor_of("x", "FP32", text, shape=shape)
    assert (tensor.shape, tensor.data) == (found, b"")
    assert json.loads(text_of(tensor)) == np.zeros(found).tolist()


@pytest.mark.parametrize("shape", [(300_000,), (3, 100_000), (2, 3, 50_000), (100_000, 3)])
def test_large_arrays_are_read_and_written_in_pieces(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(3).random(shape, np.float32)
    tensor = tensor_of("x", "FP32", json.dumps(array.tolist()).encode(), shape=shape)
    assert (tensor.shape, tensor.data) == (shape, array.tobytes())
    assert json.loads(text_of(tensor)) == array.astype(float).tolist()


def test_bfloats_are_rounded_to_even() -> None:
    tensor = tensor_of("x", "BF16", b"[1.0, 1.00390625, 1.01171875, -2.5]", shape=(-1,))
    assert json.loads(text_of(tensor)) == [1.0, 1.0, 1.015625, -2.5]
    assert ARRAY_NAMES["BF16"] == "bfloat16"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_json_cannot_carry_is_refused(value: float) -> None:
    data = np.array([1, value], np.float32).tobytes()
    with pytest.raises(GeartrainError, match="output 'y' holds NaN or infinity"):
        text_of(Tensor("y", "FP32", (2,), data))
    with pytest.raises(GeartrainError, match="output 'y' holds bytes that are no UTF-8"):
        text_of(Tensor("y", "BYTES", (1,), b"\1\0\0\0\xff"))
