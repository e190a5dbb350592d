"""A model whose one input may come under any name, and as numbers of any datatype."""

from __future__ import annotations

import numpy as np
import pytest

from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.tensor_view import view_of
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Tensor

KIND = TypeSpec("tensor", datatype="FP64", shape=(-1, 2))
SIGNATURE = Signature((InputField("input", KIND),), OutputSpec(KIND), takes_any=True)


def given(name: str, kind: str, datatype: str, *values: float) -> Tensor:
    return Tensor(name, datatype, (1, len(values)), np.array(values, kind).tobytes())


@pytest.mark.parametrize(
    ("kind", "datatype"),
    [("f4", "FP32"), ("f8", "FP64"), ("f2", "FP16"), ("i8", "INT64"), ("u1", "UINT8"), ("?", "BOOL")],
)
def test_the_name_and_the_datatype_become_those_of_the_model(kind: str, datatype: str) -> None:
    (tensor,) = view_of(SIGNATURE).bind([given("predict", kind, datatype, 1, 0)]).tensors
    assert (tensor.name, tensor.datatype, tensor.shape) == ("input", "FP64", (1, 2))
    assert np.frombuffer(tensor.data).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([given("a", "f4", "FP32", 1, 2, 3)], "unexpected shape for input 'input'. Expected [-1, 2], got [1, 3]"),
        ([Tensor("a", "FP32", (1, 2), bytes(7))], "input byte size mismatch for input 'a'"),
        ([Tensor("a", "BYTES", (1, 2), bytes(8))], "input 'input' has datatype BYTES; the model expects FP64"),
        ([given("a", "f4", "FP32", 1, 2), given("b", "f4", "FP32", 1, 2)], "unexpected inference input 'a'"),
        ([], "missing required input(s) ['input']"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: list[Tensor], sentence: str) -> None:
    with pytest.raises(GeartrainError) as caught:
        view_of(SIGNATURE).bind(tensors)
    assert sentence in str(caught.value)


def test_numbers_that_do_not_fit_are_rounded_without_a_warning() -> None:
    narrow = Signature(
        (InputField("input", TypeSpec("tensor", datatype="FP32", shape=(-1, 1))),), OutputSpec(KIND), takes_any=True
    )
    (tensor,) = view_of(narrow).bind([given("x", "f8", "FP64", 1e300)]).tensors
    assert np.frombuffer(tensor.data, "f4").tolist() == [np.inf]


def test_others_are_asked_as_ever() -> None:
    strict = Signature(SIGNATURE.inputs, SIGNATURE.output)
    with pytest.raises(GeartrainError):
        view_of(strict).bind([given("predict", "f8", "FP64", 1, 2)])
