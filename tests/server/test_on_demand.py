"""Models of a folder that are loaded by requests and rest again: a process of its own, real workers, every protocol."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.bridge.resources import memory_of
from tests.support.servers import PATIENCE, ServerProcess, server_process, write_model

__all__ = ["server_process"]

MODEL = """
    import os, geartrain

    class Runner(geartrain.BaseRunner):
        def setup(self) -> None:
            self.ballast = bytearray(os.urandom(1)) * {size}

        @geartrain.streaming
        def run(self, text: str = "") -> str:
            return {name!r} + text
"""
MIB = 1024 * 1024


class Zoo:
    """A server of a folder of models."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.process = ServerProcess(str(root), *arguments)
        self.url = self.process.wait_for("listening")["url"]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        response = self.client.post(path, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response

    def ask(self, name: str, text: str = "") -> Any:
        return self.post(f"/models/{name}/predictions", {"input": {"text": text}}).json()["output"]

    def wait(self, stage: str) -> str:
        """Wait for a step of a model, and return its name."""
        model: str = self.process.wait_for(stage)["model"]
        return model

    def close(self) -> None:
        self.client.close()
        self.process.end()


def models(root: Path, *names: str, size: int = 1) -> Path:
    for name in names:
        write_model(root / name, MODEL.replace("{name!r}", repr(name)).replace("{size}", str(size)))
    return root


@pytest.fixture
def zoos() -> Iterator[list[Zoo]]:
    """Servers that are ended after the test."""
    found: list[Zoo] = []
    yield found
    for zoo in found:
        zoo.close()


INFER = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["!"]}]}


def test_the_first_request_of_each_protocol_loads_its_model(tmp_path: Path, zoos: list[Zoo]) -> None:
    names = ("cog", "form", "large", "events", "infer", "generate", "stream", "metadata", "body", "largebody")
    zoo = Zoo(models(tmp_path, *names, "other"), "--load", "on-demand")
    zoos.append(zoo)
    assert zoo.client.get("/readyz").status_code == 200
    long = "x" * 100_000
    asks = {
        "cog": lambda: zoo.ask("cog", "!"),
        "large": lambda: zoo.ask("large", long),
        "form": lambda: zoo.client.post("/models/form/predictions", files={"text": (None, "!")}).json()["output"],
        "events": lambda: (
            zoo.post("/models/events/predictions", {"input": {"text": "!"}}, accept="text/event-stream").text
        ),
        "infer": lambda: zoo.post("/v2/models/infer/infer", INFER).json()["outputs"][0]["data"][0],
        "generate": lambda: zoo.post("/v2/models/generate/generate", {"text": "!"}).text,
        "stream": lambda: zoo.post("/v2/models/stream/generate_stream", {"text": "!"}).text,
        "metadata": lambda: zoo.client.get("/v2/models/metadata").json()["name"],
        "body": lambda: zoo.post("/models/body/invoke", {"text": "!"}).json(),
        "largebody": lambda: zoo.post("/models/largebody/invoke", {"text": long}).json(),
    }
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as threads:
        found = {name: threads.submit(ask) for name, ask in asks.items()}
        answers = {name: future.result() for name, future in found.items()}
    assert (answers["cog"], answers["form"], answers["large"]) == ("cog!", "form!", f"large{long}")
    assert "events!" in answers["events"]
    assert (answers["body"], answers["largebody"]) == ("body!", f"largebody{long}")
    assert (answers["infer"], answers["metadata"]) == ("infer!", "metadata")
    assert "generate!" in answers["generate"]
    assert "stream!" in answers["stream"]
    states = {each["name"]: each.get("reason", "") for each in zoo.client.post("/v2/repository/index").json()}
    assert states == {**dict.fromkeys(names, ""), "other": "not loaded; a request loads it"}


def test_the_first_call_of_grpc_loads_its_model(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    names = ("unary", "streaming", "metadata", "config")
    process = server_process(str(models(tmp_path, *names)), "--load", "on-demand", "--grpc-port", "0")
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"!")
    with grpc.insecure_channel(process.wait_for("listening-grpc")["url"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        request = {name: pb.ModelInferRequest(model_name=name, inputs=[tensor]) for name in names}
        answer = stub.ModelInfer(request["unary"], timeout=PATIENCE)
        assert answer.raw_output_contents[0].endswith(b"unary!")
        (answer,) = stub.ModelStreamInfer(iter([request["streaming"]]), timeout=PATIENCE)
        assert answer.infer_response.raw_output_contents[0].endswith(b"streaming!")
        assert stub.ModelReady(pb.ModelReadyRequest(name="metadata")).ready
        assert stub.ModelMetadata(pb.ModelMetadataRequest(name="metadata"), timeout=PATIENCE).inputs[0].name == "text"
        assert stub.ModelConfig(pb.ModelConfigRequest(name="config"), timeout=PATIENCE).config.name == "config"


def test_a_form_that_comes_slowly_outlives_its_model(tmp_path: Path, zoos: list[Zoo]) -> None:
    zoo = Zoo(models(tmp_path, "a"), "--load", "on-demand", "--idle-unload", "100ms")
    zoos.append(zoo)
    part = '--x\r\ncontent-disposition: form-data; name="text"\r\n\r\n!\r\n'
    with contextlib.closing(http.client.HTTPConnection(zoo.url.removeprefix("http://"), timeout=PATIENCE)) as client:
        client.putrequest("POST", "/models/a/predictions")
        client.putheader("content-type", "multipart/form-data; boundary=x")
        client.putheader("content-length", str(len(part) + len("--x--\r\n")))
        client.endheaders(part.encode())
        assert zoo.wait("unloaded") == "a"
        client.send(b"--x--\r\n")
        answer = json.loads(client.getresponse().read())
    assert answer["output"] == "a!"


def test_clients_that_come_together_are_all_served(tmp_path: Path, zoos: list[Zoo]) -> None:
    zoo = Zoo(models(tmp_path, "a"), "--load", "on-demand", "--queue", "20")
    zoos.append(zoo)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: zoo.ask("a"), range(8))) == ["a"] * 8


def test_a_time_limit_bounds_the_wait(tmp_path: Path, zoos: list[Zoo]) -> None:
    write_model(tmp_path / "slow", "import time\ntime.sleep(60)\ndef run(text: str) -> str: ...\n")
    write_model(tmp_path / "fast", "def run(text: str) -> str: ...\n")
    zoo = Zoo(tmp_path, "--load", "on-demand")
    zoos.append(zoo)
    body = {**INFER, "parameters": {"timeout": 50_000}}
    refused = zoo.client.post("/v2/models/slow/infer", json=body)
    assert refused.status_code == 504
    assert refused.json()["error"] == "timed out after 0.05 s, while the model was being loaded"


def test_the_limit_of_a_caller_bounds_its_wait(tmp_path: Path, zoos: list[Zoo]) -> None:
    write_model(tmp_path / "slow", "import time\ntime.sleep(60)\ndef run(text: str) -> str: ...\n")
    calling = "import geartrain\ndef run(text: str) -> str:\n    return geartrain.models['slow'](text=text)\n"
    write_model(tmp_path / "caller", calling)
    zoo = Zoo(tmp_path, "--load", "on-demand")
    zoos.append(zoo)
    zoo.post("/v2/repository/models/caller/load", {})
    body = {**INFER, "parameters": {"timeout": 300_000}}
    refused = [zoo.client.post("/v2/models/caller/infer", json=body) for _ in range(3)]
    assert [(each.status_code, each.json()["error"]) for each in refused] == [(504, "timed out after 0.3 s")] * 3


def test_a_model_without_work_rests_and_comes_back(tmp_path: Path, zoos: list[Zoo]) -> None:
    zoo = Zoo(models(tmp_path, "a"), "--idle-unload", "300ms")
    zoos.append(zoo)
    assert zoo.wait("ready") == "a"
    for _ in range(2):
        assert zoo.ask("a", "!") == "a!"
        assert zoo.wait("unloaded") == "a"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")
def test_the_least_recently_used_leaves_for_want_of_memory(tmp_path: Path, zoos: list[Zoo]) -> None:
    zoo = Zoo(models(tmp_path, "a", "b", size=100 * MIB), "--load", "on-demand", "--max-memory", "200MiB")
    zoos.append(zoo)
    assert zoo.ask("a") == "a"
    assert zoo.ask("b") == "b"
    assert zoo.wait("unloaded") == "a"
    assert zoo.ask("a") == "a"
    assert zoo.wait("unloaded") == "b"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")
def test_memory_is_that_of_all_processes_of_a_worker(tmp_path: Path) -> None:
    import subprocess

    script = (
        "import subprocess, sys, time; a = bytearray(b'x') * (30 << 20)\n"
        "if sys.argv[1:]:\n"
        "    child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 60 * MIB < memory_of({process.pid}) < 150 * MIB
        assert memory_of({process.pid + 1_000_000}) == 0
        process.kill()
    assert memory_of({process.pid}) == 0
