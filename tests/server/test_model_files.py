"""Model files through a real server: every protocol, beside code, and the backend that the documentation writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import joblib
import numpy as np
import pytest
import tritonclient.grpc as triton
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from tests.support.servers import ServerProcess, write_model

BACKENDS_PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
PICTURES, DIGITS = load_digits(return_X_y=True)
ROWS = PICTURES[:5] / 16


def install(site: Path) -> Path:
    """Put the backend of docs/backends.md where a package would be installed."""
    code, project = re.findall(r"```(?:python|toml)\n(.*?)```", BACKENDS_PAGE.read_text(), re.DOTALL)[:2]
    points = re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = ".*"\n)+)', project)
    folder = site / "linear_models-1.0.dist-info"
    folder.mkdir(parents=True)
    (site / "linear_models.py").write_text(code)
    text = "".join(f"[{group}]\n{lines}" for group, lines in points).replace('"', "")
    (folder / "entry_points.txt").write_text(text)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-models\nVersion: 1.0\n")
    return site


@pytest.fixture(scope="module")
def model() -> Any:
    return LogisticRegression(max_iter=50, tol=0.01).fit(PICTURES / 16, DIGITS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    """A repository of a scikit-learn file in version folders, a foreign format, code, and some that are wrong."""
    root = tmp_path_factory.mktemp("repository")
    write_model(root / "code", "def run(text: str) -> str:\n    return text\n")
    for folder in ("digits/2", "cut", "linear", "plan"):
        (root / folder).mkdir(parents=True)
    joblib.dump(model, root / "digits" / "2" / "model.joblib")
    (root / "digits" / "geartrain.yaml").write_text("parameters: {outputs: [predict, predict_proba], threads: 1}\n")
    (root / "cut" / "model.joblib").write_bytes((root / "digits" / "2" / "model.joblib").read_bytes()[:300])
    (root / "plan" / "model.plan").write_bytes(b"")
    np.savez(root / "linear" / "two.npz", weights=np.array([[2.0, 1.0], [0.5, 0.0]]), bias=np.array([1.0, 0.0]))
    (root / "linear" / "geartrain.yaml").write_text("parameters: {softmax: no}\n")
    return root


class Served:
    """A server of these models."""

    def __init__(self, root: Path, site: Path) -> None:
        self.process = ServerProcess(
            str(root),
            "--grpc-port",
            "0",
            env={"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        )
        self.client = httpx.Client(base_url=self.process.wait_for("listening")["url"], timeout=60)
        seen: list[str] = []
        while not {"code", "digits", "linear", "cut", "plan", "grpc"} <= set(seen):
            line = self.process.wait_for_one("ready", "setup-failed", "listening-grpc")
            if line["message"] == "listening-grpc":
                self.grpc = triton.InferenceServerClient(line["url"])
            seen.append(line.get("model", "grpc"))

    def close(self) -> None:
        self.grpc.close()
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(root, install(tmp_path_factory.mktemp("site")))
    yield server
    server.close()


def test_rest_gives_the_librarys_answer_to_the_last_bit(served: Served, model: Any) -> None:
    tensor = {"name": "input", "datatype": "FP64", "shape": [5, 64], "data": ROWS.tolist()}
    response = served.client.post("/v2/models/digits/infer", json={"inputs": [tensor]})
    assert response.status_code == 200, response.text
    found = {each["name"]: each for each in response.json()["outputs"]}
    assert list(found) == ["predict", "predict_proba"]
    assert found["predict"]["data"] == model.predict(ROWS).tolist()
    assert found["predict_proba"]["data"] == model.predict_proba(ROWS).ravel().tolist()
    one = {"inputs": [tensor], "outputs": [{"name": "predict_proba"}]}
    only = served.client.post("/v2/models/digits/versions/2/infer", json=one).json()["outputs"]
    assert [each["name"] for each in only] == ["predict_proba"]


def test_grpc_gives_the_same(served: Served, model: Any) -> None:
    tensor = triton.InferInput("input", [5, 64], "FP64")
    tensor.set_data_from_numpy(ROWS)
    result = served.grpc.infer("digits", [tensor])
    assert result.as_numpy("predict").tobytes() == model.predict(ROWS).tobytes()
    assert result.as_numpy("predict_proba").tobytes() == model.predict_proba(ROWS).tobytes()
    metadata = served.grpc.get_model_metadata("digits")
    assert (metadata.platform, list(metadata.versions)) == ("sklearn_joblib", ["2"])
    assert served.grpc.get_model_config("digits").config.platform == "sklearn_joblib"


def test_cogs_api_gives_the_same(served: Served, model: Any) -> None:
    body = {"input": {"input": ROWS.tolist()}}
    answer = served.client.post("/models/digits/predictions", json=body).json()
    assert answer["output"] == {
        "predict": model.predict(ROWS).tolist(),
        "predict_proba": model.predict_proba(ROWS).tolist(),
    }
    wrong = served.client.post("/models/digits/predictions", json={"input": {"input": [[1.0]]}})
    assert wrong.status_code == 422
    assert "1 element in an array that must have 64" in wrong.text


def test_metadata_tells_what_the_file_takes(served: Served) -> None:
    metadata = served.client.get("/v2/models/digits").json()
    assert metadata == {
        "name": "digits",
        "versions": ["2"],
        "platform": "sklearn_joblib",
        "inputs": [{"name": "input", "datatype": "FP64", "shape": [-1, 64]}],
        "outputs": [
            {"name": "predict", "datatype": "INT64", "shape": [-1]},
            {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 10]},
        ],
        "properties": {"kind": "file", "streaming": "false", "batch_max_size": "128"},
    }
    assert served.client.get("/v2/models/digits/config").json()["platform"] == "sklearn_joblib"


def test_the_documented_backend_is_one_like_any_other(served: Served) -> None:
    assert served.client.get("/v2/models/linear").json()["platform"] == "linear_npz"
    answer = served.client.post("/models/linear/predictions", json={"input": {"x": [[1, 2], [3, 4]]}}).json()
    assert answer["output"] == {"y": [[4.0, 1.0], [9.0, 3.0]]}


def test_what_is_wrong_is_told_and_the_others_go_on(served: Served) -> None:
    states = {each["name"]: each for each in served.client.get("/models").json()["models"]}
    assert {name: each["state"] for name, each in states.items()} == {
        "code": "READY",
        "cut": "UNAVAILABLE",
        "digits": "READY",
        "linear": "READY",
        "plan": "UNAVAILABLE",
    }
    assert states["cut"]["reason"].startswith("model.joblib: it is no file of joblib or pickle, or it is cut (")
    assert "tensorrt_plan cannot be served" in states["plan"]["reason"]
    answer = served.client.post("/models/code/predictions", json={"input": {"text": "hi"}}).json()
    assert answer["output"] == "hi"


def geartrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "geartrain", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_command_line_takes_files(root: Path, model: Any) -> None:
    file = root / "digits" / "2" / "model.joblib"
    done = geartrain("run", str(file), "-i", f"input={ROWS[:1].tolist()}")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"predict": model.predict(ROWS[:1]).tolist()}
    for command in ("run", "schema", "serve"):
        done = geartrain(command, str(file), "--no-pickle")
        assert done.returncode == 1
        assert f"error: {file}: to load it can run code that is in it, and --no-pickle refuses that" in done.stderr
    done = geartrain("doctor", str(file))
    assert "✓ model.joblib: loads; it takes input: tensor and gives record" in done.stdout
