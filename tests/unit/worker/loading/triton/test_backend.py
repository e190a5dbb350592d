"""Classes of Triton's Python backend as runners: what they return and send, and what is wrong with that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest

from geartrain.authoring.requests import Tensors
from geartrain.domain.errors import Code
from geartrain.testing.models import loaded
from geartrain.worker.errors import code_of
from geartrain.worker.loading.loader import LoadedRunner, LoadError
from geartrain.worker.loading.triton import backend

X = np.ones((1, 2), np.float32)
BATCHED = 'backend: "python" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5000 }'
DECOUPLED = 'backend: "python" model_transaction_policy { decoupled: true }'
OUT = 'pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(1))])'


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "carry_context", lambda: None)  # it is for a process of one model


class Model:
    """Writes a class with a method `execute()`, and makes a runner of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "m"
        self.folder.mkdir()

    def load(self, body: str, config: str = 'backend: "python"') -> LoadedRunner:
        head = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"
        (self.folder / "model.py").write_text(head + indent(body, "    "))
        (self.folder / "config.pbtxt").write_text(config)
        with loaded(str(self.folder), "predict") as found:
            runner = found.runner
        if runner.setup is not None:
            runner.setup()
        return runner

    def execute(self, line: str, config: str = 'backend: "python"') -> LoadedRunner:
        return self.load(f"def execute(self, requests):\n    {line}\n", config)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("return []", "0 responses for 1 requests"),
        ("return {}", "a list of responses, not dict"),
        ("return [1]", "int in the place of an InferenceResponse"),
        ("return None", "None in the place of an InferenceResponse"),
        ("return [pb_utils.Tensor('y', [1])]", "made of an array of numpy"),
        ("raise pb_utils.TritonModelException('no luck')", "no luck"),
    ],
)
def test_what_is_no_response_is_told(model: Model, line: str, sentence: str) -> None:
    runner = model.execute(line)
    with pytest.raises(Exception, match=sentence):
        runner.run(requests=Tensors({"x": X}))


def test_an_error_of_a_response_is_raised_with_its_code(model: Model) -> None:
    runner = model.execute("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('gone', 2))]")
    with pytest.raises(Exception, match="gone") as caught:
        runner.run(requests=Tensors({"x": X}))
    assert code_of(caught.value) is Code.NOT_FOUND


def test_a_batch_gives_a_result_or_an_error_for_each_request(model: Model) -> None:
    runner = model.execute(
        f"return [{OUT} if pb_utils.get_input_tensor_by_name(r, 'x') else 1 for r in requests]", BATCHED
    )
    assert runner.batching is not None
    policy = runner.batching.policy
    assert (policy.max_size, policy.max_delay, policy.gather, runner.batching.apart) == (4, 0.005, True, True)
    good, bad = runner.run(requests=[Tensors({"x": X}), Tensors({"z": X})])
    assert good["y"].tolist() == [1.0]
    assert isinstance(bad, Exception)
    assert runner.run(requests=Tensors({"x": X}))["y"].tolist() == [1.0]  # one by itself


def test_costs_name_declared_inputs(model: Model) -> None:
    config = BATCHED + ' input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }'
    settings = model.folder / "geartrain.yaml"
    settings.write_text("batching: {cost: 'x[1]', max_cost: auto}")
    batching = model.execute(f"return [{OUT} for _ in requests]", config).batching
    assert batching is not None
    assert (batching.policy.cost, batching.policy.max_cost, batching.policy.auto_cost) == ("x[1]", 0, True)
    settings.write_text("batching: {cost: z, max_cost: 9}")
    with pytest.raises(LoadError, match="`batching`: cost: there is no input 'z'; there are: x"):
        model.execute(f"return [{OUT} for _ in requests]", config)


def test_a_response_may_be_sent_in_place_of_returned(model: Model) -> None:
    runner = model.execute(f"requests[0].get_response_sender().send({OUT}, flags=1)")
    assert runner.run(requests=Tensors({"x": X}))["y"].tolist() == [1.0]


async def of(runner: LoadedRunner) -> list[Any]:
    return [dict(each) async for each in runner.run(requests=Tensors({"x": X}))]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"return [{OUT}]", "has returned list"),
        ("pass", "no response sender"),
        ("raise ValueError('at once')", "at once"),
        ("requests[0].get_response_sender().send()", "the flag of the last one is needed"),
        ("requests[0].get_response_sender().send(1)", "takes an InferenceResponse, not int"),
        (f"requests[0].get_response_sender().send({OUT}, flags=7)", "Unsupported flag 7"),
    ],
)
def test_what_a_decoupled_model_does_wrong_is_told(model: Model, line: str, sentence: str) -> None:
    runner = model.execute(line, DECOUPLED)
    with pytest.raises(Exception, match=sentence):
        asyncio.run(of(runner))


def test_a_decoupled_model_may_send_nothing_and_may_forget_its_last_flag(model: Model) -> None:
    assert asyncio.run(of(model.execute("requests[0].get_response_sender().send(flags=1)", DECOUPLED))) == []
    found = asyncio.run(of(model.execute(f"requests[0].get_response_sender().send({OUT})", DECOUPLED)))
    assert [each["y"].tolist() for each in found] == [[1.0]]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("pass", "has no execute"),
        ("def __init__(self): raise ValueError('early')\ndef execute(self, requests): ...", "early"),
        (
            (
                "@staticmethod\ndef auto_complete_config(config):\n    config.add_input({'name': 'x'})\n"
                "def execute(self, requests): ..."
            ),
            "property 'data_type' is missing",
        ),
        (
            (
                "@staticmethod\ndef auto_complete_config(config):\n"
                "    config.add_input({'name': 'x', 'data_type': 'FP99', 'dims': [1]})\n    return config\n"
                "def execute(self, requests): ..."
            ),
            "`data_type` of 'x'",
        ),
    ],
)
def test_a_class_that_cannot_be_loaded_is_told(model: Model, body: str, sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        model.load(body)


def test_arguments_of_initialize_are_texts(model: Model) -> None:
    runner = model.load("def initialize(self, args): self.args = args\ndef execute(self, requests): ...")
    args = runner.instance.args
    assert {type(value) for value in args.values()} == {str}
    assert (args["model_name"], args["model_version"], args["model_repository"]) == ("m", "1", str(model.folder))
    assert (args["model_instance_name"], args["model_instance_device_id"]) == ("m_0_0", "0")
