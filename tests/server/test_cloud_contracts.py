"""SageMaker and Vertex AI with a container, step by step, by the programs and options that `deploy` writes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from geartrain.cli.sagemaker import command_line
from tests.support.servers import PATIENCE, ServerProcess, write_model

SLOW: Final = """
import time
from geartrain import BaseRunner, Input

class Runner(BaseRunner):
    def setup(self) -> None:
        time.sleep(0.5)

    def run(self, a: float, b: float = 1.0, seconds: float = 0.0) -> float:
        time.sleep(seconds)
        if a < 0:
            raise ValueError("a is negative")
        return a + b
"""
STREAM: Final = """
from collections.abc import Iterator
from geartrain import Request, Response

def run(request: Request) -> Response:
    def pieces() -> Iterator[bytes]:
        for number in range(3):
            yield b"%d\\n" % number
    return Response(pieces(), content_type=request.accept or "text/plain")
"""


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The process that SageMaker's `serve` becomes, and a client of its port."""
    write_model(tmp_path / "model", SLOW)
    env = {
        **os.environ,
        "SM_MODEL_DIR": str(tmp_path / "model"),
        "HOST": "127.0.0.1",
        "LOG_FORMAT": "json",
        "GEARTRAIN_OPTIONS": "--grpc-port off --port 0",
    }
    command = [sys.executable, "-m", "geartrain.cli.sagemaker", "/nowhere"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        lines = (json.loads(line) for line in process.stderr)
        url = next(line["url"] for line in lines if line["message"] == "listening")
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield process, client
        process.kill()


def ping(client: httpx.Client) -> int:
    try:
        return client.get("/ping").status_code
    except httpx.TransportError:
        return 0


def until_healthy(client: httpx.Client) -> list[int]:
    """Ask as SageMaker does until the answer is 200; return what was answered."""
    seen = []
    end = time.monotonic() + PATIENCE
    while (status := ping(client)) != 200:
        assert time.monotonic() < end
        seen.append(status)
        time.sleep(0.05)
    return seen


def test_sagemakers_container(container: tuple[subprocess.Popen[str], httpx.Client]) -> None:
    process, client = container
    assert set(until_healthy(client)) <= {0, 503}
    answer = client.post("/invocations", json={"a": 2.0})
    assert (answer.status_code, answer.json()) == (200, 3.0)
    rows = client.post(
        "/invocations", content=b"a,b\n1,2\n3,4\n", headers={"content-type": "text/csv", "accept": "text/csv"}
    )
    assert (rows.status_code, rows.json()) == (200, {"predictions": [3.0, 7.0]})
    assert client.post("/invocations", json={"a": "two"}).status_code == 400
    assert client.post("/invocations", json={"a": -1.0}).status_code == 500
    assert client.get("/invocations").status_code == 405
    # A request that runs is finished within the 30 s between SIGTERM and SIGKILL.
    with client.stream("POST", "/invocations", json={"a": 1.0, "seconds": 1.0}, headers={"x-begun": "1"}) as running:
        process.send_signal(signal.SIGTERM)
        running.read()
        assert running.status_code == 200
    assert process.wait(timeout=30) == 0


ROUTE: Final = "/v1/endpoints/123/deployedModels/456:predict"
ENDPOINTS: Final = {
    "/invocations": {"a": 1.0},
    ROUTE: {"instances": [{"a": 1.0}]},
    "/score": {"a": 1.0},
    "/predictions/timed": {"a": 1.0},
    "/": {"inputs": 1.0},
}
"""The endpoint of each platform, with a body that takes 600 s if `SECONDS` is not changed."""
LONG: Final = """
import os, time
from geartrain import BaseRunner

class Runner(BaseRunner):
    def run(self, a: float = 0.0, inputs: float = 0.0) -> float:
        if a + inputs == 1.0:
            time.sleep(float(os.environ["SECONDS"]))
        return 2 * (a + inputs)
"""


@contextlib.contextmanager
def platform(folder: Path, *options: str, seconds: float = 600.0) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """A server with the endpoints of all platforms, of a model with a slot; `seconds` are those of a long run."""
    write_model(folder / "timed", LONG)
    env = {"AIP_PREDICT_ROUTE": ROUTE, "SECONDS": str(seconds)}
    api = "--api=sagemaker,vertex,azure,torchserve,huggingface"
    process = ServerProcess(str(folder / "timed"), api, "--queue=8", *options, env=env)
    try:
        url = process.wait_for_one("listening")["url"]
        process.wait_for_one("ready")
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield process, client
    finally:
        process.end()


def test_an_answer_within_the_time_of_a_platform(tmp_path: Path) -> None:
    """A run of 600 s ends after --run-timeout, 60 s on these platforms; the answer is an error and the slot is free."""
    with platform(tmp_path, "--run-timeout=300ms") as (_, client):
        for path, body in ENDPOINTS.items():
            began = time.monotonic()
            answer = client.post(path, json=body)
            assert time.monotonic() - began >= 0.3
            assert (path, answer.status_code) == (path, 504)
            assert "timed out after 0.3 s" in answer.text
            assert client.post("/invocations", json={"a": 3.0}).json() == 6.0


def test_sagemakers_container_with_a_limit_of_time(tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(
        "import time\ndef model_fn(folder):\n    return 2\n"
        "def predict_fn(data, model):\n    time.sleep(600 * float(data.sum() == 1))\n    return data * model\n"
    )
    environ = {"SM_MODEL_DIR": str(tmp_path), "GEARTRAIN_OPTIONS": "--run-timeout 300ms"}
    words = command_line(["/nowhere"], environ)
    process = ServerProcess(*(word for word in words[1:] if not word.startswith("--port")))
    try:
        url = process.wait_for_one("listening")["url"]
        process.wait_for_one("ready")
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            assert client.post("/invocations", json=[1]).status_code == 504
            assert client.post("/invocations", json=[3]).json() == [6]
    finally:
        process.end()


def test_a_platform_that_gives_up_cancels_the_run(tmp_path: Path) -> None:
    """Without a limit a run of 600 s ends when the platform closes its connection: the next request has the slot."""
    with platform(tmp_path) as (_, client):
        for path, body in ENDPOINTS.items():
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json=body, timeout=0.3)
            assert client.post("/invocations", json={"a": 3.0}).json() == 6.0


def test_the_limits_of_connections_cut_no_answer_off(tmp_path: Path) -> None:
    """An answer that takes longer than each of these limits comes: they are of a client, not of a run."""
    limits = [f"--{each}-timeout=200ms" for each in ("head", "body", "idle", "send")]
    with platform(tmp_path, *limits, seconds=1.0) as (_, client):
        for path, body in ENDPOINTS.items():
            assert client.post(path, json=body).status_code == 200


def test_sagemakers_streamed_answers(tmp_path: Path) -> None:
    write_model(tmp_path, STREAM)
    with_options = command_line([str(tmp_path)], {"SM_MODEL_DIR": str(tmp_path / "none")})
    process = ServerProcess(*(word for word in with_options[1:] if not word.startswith("--port")))
    try:
        url = process.wait_for("listening")["url"]
        process.wait_for_one("ready")
        with httpx.stream(
            "POST", f"{url}/invocations", content=b"", headers={"accept": "application/jsonlines"}
        ) as answer:
            assert answer.headers["content-type"] == "application/jsonlines"
            assert answer.headers["transfer-encoding"] == "chunked"
            assert answer.read() == b"0\n1\n2\n"
    finally:
        process.end()


def test_sagemakers_endpoints_of_several_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    words = command_line(["/nowhere"], {"SAGEMAKER_MULTI_MODEL": "true", "SM_MODELS_DIR": str(models)})
    process = ServerProcess(*(word for word in words[1:] if not word.startswith("--port")))
    try:
        client = httpx.Client(base_url=process.wait_for("listening")["url"], timeout=PATIENCE)
        assert client.get("/ping").status_code == 200
        assert client.get("/models").json() == {"models": []}
        for name in ("a1f", "b2e"):
            write_model(models / name / "model", SLOW)
            url = f"{models}/{name}/model"
            loaded = client.post("/models", json={"model_name": name, "url": url})
            assert loaded.status_code == 200, loaded.text
            assert client.post("/models", json={"model_name": name, "url": url}).status_code == 409
            assert client.get(f"/models/{name}").json() == {"modelName": name, "modelUrl": url}
        assert [each["modelName"] for each in client.get("/models").json()["models"]] == ["a1f", "b2e"]
        assert [each["modelName"] for each in client.get("/models?next_page_token=a1f").json()["models"]] == ["b2e"]
        header = {"X-Amzn-SageMaker-Target-Model": "a.tar.gz"}
        answer = client.post("/models/a1f/invoke", json={"a": 2.0}, headers=header)
        assert (answer.status_code, answer.json()) == (200, 3.0)
        assert client.delete("/models/a1f").status_code == 200
        assert client.post("/models/a1f/invoke", json={"a": 2.0}).status_code in {404, 503}
        assert client.get("/models/a1f").status_code == 404
        assert client.delete("/models/a1f").status_code == 404
        bad: list[Any] = [{}, [], {"model_name": "c"}, {"model_name": "c", "url": "/other/d/model"}, {"model_name": 1}]
        for body in bad:
            assert client.post("/models", json=body).status_code == 400, body
        missing = {"model_name": "none", "url": f"{models}/none/model"}
        assert client.post("/models", json=missing).status_code == 404
        write_model(models / "big" / "model", SLOW.replace("time.sleep(0.5)", "raise MemoryError('no room')"))
        assert client.post("/models", json={"model_name": "big", "url": f"{models}/big/model"}).status_code == 507
        client.close()
    finally:
        process.end()


def test_vertex_by_its_variables(tmp_path: Path) -> None:
    write_model(tmp_path, SLOW)
    route = "/v1/endpoints/123/deployedModels/456:predict"
    env = {
        "AIP_MODE": "PREDICTION",
        "AIP_PREDICT_ROUTE": route,
        "AIP_HEALTH_ROUTE": "/v1/endpoints/123/deployedModels/456",
    }
    process = ServerProcess(str(tmp_path), "--api=vertex", env=env)
    try:
        client = httpx.Client(base_url=process.wait_for("listening")["url"], timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while (health := client.get(env["AIP_HEALTH_ROUTE"])).status_code != 200:
            assert health.status_code == 503
            assert time.monotonic() < end
            time.sleep(0.05)
        answer = client.post(route, json={"instances": [{"a": 1.0}, {"a": 2.0}], "parameters": {"b": 10.0}})
        assert (answer.status_code, answer.json()) == (200, {"predictions": [11.0, 12.0]})
        assert client.post(route, json={"instances": []}).status_code == 400
        assert client.post(route, json={"instances": [{"a": -1.0}]}).status_code == 500
        client.close()
    finally:
        process.end()
