"""What a server says of a model whose setup still runs, or has failed: a process of its own, real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.gates import Gates
from tests.support.servers import ServerProcess, write_model

MODEL = """
    import pathlib
    import select

    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            pathlib.Path({there!r}).write_bytes(b"x")
            with open({go!r}, "rb", buffering=0) as gate:
                select.select([gate], [], [])
            if {fails!r}:
                raise RuntimeError("boom in setup")

        def run(self, {name}: int) -> int:
            return {name}
"""
DOCUMENTS = ("/openapi.json", "/v2/models/model", "/v2/models/model/versions/1", "/v2/models/model/config")
REFUSED = (
    ("/predictions", {"input": {"n": 1}}),
    ("/predictions", {"input": {"nope": 1}}),
    ("/v2/models/model/infer", {"inputs": [{"name": "n", "shape": [1], "datatype": "INT64", "data": [1]}]}),
    ("/v2/models/model/infer", {"inputs": [{"name": "nope", "shape": [1], "datatype": "INT64", "data": [1]}]}),
    ("/v2/models/model/infer", {"inputs": "nothing"}),
    ("/v2/models/model/generate", {"n": 1}),
    ("/v2/models/model/generate", {"nope": 1}),
    ("/v2/models/model/generate_stream", {"nope": 1}),
)
Start = Callable[..., ServerProcess]


class Site:
    """A server of one model, and clients of it."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.gates = Gates(folder / "gates")
        self._folder = folder / "model"
        self._start = start
        self.process: ServerProcess
        self.client: httpx.Client
        self.stub: Any

    def write(self, name: str, *, fails: bool = False) -> str:
        """Write a model that takes `name`; its setup opens the gate `name there` and waits for `name go`."""
        there, go = (str(self.gates[f"{name} {gate}"].path) for gate in ("there", "go"))
        return str(write_model(self._folder, MODEL.format(there=there, go=go, fails=fails, name=name)))

    def open(self, name: str, *, fails: bool = False) -> None:
        """Start a server of the model, which is left in its setup."""
        self.process = self._start(self.write(name, fails=fails), "--grpc-port", "0")
        self.client = httpx.Client(base_url=self.process.wait_for("listening")["url"], timeout=20)
        self.channel = grpc.insecure_channel(self.process.wait_for("listening-grpc")["url"])
        self.stub = GRPCInferenceServiceStub(self.channel)
        self.gates[f"{name} there"].wait()
        while self.client.get("/openapi.json").status_code != 200:  # what the worker has said may not have been read
            assert self.health() == "STARTING"

    def close(self) -> None:
        """Let go of the server."""
        self.client.close()
        self.channel.close()
        self.gates.remove()

    def health(self) -> str:
        """What the model is in."""
        status: str = self.client.get("/health-check").json()["status"]
        return status

    def documents(self) -> list[Any]:
        """All that tells the signature."""
        found: list[Any] = []
        for path in DOCUMENTS:
            response = self.client.get(path)
            assert response.status_code == 200, response.text
            found.append(response.json())
        found.append(self.stub.ModelMetadata(pb.ModelMetadataRequest(name="model")))
        found.append(self.stub.ModelConfig(pb.ModelConfigRequest(name="model")))
        return found

    def inputs(self) -> list[str]:
        """The inputs in each of the documents."""
        openapi, metadata, version, config, grpc_metadata, grpc_config = self.documents()
        names = list(openapi["components"]["schemas"]["Input"]["properties"])
        for found in (metadata["inputs"], version["inputs"], config["input"]):
            assert [each["name"] for each in found] == names
        for message in (grpc_metadata.inputs, grpc_config.config.input):
            assert [each.name for each in message] == names
        return names

    def refusals(self) -> list[int]:
        """How requests are answered, whatever is in them."""
        return [self.client.post(path, json=body).status_code for path, body in REFUSED]

    def infer(self, name: str) -> grpc.StatusCode:
        """How an infer request over gRPC fails."""
        tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype="INT64", shape=[1])
        tensor.contents.int64_contents.append(1)
        with pytest.raises(grpc.RpcError) as caught:
            self.stub.ModelInfer(pb.ModelInferRequest(model_name="model", inputs=[tensor]))
        error: Any = caught.value
        code: grpc.StatusCode = error.code()
        return code


@pytest.fixture
def site(tmp_path: Path, server_process: Start) -> Iterator[Site]:
    """A place for a model, and its server."""
    site = Site(tmp_path, server_process)
    yield site
    site.close()


def test_first_use_5_documents_are_there_while_setup_runs(site: Site) -> None:
    site.open("n")
    before = site.documents()
    assert site.inputs() == ["n"]
    assert before[3]["instance_group"][0]["count"] == 1
    assert site.health() == "STARTING"
    for path in ("/v2/health/ready", "/v2/models/model/ready"):
        assert site.client.get(path).status_code == 400
    assert not site.stub.ModelReady(pb.ModelReadyRequest(name="model")).ready
    assert set(site.refusals()) == {503}
    assert {site.infer(name) for name in ("n", "nope")} == {grpc.StatusCode.UNAVAILABLE}
    site.gates["n go"].open()
    site.process.wait_for("ready")
    assert site.documents() == before
    assert site.client.post("/predictions", json={"input": {"n": 3}}).json()["output"] == 3
    assert site.client.post("/predictions", json={"input": {"nope": 3}}).status_code == 422


def test_documents_stay_when_setup_has_failed(site: Site) -> None:
    site.open("n", fails=True)
    before = site.documents()
    site.gates["n go"].open()
    site.process.wait_for("setup-failed")
    assert site.health() == "SETUP_FAILED"
    assert site.documents() == before
    for path, body in REFUSED[:2]:
        assert site.client.post(path, json=body).status_code == 503
    assert site.client.get("/v2/models/model/ready").status_code == 400


def test_documents_of_a_reload_are_those_of_what_serves(site: Site) -> None:
    site.open("old")
    site.gates["old go"].open()
    site.process.wait_for("ready")
    site.write("new")
    url = f"{site.client.base_url}/v2/repository/models/model/load"
    with ThreadPoolExecutor(1) as aside:
        loading = aside.submit(lambda: httpx.post(url, timeout=20).status_code)
        site.gates["new there"].wait()
        assert site.inputs() == ["old"]
        site.gates["new go"].open()
        assert loading.result() == 200
    assert site.inputs() == ["new"]
