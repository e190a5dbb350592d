"""Annotations that are tensors: what the signature says of them, and what an author is told who writes another one."""

# ruff: noqa: F722, F821, UP037, UP045 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional, TypedDict

import jaxtyping as jt
import numpy as np
import numpy.typing as npt
import pydantic
import pytest

from geartrain import BaseModel, Input
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.worker.loading.signature import UnsupportedAnnotationError, read_signature
from tests.support.ids import short

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
Nd = np.ndarray


def tensor(datatype: str, *shape: int, **options: Any) -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=shape, **options)


def variadic(datatype: str, *shape: int, **options: Any) -> TypeSpec:
    return tensor(datatype, *shape, variadic=True, **options)


def annotated(annotation: Any, *, of_output: bool = False) -> Callable[..., Any]:
    def run(x: Any) -> Any: ...

    run.__annotations__ = {"x": str, "return": annotation} if of_output else {"x": annotation}
    return run


def input_of(annotation: Any) -> TypeSpec:
    return read_signature(annotated(annotation), owner_name="run()").inputs[0].type


def output_of(annotation: Any) -> OutputSpec:
    return read_signature(annotated(annotation, of_output=True), owner_name="run()").output


DTYPES = [
    (jt.Bool, "BOOL"),
    (jt.UInt8, "UINT8"),
    (jt.UInt16, "UINT16"),
    (jt.UInt32, "UINT32"),
    (jt.UInt64, "UINT64"),
    (jt.Int8, "INT8"),
    (jt.Int16, "INT16"),
    (jt.Int32, "INT32"),
    (jt.Int64, "INT64"),
    (jt.Float16, "FP16"),
    (jt.Float32, "FP32"),
    (jt.Float64, "FP64"),
]
SHAPES = [
    ("", tensor("FP32")),
    ("3", tensor("FP32", 3)),
    ("batch 3 224 224", tensor("FP32", -1, 3, 224, 224)),
    ("batch=4 3", tensor("FP32", 4, 3)),
    ("_ 3 _", tensor("FP32", -1, 3, -1)),
    ("_batch 3", tensor("FP32", -1, 3)),
    ("#3 #batch", tensor("FP32", -1, -1)),  # may also be 1
    ("?batch 3", tensor("FP32", -1, 3)),
    ("n m n", tensor("FP32", -1, -1, -1, names=("n", "", "n"))),
    ("#n n n ?k", tensor("FP32", -1, -1, -1, -1, names=("", "n", "n", ""))),
    ("n n+1 2*n {len(x)}", tensor("FP32", -1, -1, -1, -1)),
    ("...", variadic("FP32", -1)),
    ("... 3", variadic("FP32", -1, 3)),
    ("*batch 3 3", variadic("FP32", -1, 3, 3)),
    ("*#batch 3", variadic("FP32", -1, 3)),
    ("batch ... 3", variadic("FP32", -1, -1, 3, variadic_at=1)),
    ("3 *n n n", variadic("FP32", 3, -1, -1, -1, variadic_at=1, names=("", "", "n", "n"))),
    ("0 3", tensor("FP32", 0, 3)),
]
Image = jt.UInt8[Nd, "h w 3"]
OTHERS = [
    (npt.NDArray[np.float32], variadic("FP32", -1)),
    (npt.NDArray[np.bool_], variadic("BOOL", -1)),
    (npt.NDArray[np.int_], variadic("INT64", -1)),
    (np.ndarray[tuple[int, int], np.dtype[np.int8]], tensor("INT8", -1, -1)),
    (npt.NDArray[np.str_], variadic("BYTES", -1, text=True)),
    (npt.NDArray[np.bytes_], variadic("BYTES", -1)),
    (npt.NDArray[np.object_], variadic("BYTES", -1)),
    (np.ndarray[tuple[int], np.dtype[np.str_]], tensor("BYTES", -1, text=True)),
    (list[bytes], tensor("BYTES", -1)),
    (Optional[jt.Float32[Nd, "3"]], tensor("FP32", 3, nullable=True)),
    (npt.NDArray[np.float32] | None, variadic("FP32", -1, nullable=True)),
    (jt.UInt8[Image, "batch"], tensor("UINT8", -1, -1, -1, 3)),
    (list[jt.Float32[Nd, "3"]], TypeSpec("array", items=tensor("FP32", 3))),
]


@pytest.mark.parametrize(("dtype", "datatype"), DTYPES)
def test_datatypes(dtype: Any, datatype: str) -> None:
    assert input_of(dtype[Nd, "a 2"]) == tensor(datatype, -1, 2)
    assert output_of(dtype[Nd, "a 2"]) == OutputSpec(tensor(datatype, -1, 2))


@pytest.mark.parametrize(("shape", "spec"), SHAPES)
def test_shapes(shape: str, spec: TypeSpec) -> None:
    assert input_of(jt.Float32[Nd, shape]) == spec


@pytest.mark.parametrize(("annotation", "spec"), OTHERS, ids=short)
def test_other_ways_to_write_one(annotation: Any, spec: TypeSpec) -> None:
    assert input_of(annotation) == spec
    assert output_of(annotation).type == spec


@needs_torch
@pytest.mark.parametrize(("dtype", "datatype"), [*DTYPES, (jt.BFloat16, "BF16")])
def test_datatypes_of_torch(dtype: Any, datatype: str) -> None:
    assert input_of(dtype[torch.Tensor, "a 2"]) == tensor(datatype, -1, 2)
    assert output_of(dtype[torch.Tensor, "a 2"]).type == tensor(datatype, -1, 2)


class Named(NamedTuple):
    scores: jt.Float32[Nd, "n"]
    label: str
    more: jt.Int64[Nd, ""] | None


class Typed(TypedDict):
    scores: jt.Float32[Nd, "n"]


@dataclasses.dataclass
class Data:
    scores: jt.Float32[Nd, "n"]


class Model(BaseModel):
    scores: jt.Float32[Nd, "n"]


class Pydantic(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    scores: jt.Float32[Nd, "n"]


class Plain(NamedTuple):
    number: int
    anything: set[complex]


@pytest.mark.parametrize("record", [Typed, Data, Model, Pydantic])
def test_records_of_tensors(record: Any) -> None:
    spec = output_of(record).type
    assert spec.kind == "record"
    assert [(field.name, field.type) for field in spec.fields] == [("scores", tensor("FP32", -1))]


def test_named_tuple_of_tensors_is_a_record() -> None:
    spec = output_of(Named).type
    assert [(field.name, field.type.kind, field.required) for field in spec.fields] == [
        ("scores", "tensor", True),
        ("label", "string", True),
        ("more", "tensor", False),
    ]


def test_named_tuple_of_anything_else_stays_an_array_as_in_cog() -> None:
    assert output_of(Plain).type == TypeSpec("array", items=TypeSpec("opaque"))


def test_iterator_of_tensors() -> None:
    assert output_of(Iterator[jt.Float32[Nd, "3"]]) == OutputSpec(tensor("FP32", 3), "iterator")
    assert output_of(Iterator[Named]).type.kind == "record"


def test_bare_array_as_an_output_stays_open() -> None:
    for annotation in (np.ndarray, npt.NDArray[Any], npt.NDArray[np.floating[Any]]):
        assert output_of(annotation).type == TypeSpec("array", items=TypeSpec("opaque"))


GENERIC = "a server has to say which datatype it takes: use Float32, Int64 or another one of a known size"
WRONG = [
    (np.ndarray, "use a type that says its datatype, such as NDArray[np.float32], or Float32[np.ndarray, "),
    (npt.NDArray[Any], "use a type of a known size, such as np.float32, np.int64 or np.str_"),
    (npt.NDArray[np.floating[Any]], "use a type of a known size, such as np.float32, np.int64 or np.str_"),
    (npt.NDArray[np.complex64], "use a type of a known size, such as np.float32, np.int64 or np.str_"),
    (jt.Float[Nd, "3"], GENERIC),
    (jt.Int[Nd, "3"], GENERIC),
    (jt.UInt[Nd, "3"], GENERIC),
    (jt.Integer[Nd, "3"], GENERIC),
    (jt.Num[Nd, "3"], GENERIC),
    (jt.Real[Nd, "3"], GENERIC),
    (jt.Inexact[Nd, "3"], GENERIC),
    (jt.Shaped[Nd, "3"], GENERIC),
    (jt.Complex64[Nd, "3"], "no protocol has complex64: use one of Bool, UInt8, "),
    (jt.Int4[Nd, "3"], "no protocol has int4: use one of Bool, UInt8, "),
    (jt.Float32[Any, "3"], "let it be an array of numpy or torch: use np.ndarray or torch.Tensor"),
]


@pytest.mark.parametrize(("annotation", "advice"), WRONG, ids=short)
def test_what_an_author_is_told(annotation: Any, advice: str) -> None:
    with pytest.raises(UnsupportedAnnotationError) as raised:
        read_signature(annotated(annotation), owner_name="Runner.run()")
    text = str(raised.value)
    assert text.startswith("Runner.run(): the parameter 'x' is annotated ")
    assert advice in text


@needs_torch
def test_bare_torch_tensor_as_an_input() -> None:
    with pytest.raises(UnsupportedAnnotationError, match="annotated Tensor, which is not supported: use a type that"):
        input_of(torch.Tensor)


def test_bfloat16_of_numpy_takes_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedAnnotationError, match=r"numpy has no bfloat16: use torch\.Tensor, or install ml"):
        input_of(jt.BFloat16[Nd, "3"])


def test_unions_of_tensors_are_refused_as_inputs() -> None:
    with pytest.raises(UnsupportedAnnotationError, match="a union holds only str, int"):
        input_of(jt.Float32[Nd, "3"] | jt.Int64[Nd, "3"])


def test_limits_are_for_numbers_and_not_for_arrays_of_them() -> None:
    def run(x: jt.Float32[Nd, "3"] = Input(ge=0)) -> None: ...

    with pytest.raises(UnsupportedAnnotationError, match="ge is for numbers, and it is a tensor"):
        read_signature(run, owner_name="run()")


def test_default_of_another_shape_is_refused() -> None:
    def run(x: jt.Float32[Nd, "3"] = Input(default=[1.0, 2.0])) -> None: ...

    with pytest.raises(UnsupportedAnnotationError, match="is not a tensor of FP32"):
        read_signature(run, owner_name="run()")


def test_model_without_arrays_loads_no_array_package() -> None:
    script = (
        "import sys; from geartrain.worker.values import arguments;"
        "from geartrain.worker.loading.signature import read_parameters, read_signature;"
        "from geartrain.worker.values import outputs; from geartrain.worker.runtime import session\n"
        "from geartrain.worker.calls import call\n"
        "def run(x: list[str]) -> dict: ...\n"
        "arguments.ArgumentBinder(read_parameters(run, owner_name='run()'))\n"
        "s = read_signature(run, owner_name='run()')\n"
        "outputs.OutputEncoder(s.output)\n"
        "print(*{'numpy', 'torch', 'jaxtyping', 'ml_dtypes'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
