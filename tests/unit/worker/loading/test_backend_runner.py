"""What the worker makes of a backend: its signature, its batches, and the errors of one that breaks its promises."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from geartrain.backends import registry
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.tensors.tensor import Tensor, join_bytes
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import DEFAULT_POLICY, load_backend
from geartrain.worker.loading.loader import LoadedRunner, LoadError


class Doubling(Backend):
    """Doubles rows of two numbers; repeats a text."""

    platform = "double_text"
    options: ClassVar[frozenset[str]] = frozenset({"times", "inputs", "outputs", "fault"})

    def load(self) -> None:
        fault = self.given.get("fault")
        if fault is not None:
            raise fault
        self.inputs = self.given.get("inputs", (TensorSpec("self", "FP32", (-1, 2)),))
        self.outputs = self.given.get("outputs", (TensorSpec("doubled", "FP32", (-1, 2)),))

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        first = next(iter(inputs.values()))
        return {"doubled": first + first, "given": np.array(sorted(inputs)), "secret": first}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "doubling", f"{__name__}:Doubling")


def load(batching: dict[str, Any] | None = None, **options: Any) -> LoadedRunner:
    return load_backend(BackendChoice("doubling", "/models/two.dbl", options), batching)


def said(batching: dict[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        load(batching, **options)
    return str(caught.value)


def test_a_backend_looks_like_a_runner() -> None:
    runner = load()
    assert runner.platform == "double_text"
    assert [runner.is_async, runner.is_generator, runner.setup, runner.healthcheck] == [False, False, None, None]
    field = runner.signature.inputs[0]
    assert (field.name, field.type.kind, field.type.datatype, field.type.shape) == ("self", "tensor", "FP32", (-1, 2))
    output = runner.signature.output.type
    assert [(each.name, each.type.shape) for each in output.fields] == [("doubled", (-1, 2))]
    assert runner.run(self=np.ones((1, 2)))["doubled"].tolist() == [[2.0, 2.0]]
    assert list(runner.run(self=np.ones((1, 2)))) == ["doubled"]


def test_arguments_are_arrays() -> None:
    specs = tuple(
        TensorSpec(name, datatype, (-1,)) for name, datatype in (("a", "FP16"), ("b", "BYTES"), ("c", "BF16"))
    )
    convert = {each.field.name: each.convert for each in load(inputs=specs).parameters}
    assert all(convert.values())
    made = {
        name: function(Tensor(name, datatype, (2,), data))
        for (name, function), (datatype, data) in zip(
            convert.items(),
            (("FP16", bytes(4)), ("BYTES", join_bytes([b"x", "ü".encode()])), ("BF16", bytes(4))),
            strict=True,
        )
        if function is not None
    }
    assert made["a"].dtype == np.float16
    assert made["b"].tolist() == [b"x", "ü".encode()]
    assert made["c"].dtype.name == "bfloat16"


def test_an_optional_input_that_is_left_out_is_not_passed_on() -> None:
    specs = (TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1,), optional=True))
    runner = load(inputs=specs, outputs=(TensorSpec("given", "BYTES", (-1,)),))
    assert [field.required for field in runner.signature.inputs] == [True, False]
    assert runner.run(a=np.ones(1), b=None)["given"].tolist() == ["a"]
    assert runner.batching is None


# batches


def test_rows_are_batched_by_default() -> None:
    batching = load().batching
    assert batching is not None
    assert (batching.by_rows, batching.shared) == (True, ())
    assert batching.policy == DEFAULT_POLICY
    assert (DEFAULT_POLICY.max_size, DEFAULT_POLICY.refuse_larger, DEFAULT_POLICY.retry_singly) == (128, False, True)


def test_settings_come_before_the_default() -> None:
    batching = load({"max_size": 64, "max_delay": 0.5, "preferred_sizes": [8, 16]}).batching
    assert batching is not None
    assert batching.policy == BatchPolicy(
        max_size=64, max_delay=0.5, preferred_sizes=(8, 16), retry_singly=True, refuse_larger=False
    )
    assert load({"max_size": 1}).batching is None


def test_costs_of_tensors() -> None:
    batching = load({"cost": "self[0]", "max_cost": 100}).batching
    assert batching is not None
    assert (batching.policy.cost, batching.policy.max_cost) == ("self[0]", 100)
    assert "`batching` in geartrain.yaml: cost: there is no input 'y'; there are: self" in said(
        {"cost": "y", "max_cost": 100}
    )


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "`batching` in geartrain.yaml: preferred_sizes=(256,): 256 is above max_size=128" in said(
        {"preferred_sizes": [256]}
    )


@pytest.mark.parametrize(("inputs", "outputs"), [((3, 2), (-1, 2)), ((-1, 2), (1,)), ((-1,), ())])
def test_a_fixed_first_dimension_is_no_batch(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    specs: dict[str, Any] = {
        "inputs": (TensorSpec("x", "FP32", inputs),),
        "outputs": (TensorSpec("doubled", "FP32", outputs),),
    }
    assert load(**specs).batching is None
    assert "the first dimension of its tensors is not that of a batch" in said({"max_size": 4}, **specs)


# errors


def test_errors_name_the_file_and_what_to_do() -> None:
    assert said(fault=BackendError("it is cut")) == "two.dbl: it is cut"
    assert said(fault=KeyError("x")) == "two.dbl: the backend 'doubling' cannot load it: KeyError: 'x'"
    assert said(time=3) == "two.dbl: there is no parameter `time` of the backend 'doubling'; did you mean `times`?"
    assert said(inputs=(TensorSpec("x", "FLOAT", (1,)),)).endswith("says that input 'x' is FLOAT")
    assert said(outputs=(TensorSpec("x", "FP32", (1,)),) * 2).endswith("gives several outputs the name 'x'")
    assert said(outputs=()).endswith("has no outputs")


def test_a_backend_that_is_not_there_is_offered_another() -> None:
    with pytest.raises(LoadError, match=r"there is no backend 'onxx'; did you mean 'onnx'\?"):
        load_backend(BackendChoice("onxx", "/a.onnx"))


class _Point:
    name = "other"
    value = "other_models:Other"

    def __init__(self, found: Any) -> None:
        self._found = found

    def load(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (ImportError("no module named 'blas'"), "(other_models:Other) cannot be imported: ImportError: no module"),
        (dict, "backend 'other' is no subclass of geartrain.backends.interface.Backend"),
        (lambda: None, "is no subclass"),
    ],
)
def test_a_broken_entry_point_is_told(found: Any, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (_Point(found),))
    with pytest.raises(BackendError, match="other") as caught:
        registry.backend_class("other")
    assert sentence in str(caught.value)


def test_an_entry_point_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (_Point(Doubling),))
    runner = load_backend(BackendChoice("other", str(tmp_path / "a.dbl")))
    assert isinstance(runner.instance, Doubling)
