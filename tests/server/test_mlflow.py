"""Folders that MLflow has saved, with the real package: bodies of its scoring server, tensors, and Cog's API."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.packages import HAS_PACKAGES, packages
from tests.support.servers import ServerProcess, answer_together, listening_ports

needs_mlflow = pytest.mark.skipif(
    not HAS_PACKAGES and importlib.util.find_spec("mlflow") is None,
    reason="mlflow is not installed: `make api-clients CLIENTS=mlflow` runs these tests in an environment that has it",
)

SAVE = """
    import sys
    import warnings

    import mlflow.pyfunc
    import mlflow.sklearn
    import numpy as np
    import pandas as pd
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types.schema import Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
    from sklearn.linear_model import LogisticRegression

    warnings.simplefilter("ignore")

    class Weighted(mlflow.pyfunc.PythonModel):
        def load_context(self, context):
            with open(context.artifacts["weight"]) as file:
                self.weight = float(file.read())

        def predict(self, context, model_input, params=None):
            if (model_input["x"] < 0).any():
                raise KeyError("x is negative")
            found = model_input["x"] * self.weight * params["times"]
            words = model_input["word"].str.upper() if "word" in model_input else "none"
            return pd.DataFrame({"y": found, "word": words})

    class Doubled(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return model_input * 2

    class Free(mlflow.pyfunc.PythonModel):
        def __init__(self):
            self.factor = 1

        def load_context(self, context):
            self.factor = (context.model_config or {}).get("factor", 1)

        def predict(self, context, model_input, params=None):
            if isinstance(model_input, pd.DataFrame):
                return (model_input.sum(axis=1) * self.factor).to_numpy()
            return np.asarray(model_input) * self.factor

    class Counted(mlflow.pyfunc.PythonModel):
        def load_context(self, context):
            self.gate = context.model_config["gate"]

        def predict(self, context, model_input, params=None):
            x = model_input["x"]
            if (x == -1).all():
                open(self.gate).read()
            if (x == 7).any():
                raise mlflow.exceptions.MlflowException.invalid_parameter_value("seven")
            if (x == 8).any():
                return "none"
            return pd.DataFrame({"y": x * params["times"], "of": len(x)})

    stated = {"pip_requirements": ["mlflow"]}  # to find them by itself, it would load each model in another process

    def save(name, signature, model, **more):
        mlflow.pyfunc.save_model(f"{sys.argv[1]}/{name}", python_model=model, signature=signature, **stated, **more)

    table = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [1.0, 0, 1, 0]})
    flavor = LogisticRegression().fit(table, [0, 1, 0, 1])
    signature = infer_signature(table, flavor.predict(table))
    more = {"signature": signature, "serialization_format": "cloudpickle", "input_example": table.head(2)}
    mlflow.sklearn.save_model(flavor, f"{sys.argv[1]}/flavor", **stated, **more)
    with open(f"{sys.argv[1]}/weight.txt", "w") as file:
        file.write("2.5")
    save(
        "weighted",
        ModelSignature(
            Schema([ColSpec("double", "x"), ColSpec("string", "word", required=False)]),
            Schema([ColSpec("double", "y"), ColSpec("string", "word")]),
            ParamSchema([ParamSpec("times", "long", 1)]),
        ),
        Weighted(),
        artifacts={"weight": f"{sys.argv[1]}/weight.txt"},
        input_example=(pd.DataFrame({"x": [2.0], "word": ["a"]}), {"times": 3}),
    )
    tensor = Schema([TensorSpec(np.dtype("float32"), (-1, 2))])
    save("tensor", ModelSignature(tensor, tensor), Doubled(), input_example=np.array([[1, 2]], np.float32))
    factor = ParamSchema([ParamSpec("times", DataType.double, 1.0)])
    counted = ModelSignature(Schema([ColSpec(DataType.double, "x")]), params=factor)
    save("counted", counted, Counted(), model_config={"gate": ""})
    save("free", None, Free(), model_config={"factor": 1})
    save("nested", ModelSignature(Schema([ColSpec(Array(DataType.double), "rows")])), Free())
"""
CSV = {"content-type": "text/csv"}
Start = Callable[..., tuple[httpx.Client, ServerProcess]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models that the real MLflow has saved."""
    folder = tmp_path_factory.mktemp("saved")
    environment = {**os.environ, **packages(), "MLFLOW_DISABLE_TELEMETRY": "true"}
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SAVE), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def start(saved: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve one of them."""
    clients = []

    def serve(name: str, settings: str = "") -> tuple[httpx.Client, ServerProcess]:
        (saved / name / "geartrain.yaml").write_text(settings)
        process = server_process(str(saved / name), env=packages())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url, timeout=60))
        return clients[-1], process

    yield serve
    for client in clients:
        client.close()


def invoke(client: httpx.Client, body: Any) -> Any:
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@needs_mlflow
def test_a_flavor_with_columns(start: Start) -> None:
    client, process = start("flavor")
    rows = [[0.0, 1.0], [3.0, 0.0]]
    records = [{"a": 0.0, "b": 1.0}, {"b": 0.0, "a": 3.0}]
    for sent in (
        {"dataframe_split": {"columns": ["a", "b"], "data": rows}},
        {"dataframe_records": records},
        {"instances": records},
        {"inputs": {"a": [0.0, 3.0], "b": [1.0, 0.0]}},
    ):
        assert invoke(client, sent) == {"predictions": [0, 1]}
    answer = client.post("/invocations", content="a,b\n0,1\n3,0\n", headers=CSV)
    assert answer.json() == {"predictions": [0, 1]}
    for path in ("/ping", "/health"):
        assert client.get(path).status_code == 200
    assert client.get("/version").text[0].isdecimal()
    missing = client.post("/invocations", json={"dataframe_records": [{"a": 1.0}]})
    assert (missing.status_code, missing.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "b" in missing.json()["message"]
    for content, status in (
        (b"{", 400),
        (b"[]", 400),
        (b'{"inputs": {}, "instances": []}', 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
    ):
        answer = client.post("/invocations", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, "error_code" in answer.json()) == (status, True), answer.text
    assert client.post("/invocations", content=b"x", headers={"content-type": "a/b"}).status_code == 415
    # the Open Inference Protocol
    metadata = client.get("/v2/models/flavor").json()
    assert metadata["inputs"] == [{"name": name, "datatype": "FP64", "shape": [-1]} for name in ("a", "b")]
    assert (metadata["outputs"], metadata["platform"]) == (
        [{"name": "output-1", "datatype": "INT64", "shape": [-1]}],
        "mlflow",
    )
    tensors = [
        {**each, "shape": [2], "data": data}
        for each, data in zip(metadata["inputs"], zip(*rows, strict=True), strict=True)
    ]
    answer = client.post("/v2/models/flavor/infer", json={"inputs": tensors})
    assert answer.json()["outputs"] == [{"name": "output-1", "datatype": "INT64", "shape": [2], "data": [0, 1]}]
    answer = client.post("/v2/models/flavor/infer", json={"inputs": tensors[:1]})
    assert (answer.status_code, "b" in answer.json()["error"]) == (400, True)
    # and Cog's API
    body: Any = {"input": {"body": {"dataframe_records": records}}}
    assert client.post("/predictions", json=body).json()["output"] == {"predictions": [0, 1]}
    body = {"input": {"tensors": {"a": [0, 3], "b": [1, 0]}}}
    output = client.post("/predictions", json=body).json()["output"]
    assert output == {"output-1": {"datatype": "INT64", "shape": [2], "data": [0, 1]}}
    assert listening_ports(process.popen.pid) == {httpx.URL(client.base_url).port}


@needs_mlflow
def test_a_class_of_ones_own_with_parameters(start: Start) -> None:
    client, process = start("weighted")
    body = {"dataframe_records": [{"x": 2.0, "word": "a"}], "params": {"times": 3}}
    assert invoke(client, body) == {"predictions": [{"y": 15.0, "word": "A"}]}
    inputs = [
        {"name": "x", "datatype": "FP64", "shape": [2], "data": [1.0, 2.0]},
        {"name": "word", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]},
    ]
    answer = client.post("/v2/models/weighted/infer", json={"inputs": inputs, "parameters": {"times": 2, "other": "x"}})
    assert [each["data"] for each in answer.json()["outputs"]] == [[5.0, 10.0], ["A", "É"]]
    answer = client.post("/v2/models/weighted/infer", json={"inputs": inputs[:1]})
    assert [each["data"] for each in answer.json()["outputs"]] == [[2.5, 5.0], ["none", "none"]]
    wrong = client.post("/invocations", json={**body, "params": {"times": "many"}})
    assert (wrong.status_code, "times" in wrong.json()["message"]) == (400, True)
    failed = client.post("/invocations", json={"dataframe_records": [{"x": -1.0}]})
    assert (failed.status_code, failed.json()) == (
        500,
        {"error_code": "INTERNAL_ERROR", "message": "KeyError: 'x is negative'"},
    )
    process.popen.terminate()
    log = "\n".join(str(line) for line in process.read_to_the_end())
    assert "Traceback" in log
    assert 'raise KeyError("x is negative")' in log or "in predict" in log


EXAMPLES = {
    "flavor": {"predictions": [0, 1]},
    "weighted": {"predictions": [{"y": 15.0, "word": "A"}]},
    "tensor": {"predictions": [[2.0, 4.0]]},
}


@needs_mlflow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_saved_example_is_that_of_the_page_and_of_the_document(start: Start, name: str) -> None:
    client, _ = start(name)
    (example,) = client.get(f"/playground/models/{name}").json()["examples"]
    assert client.post("/predictions", json={"input": example}).json()["output"] == EXAMPLES[name]
    paths = client.get("/docs/openapi.json").json()["paths"]
    shown = [paths[path]["post"]["requestBody"]["content"]["application/json"]["example"] for path in PATHS]
    assert shown == [{"input": example}, example["body"]]
    assert invoke(client, shown[1]) == EXAMPLES[name]


PATHS = ("/predictions", "/invocations")


@needs_mlflow
def test_tensors(start: Start) -> None:
    client, _ = start("tensor")
    assert invoke(client, {"inputs": [[1, 2], [3, 4]]}) == {"predictions": [[2.0, 4.0], [6.0, 8.0]]}
    (spec,) = client.get("/v2/models/tensor").json()["inputs"]
    assert spec == {"name": "input-0", "datatype": "FP32", "shape": [-1, 2]}
    answer = client.post("/v2/models/tensor/infer", json={"inputs": [{**spec, "shape": [1, 2], "data": [1, 2]}]})
    assert answer.json()["outputs"] == [{"name": "output-1", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}]
    body = {"input": {"tensors": {"input-0": [[0.5, 1]]}}}
    assert client.post("/predictions", json=body).json()["output"]["output-1"]["data"] == [[1.0, 2.0]]
    wrong = client.post("/v2/models/tensor/infer", json={"inputs": [{**spec, "shape": [1, 3], "data": [1, 2, 3]}]})
    assert wrong.status_code == 400


@needs_mlflow
@pytest.mark.parametrize("name", ["free", "nested"])
def test_models_whose_tensors_are_not_known(start: Start, name: str) -> None:
    client, _ = start(name, "parameters: {factor: 10}")
    assert client.get(f"/v2/models/{name}").json()["inputs"] == []
    if name == "nested":
        answer = client.post("/invocations", json={"dataframe_records": [{"rows": "no list"}]})
        assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")
        return
    assert invoke(client, {"dataframe_split": {"data": [[1, 2]]}}) == {"predictions": [30]}
    one = {"name": "any", "datatype": "INT64", "shape": [2], "data": [1, 2]}
    (output,) = client.post("/v2/models/free/infer", json={"inputs": [one]}).json()["outputs"]
    assert (output["name"], output["data"]) == ("output-1", [10, 20])
    two = {**one, "name": "other"}
    (output,) = client.post("/v2/models/free/infer", json={"inputs": [one, two]}).json()["outputs"]
    assert output["data"] == [20, 40]


@needs_mlflow
def test_the_doctor_tells_of_it(saved: Path) -> None:
    (saved / "flavor" / "geartrain.yaml").write_text("")
    arguments = [sys.executable, "-m", "geartrain", "doctor", str(saved / "flavor")]
    found = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, **packages()})
    assert ": a model of MLflow; loads; asked as there" in found.stdout


# requests that share calls


@needs_mlflow
def test_requests_share_calls(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client, process = start(
        "counted", f"batching: {{max_size: 8, max_delay: 0.5}}\nparameters: {{gate: {json.dumps(str(gate))}}}"
    )

    def ask(*values: float, **more: Any) -> Callable[[], httpx.Response]:
        table = {"columns": ["x"], "data": [[each] for each in values]}
        return lambda: client.post("/invocations", json={"dataframe_split": table, **more})

    def infer(*values: float) -> Callable[[], httpx.Response]:
        x = {"name": "x", "datatype": "FP64", "shape": [len(values)], "data": values}
        return lambda: client.post("/v2/models/counted/infer", json={"inputs": [x]})

    def together(*asks: Callable[[], httpx.Response]) -> list[Any]:
        found = answer_together(client, gate, ask(-1.0), *asks)
        return [each.json().get("predictions", each.status_code) for each in found]

    one, two, other = together(ask(1.0), ask(2.0, 3.0), ask(4.0, params={"times": 10.0}))
    assert (one, two) == ([{"y": 1, "of": 3}], [{"y": 2, "of": 3}, {"y": 3, "of": 3}])
    assert other == [{"y": 40, "of": 1}]
    tensors, body = answer_together(client, gate, ask(-1.0), infer(1.0, 2.0), ask(3.0))
    assert [each["data"] for each in tensors.json()["outputs"]] == [[1, 2], [3, 3]]
    assert body.json()["predictions"] == [{"y": 3, "of": 3}]
    # the call of both fails, and is made for each; one that cannot be read is in no call
    bad, good, unread = answer_together(
        client, gate, ask(-1.0), ask(7.0), ask(2.0), lambda: client.post("/invocations", json={"dataframe_split": 3})
    )
    assert (bad.status_code, bad.json()["message"], unread.status_code) == (400, "seven", 400)
    assert good.json()["predictions"] == [{"y": 2, "of": 1}]
    assert together(ask(8.0), ask(2.0)) == ["none", [{"y": 2, "of": 1}]]
    assert together(ask(1.0), ask(2.0)) == [[{"y": 1, "of": 1}], [{"y": 2, "of": 1}]]
    process.popen.terminate()
    assert "requests do not share calls any more" in str(process.read_to_the_end())


# what is recognised, and what cannot be


def write(folder: Path, text: str) -> None:
    (folder / "MLmodel").write_text(textwrap.dedent(text))
    (folder / "model.pkl").write_bytes(b"\x80\x04sklearn")


def test_the_folder_comes_before_the_files_in_it(tmp_path: Path) -> None:
    write(tmp_path, "flavors:\n  python_function: {}\n")
    found = find_model(str(tmp_path))
    assert (found.backend, found.file) == ("mlflow", tmp_path)
    with pytest.raises(ProjectError, match="--no-pickle refuses"):
        find_model(str(tmp_path), no_pickle=True)


FAULTS = [
    ("flavors:\n  spark: {}\n", "", "it has no flavor python_function, which a model needs to be served; it has spark"),
    ("flavors: [", "", "MLmodel: "),
    ("flavors:\n  python_function:\n    loader_module: no_such\n", "", "No module named 'no_such'"),
]


@needs_mlflow
@pytest.mark.parametrize(("text", "settings", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], text: str, settings: str, message: str
) -> None:
    write(tmp_path, text)
    (tmp_path / "geartrain.yaml").write_text(settings)
    failed = server_process(str(tmp_path), env=packages()).wait_for("setup-failed")
    assert message in str(failed)


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="mlflow is installed")
def test_a_package_that_is_missing_is_named(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    write(tmp_path, "flavors:\n  python_function: {}\n")
    failed = server_process(str(tmp_path)).wait_for("setup-failed")
    assert "pip install 'geartrain[mlflow]'" in str(failed)
