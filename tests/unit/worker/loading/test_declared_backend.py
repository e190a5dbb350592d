"""A file as a configuration declares it: names, shapes, the dimension of the batch, and what does not fit."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from geartrain.backends import registry
from geartrain.backends.interface import Backend, TensorSpec
from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import load_backend
from geartrain.worker.loading.loader import LoadedRunner, LoadError


class Doubling(Backend):
    """Doubles rows of six numbers, and gives their sums."""

    platform = "double"
    options: ClassVar[frozenset[str]] = frozenset({"shape"})

    def load(self) -> None:
        shape = tuple(self.given.get("shape", (-1, 6)))
        self.inputs = (TensorSpec("x", "FP32", shape), TensorSpec("scale", "FP32", (-1,), optional=True))
        self.outputs = (TensorSpec("y", "FP32", shape), TensorSpec("sum", "FP32", shape[:1]))

    @property
    def batches(self) -> bool:
        return False

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"] * 2, "sum": inputs["x"].sum(axis=1)}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "doubling", f"{__name__}:Doubling")


def load(declared: Declared, batching: dict[str, Any] | None = None, **options: Any) -> LoadedRunner:
    return load_backend(BackendChoice("doubling", "/models/m.bin", options, declared), batching)


def said(declared: Declared, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        load(declared, **options)
    return str(caught.value).removeprefix("m.bin: ")


X = DeclaredTensor("x", "FP32", (-1, 6))
Y = DeclaredTensor("y", "FP32", (-1, 6))


def shapes(runner: LoadedRunner) -> dict[str, tuple[int, ...]]:
    found = {field.name: field.type.shape for field in runner.signature.inputs}
    return found | {field.name: field.type.shape for field in runner.signature.output.type.fields}


def test_what_is_declared_is_what_clients_see() -> None:
    runner = load(Declared("config.pbtxt", (X,), (Y,), first="batch", platform="onnxruntime_onnx"), {"max_size": 4})
    assert shapes(runner) == {"x": (-1, 6), "y": (-1, 6)}
    assert runner.platform == "onnxruntime_onnx"
    assert runner.batching is not None
    assert runner.batching.policy.max_size == 4
    assert runner.run(x=np.ones((2, 6), "f4"))["y"].tolist() == [[2.0] * 6] * 2


def test_where_nothing_is_declared_the_file_says_it() -> None:
    runner = load(Declared("config.pbtxt"))
    assert shapes(runner) == {"x": (-1, 6), "scale": (-1,), "y": (-1, 6), "sum": (-1,)}
    assert (runner.platform, runner.batching) == ("double", None)


@pytest.mark.parametrize(("first", "takes_batches"), [("undecided", False), ("plain", False), ("batch", True)])
def test_who_decides_on_batches(first: Any, *, takes_batches: bool) -> None:
    assert (load(Declared("config.pbtxt", (X,), (Y,), first=first)).batching is not None) is takes_batches


def test_a_largest_batch_of_one_is_a_limit() -> None:
    declared = Declared("config.pbtxt", (X,), (Y,), first="batch")
    batching = load(declared, {"max_size": 1, "refuse_larger": True}).batching
    assert batching is not None
    assert (batching.policy.max_size, batching.policy.refuse_larger) == (1, True)


def test_a_reshape_goes_both_ways() -> None:
    inner = DeclaredTensor("x", "FP32", (-1, 2, 3), is_reshaped=True, inner=(-1, 6))
    outer = DeclaredTensor("y", "FP32", (-1, 3, 2), is_reshaped=True, inner=(-1, 6))
    runner = load(Declared("config.pbtxt", (inner,), (outer,), first="batch"))
    assert shapes(runner) == {"x": (-1, 2, 3), "y": (-1, 3, 2)}
    given = np.arange(12, dtype="f4").reshape(2, 2, 3)
    assert runner.run(x=given)["y"].tolist() == (given * 2).reshape(2, 3, 2).tolist()


def test_numbers_for_rows_may_be_a_column() -> None:
    runner = load(Declared("model-settings.json", columns=True))
    assert shapes(runner)["sum"] == (-1, 1)
    assert shapes(runner)["y"] == (-1, 6)
    assert runner.run(x=np.ones((2, 6), "f4"), scale=None)["sum"].tolist() == [[6.0], [6.0]]


def test_an_input_under_any_name_needs_to_be_the_only_one() -> None:
    assert not load(Declared("model-settings.json", takes_any=True)).signature.takes_any
    assert load(Declared("model-settings.json", (X,), takes_any=True)).signature.takes_any


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (
            Declared("config.pbtxt", (X, DeclaredTensor("z", "FP32", (-1, 1)))),
            "config.pbtxt declares an input 'z', which the file does not have; it has x, scale",
        ),
        (
            Declared("config.pbtxt", (DeclaredTensor("scale", "FP32", (-1,)),)),
            "config.pbtxt declares no input 'x', which the file needs; add it",
        ),
        (
            Declared("config.pbtxt", (DeclaredTensor("x", "FP64", (-1, 6)),)),
            "config.pbtxt: input 'x' is declared as FP64, and is FP32 in the file",
        ),
        (
            Declared("config.pbtxt", (DeclaredTensor("x", "FP32", (-1, 5)),), first="batch"),
            (
                "config.pbtxt: input 'x' is declared with the dimensions [-1, 5], the first of them that of the batch, "
                "and has [-1, 6] in the file"
            ),
        ),
        (
            Declared("config.pbtxt", (DeclaredTensor("x", "FP32", (-1, -1)),)),
            "config.pbtxt: input 'x' is declared with the dimensions [-1, -1], and has [-1, 6] in the file",
        ),
        (
            Declared("config.pbtxt", (X,), (DeclaredTensor("y", "FP32", (6,)),)),
            "config.pbtxt: output 'y' is declared with the dimensions [6], and has [-1, 6] in the file",
        ),
    ],
)
def test_what_does_not_fit_the_file_is_told(declared: Declared, sentence: str) -> None:
    assert said(declared) == sentence


def test_a_fixed_first_dimension_is_no_batch() -> None:
    assert said(Declared("config.pbtxt", first="batch"), shape=[2, 6]) == (
        "config.pbtxt: `max_batch_size` is above 0, and the first dimension of input 'x' is fixed in the file, which "
        "has [2, 6]; write 0"
    )
