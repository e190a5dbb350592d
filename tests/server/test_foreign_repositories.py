"""Repositories of Triton and of MLServer, served in place by a real server: metadata, answers, batches, refusals."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import joblib
import numpy as np
import onnxruntime
import pytest
import torch
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
import xgboost
from sklearn import datasets, svm

from tests.support.onnx_models import save_scale
from tests.support.servers import ServerProcess

SCALE = """
name: "scale"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
version_policy: { all { } }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
model_warmup [ {
  name: "zeros" batch_size: 2
  inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }
} ]
"""
GATHERED = """
backend: "onnxruntime"
default_model_filename: "scale.onnx"
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 30000000 }
"""
ADD_SUB = """
backend: "pytorch"
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] reshape: { shape: [ 2, 2 ] } },
        { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 2, 2 ] } ]
output [ { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 4 ] reshape: { shape: [ 2, 2 ] } },
         { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2, 2 ] } ]
frobnicate: true
"""
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step [ { model_name: "scale" model_version: -1 } ] }
"""


class AddSub(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """Sum and difference."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


@pytest.fixture(scope="module")
def triton_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("triton")
    save_scale(root / "scale" / "1" / "model.onnx", 2.0)
    save_scale(root / "scale" / "3" / "model.onnx", 3.0)
    save_scale(root / "gathered" / "1" / "scale.onnx", 2.0)
    save_scale(root / "completed" / "1" / "model.onnx", 5.0)
    (root / "add_sub" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(AddSub()).save(str(root / "add_sub" / "1" / "model.pt"))
    (root / "ensemble" / "1").mkdir(parents=True)
    for name, text in (("scale", SCALE), ("gathered", GATHERED), ("add_sub", ADD_SUB), ("ensemble", ENSEMBLE)):
        (root / name / "config.pbtxt").write_text(text)
    return root


class Served:
    """A server of a repository, whose models are ready, or have been refused."""

    def __init__(self, root: Path, models: int) -> None:
        """`models`: how many versions there are, those that are refused included."""
        self.process = ServerProcess(str(root), "--grpc-port", "0")
        events = ("listening", "listening-grpc", "ready", "setup-failed")
        self.lines = [self.process.wait_for_one(*events) for _ in range(models + 2)]
        self.url, self.grpc = (self.of(event)["url"] for event in events[:2])
        self.client = httpx.Client(base_url=self.url, timeout=40)

    def of(self, event: str) -> dict[str, Any]:
        """The only line that says so."""
        (line,) = [line for line in self.lines if line["message"] == event]
        return line

    def get(self, path: str) -> Any:
        return self.client.get(path).json()

    def close(self) -> None:
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def triton(triton_repository: Path) -> Iterator[Served]:
    served = Served(triton_repository, 6)
    yield served
    served.close()


def request(name: str, array: np.ndarray, datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.tolist()}


ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_metadata_have_the_dimension_of_the_batch(triton: Served) -> None:
    metadata = triton.get("/v2/models/scale")
    del metadata["properties"]  # which Triton does not have
    assert metadata == {
        "name": "scale",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
    metadata = triton.get("/v2/models/add_sub")
    assert (metadata["versions"], metadata["platform"]) == (["1"], "pytorch_libtorch")
    assert [each["shape"] for each in metadata["inputs"]] == [[4], [2, 2]]
    assert [(each["name"], each["shape"]) for each in metadata["outputs"]] == [
        ("OUTPUT__1", [4]),
        ("OUTPUT__0", [2, 2]),
    ]


def test_the_configuration_is_told_as_it_is_written_and_served(triton: Served) -> None:
    config = triton.get("/v2/models/scale/config")
    assert (config["platform"], config["backend"], config["max_batch_size"]) == ("onnxruntime_onnx", "onnxruntime", 8)
    assert (config["version_policy"], config["default_model_filename"]) == ({"all": {}}, "model.onnx")
    assert "dynamic_batching" not in config
    (group,) = config["instance_group"]
    assert [group[key] for key in ("name", "kind", "count", "gpus")] == ["scale_0", "KIND_CPU", 2, []]
    assert config["parameters"] == {"intra_op_thread_count": {"string_value": "1"}}
    assert [config["input"][0][key] for key in ("name", "data_type", "dims")] == ["x", "TYPE_FP32", [3]]
    assert config["output"][0]["label_filename"] == "labels.txt"
    gathered = triton.get("/v2/models/gathered/config")
    assert gathered["version_policy"] == {"latest": {"num_versions": 1}}
    assert gathered["dynamic_batching"]["max_queue_delay_microseconds"] == 30_000_000
    with by_grpc.InferenceServerClient(triton.grpc) as client:
        message = client.get_model_config("scale").config
        assert (message.max_batch_size, list(message.input[0].dims), message.backend) == (8, [3], "onnxruntime")
        assert message.version_policy.WhichOneof("policy_choice") == "all"
        assert message.parameters["intra_op_thread_count"].string_value == "1"
        assert message.instance_group[0].count == 2
        assert not message.HasField("dynamic_batching")
        assert list(client.get_model_config("gathered").config.dynamic_batching.preferred_batch_size) == [4]


@pytest.mark.parametrize(("version", "folder"), [("", "3"), ("1", "1"), ("3", "3")])
def test_answers_are_those_of_the_library(triton: Served, triton_repository: Path, version: str, folder: str) -> None:
    session = onnxruntime.InferenceSession(str(triton_repository / "scale" / folder / "model.onnx"))
    (expected,) = session.run(["y"], {"x": ROWS})
    packages: tuple[tuple[Any, str], ...] = ((by_http, triton.url.removeprefix("http://")), (by_grpc, triton.grpc))
    for package, address in packages:
        with package.InferenceServerClient(address) as client:
            tensor = package.InferInput("x", [2, 3], "FP32")
            tensor.set_data_from_numpy(ROWS)
            result = client.infer("scale", [tensor], model_version=version)
            assert result.as_numpy("y").tobytes() == expected.tobytes()
            assert result.get_response(**({"as_json": True} if package is by_grpc else {}))["model_version"] == folder


def test_torchscript_takes_what_is_declared(triton: Served) -> None:
    one, two = np.array([1, 2, 3, 4], np.float32), np.array([[10, 10], [10, 10]], np.float32)
    body = {"inputs": [request("INPUT__1", two), request("INPUT__0", one)]}
    answer = triton.client.post("/v2/models/add_sub/infer", json=body).json()
    assert [(each["name"], each["shape"], each["data"]) for each in answer["outputs"]] == [
        ("OUTPUT__1", [4], [-9.0, -8.0, -7.0, -6.0]),
        ("OUTPUT__0", [2, 2], [11.0, 12.0, 13.0, 14.0]),
    ]


def test_a_model_without_a_configuration_is_completed_from_its_file(triton: Served) -> None:
    metadata = triton.get("/v2/models/completed")
    assert (metadata["platform"], metadata["inputs"][0]["shape"]) == ("onnx_onnxv1", [-1, 3])
    answer = triton.client.post("/v2/models/completed/infer", json={"inputs": [request("x", ROWS)]}).json()
    assert answer["outputs"][0]["data"] == (ROWS * 5).ravel().tolist()


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((9, 3), np.float32), "input 'x' has 9 rows, and the model takes at most 8 at once: split it"),
        (np.zeros(3, np.float32), "unexpected shape for input 'x'. Expected [-1, 3], got [3]"),
        (np.zeros((1, 4), np.float32), "unexpected shape for input 'x'. Expected [-1, 3], got [1, 4]"),
    ],
)
def test_what_does_not_fit_is_refused(triton: Served, array: np.ndarray, sentence: str) -> None:
    answer = triton.client.post("/v2/models/scale/infer", json={"inputs": [request("x", array)]})
    assert (answer.status_code, answer.json()["error"]) == (400, sentence)


async def ask_four(served: Served, model: str) -> list[list[float]]:
    """Ask four times at once for a row of its own; return the answers."""
    async with httpx.AsyncClient(base_url=served.url, timeout=40) as client:
        rows = [np.full((1, 3), number, np.float32) for number in range(4)]
        bodies = [{"inputs": [request("x", row)]} for row in rows]
        answers = await asyncio.gather(*(client.post(f"/v2/models/{model}/infer", json=body) for body in bodies))
        return [answer.json()["outputs"][0]["data"] for answer in answers]


async def test_requests_share_a_batch_and_each_gets_its_own_rows(triton: Served) -> None:
    full = {"inputs": [request("x", np.ones((4, 3), np.float32))]}  # from then on as many rows are waited for
    assert triton.client.post("/v2/models/gathered/infer", json=full).json()["outputs"][0]["data"] == [2.0] * 12
    assert await ask_four(triton, "gathered") == [[2.0 * number] * 3 for number in range(4)]
    (stats,) = triton.get("/v2/models/gathered/stats")["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (8, 2)
    assert [each["batch_size"] for each in stats["batch_stats"]] == [4]


async def test_without_dynamic_batching_each_runs_by_itself(triton: Served) -> None:
    def executions() -> int:
        stats = triton.get("/v2/models/scale/versions/3/stats")["model_stats"][0]
        count: int = stats["execution_count"]
        return count

    before = executions()
    assert await ask_four(triton, "scale") == [[3.0 * number] * 3 for number in range(4)]
    assert executions() - before == 4


def test_what_cannot_be_served_is_said_by_name(triton: Served) -> None:
    failed = triton.of("setup-failed")
    assert failed["model"] == "ensemble"
    assert "ensemble/config.pbtxt: `input` is missing; an ensemble declares its tensors" in failed["text"]
    index = {line["name"]: line["state"] for line in triton.client.post("/v2/repository/index").json()}
    assert index == {
        "add_sub": "READY",
        "completed": "READY",
        "ensemble": "UNAVAILABLE",
        "gathered": "READY",
        "scale": "READY",
    }
    said = [line["message"] for line in triton.process.lines if line["level"] == "warning"]
    assert said == ["model 'add_sub': config.pbtxt: `frobnicate` is not known, and passed over"]


# MLServer: its examples "Serving Scikit-Learn models", "Serving XGBoost models" and "Multi-Model Serving"


@pytest.fixture(scope="module")
def digits() -> Any:
    images, target = datasets.load_digits(return_X_y=True)
    half = len(images) // 2
    return svm.SVC(gamma=0.001).fit(images[:half], target[:half])


@pytest.fixture(scope="module")
def mushrooms() -> xgboost.Booster:
    random = np.random.default_rng(3)
    features = (random.random((200, 126)) > 0.5).astype(np.float32)
    matrix = xgboost.DMatrix(features, label=features[:, 5])
    return xgboost.train({"max_depth": 2, "eta": 1, "objective": "binary:logistic", "nthread": 1}, matrix, 2)


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory, digits: Any, mushrooms: xgboost.Booster) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("mlserver")
    (root / "settings.json").write_text('{"debug": "true"}')
    settings: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("mnist-svm", "mlserver_sklearn.SKLearnModel", {"version": "v0.1.0"}),
        ("mushroom-xgboost", "mlserver_xgboost.XGBoostModel", {"uri": "./mushroom-xgboost.json", "version": "v0.1.0"}),
        ("custom", "models.MyCustomRuntime", {}),
    )
    for name, implementation, parameters in settings:
        folder = root / "models" / name
        folder.mkdir(parents=True)
        text = json.dumps({"name": name, "implementation": implementation, "parameters": parameters})
        (folder / "model-settings.json").write_text(text)
    joblib.dump(digits, root / "models" / "mnist-svm" / "model.joblib")
    mushrooms.save_model(root / "models" / "mushroom-xgboost" / "mushroom-xgboost.json")
    served = Served(root, 3)
    yield served
    served.close()


def test_mlservers_scikit_learn_example(mlserver: Served, digits: Any) -> None:
    row = datasets.load_digits().data[-1:]
    body = {"inputs": [request("predict", row)]}
    answer = mlserver.client.post("/v2/models/mnist-svm/versions/v0.1.0/infer", json=body).json()
    assert (answer["model_name"], answer["model_version"]) == ("mnist-svm", "v0.1.0")
    expected = digits.predict(row).tolist()
    assert answer["outputs"] == [{"name": "predict", "datatype": "INT64", "shape": [1, 1], "data": expected}]
    assert mlserver.client.post("/v2/models/mnist-svm/infer", json=body).json()["outputs"] == answer["outputs"]


def test_mlservers_xgboost_example(mlserver: Served, mushrooms: xgboost.Booster) -> None:
    row = (np.random.default_rng(4).random((1, 126)) > 0.5).astype(np.float32)
    expected = mushrooms.predict(xgboost.DMatrix(row))
    body = {"inputs": [request("predict", row)]}
    answer = mlserver.client.post("/v2/models/mushroom-xgboost/versions/v0.1.0/infer", json=body).json()
    assert [answer["outputs"][0][key] for key in ("name", "shape")] == ["predict", [1, 1]]
    assert np.float32(answer["outputs"][0]["data"]).tobytes() == expected.tobytes()
    with by_grpc.InferenceServerClient(mlserver.grpc) as client:
        tensor = by_grpc.InferInput("input-0", [1, 126], "FP64")
        tensor.set_data_from_numpy(row.astype(np.float64))
        result = client.infer("mushroom-xgboost", [tensor], model_version="v0.1.0")
        assert result.as_numpy("predict").tobytes() == expected.tobytes()
        with pytest.raises(by_grpc.InferenceServerException, match=r"version v0\.2\.0 is not found"):
            client.infer("mushroom-xgboost", [tensor], model_version="v0.2.0")


def test_what_mlserver_calls_ready(mlserver: Served) -> None:
    assert mlserver.client.get("/v2/models/mnist-svm/versions/v0.1.0/ready").status_code == 200
    assert mlserver.client.get("/v2/models/mnist-svm/versions/v0.2.0/ready").status_code == 400
    metadata = mlserver.get("/v2/models/mnist-svm")
    assert (metadata["versions"], metadata["inputs"][0]["shape"]) == (["v0.1.0"], [-1, 64])
    index = {
        line["name"]: (line["version"], line["state"]) for line in mlserver.client.post("/v2/repository/index").json()
    }
    assert index == {
        "custom": ("1", "UNAVAILABLE"),
        "mnist-svm": ("v0.1.0", "READY"),
        "mushroom-xgboost": ("v0.1.0", "READY"),
    }
    assert "`implementation` is models.MyCustomRuntime, which is not served" in mlserver.of("setup-failed")["text"]


def test_cogs_api_has_versions_of_such_names(mlserver: Served) -> None:
    row = datasets.load_digits().data[:1]
    path = "/models/mnist-svm/versions/v0.1.0/predictions"
    answer = mlserver.client.post(path, json={"input": {"input": row.tolist()}}).json()
    assert (answer["status"], answer["output"]) == ("succeeded", {"predict": [[0]]})
