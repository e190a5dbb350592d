"""The document of a server, and its page `/docs`, have the paths that clients of other servers know."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest

from geartrain.transport.cog.system import REFERENCE
from tests.support.servers import PATIENCE, ServerProcess, server_process, write_model

__all__ = ["server_process"]

MODEL = "def run(text: str, count: int = 1) -> str:\n    return text * count\n"
APIS = ["sagemaker", "mlflow", "kserve", "vertex", "torchserve", "huggingface", "litserve", "truss", "azure"]


def document_of(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get(REFERENCE).json()
    openapi_spec_validator.validate(found)
    return found


def others(document: dict[str, Any], server: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The operations for clients of a server, by path and method."""
    tag = f"clients of {server}"
    assert tag in [each["name"] for each in document["tags"]]
    return {
        (path, method): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if tag in operation["tags"]
    }


@pytest.mark.parametrize("api", APIS)
def test_every_path_answers_its_example(server_process: Callable[..., ServerProcess], tmp_path: Path, api: str) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)), "--api", api)
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        found = others(document_of(client), api)
        asked = [operation for (_, method), operation in found.items() if method == "post"]
        assert asked
        for (path, method), operation in found.items():
            body = operation["requestBody"]["content"]["application/json"]["example"] if method == "post" else None
            answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
            assert answer.status_code == HTTPStatus.OK, (path, answer.text)


def test_paths_with_the_names_of_models(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / "models" / name, MODEL)
    process = server_process(str(tmp_path / "models"), "--api", "kserve,torchserve")
    url = process.wait_for("listening")["url"]
    for _ in range(2):
        process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        document = document_of(client)
        assert {path for path, method in others(document, "kserve") if method == "post"} == {
            "/v1/models/one:predict",
            "/v1/models/two:predict",
        }
        assert {path for path, method in others(document, "torchserve") if method == "post"} == {
            "/predictions/one",
            "/predictions/two",
        }


SCRIPT = """
import litserve as ls

class API(ls.LitAPI):
    def setup(self, device):
        pass
    def decode_request(self, request):
        return request["x"]
    def predict(self, x):
        return x * 2
    def encode_response(self, output):
        return {"y": output}

if __name__ == "__main__":
    ls.LitServer(API()).run()
"""


TRUSS = {
    "config.yaml": "model_metadata: {example_model_input: {x: 3}}",
    "examples.yaml": "- {name: bad, input: {y: 1}}\n- {name: none}\n",
    "model/model.py": "class Model:\n    def predict(self, inputs):\n        return {'y': 2 * inputs['x']}\n",
}


def test_examples_in_the_files_of_a_model(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """They are shown, and checked by nothing: one that the model refuses, or that is none, stops no start."""
    for name, text in TRUSS.items():
        (tmp_path / "doubler" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "doubler" / name).write_text(text)
    process = server_process(str(tmp_path / "doubler"))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        card = client.get("/playground/models/doubler").json()
        assert card["examples"] == [{"body": {"x": 3}}, {"body": {"y": 1}}]
        document = document_of(client)
        asked = document["paths"]["/predictions"]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert client.post("/predictions", json=asked).json()["output"] == {"y": 6}
        (body,) = [
            operation["requestBody"]["content"]["application/json"]["example"]
            for (path, method), operation in others(document, "truss").items()
            if (path, method) == ("/predict", "post")
        ]
        assert client.post("/predict", json=body).json() == {"y": 6}
    assert "examples.yaml: example 2 has no `input`; it is not shown" in str(process.lines)


def test_a_class_of_another_server(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SCRIPT)
    process = server_process(str(tmp_path / "server.py"))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        found = others(document_of(client), "litserve")
        content = found["/predict", "post"]["requestBody"]["content"]["application/json"]
        assert content == {"schema": {}}  # its class alone knows what it takes
        assert client.post("/predict", json={"x": 2}).json() == {"y": 4}
