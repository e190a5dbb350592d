"""What KServe and Seldon Core 2 do with a server, step by step, with their own clients and another user's rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.servers import ServerProcess, write_model

Start = Callable[..., ServerProcess]

CLIENT: Final = Path(__file__).parents[1] / "support" / "kserve_client.py"
ANOTHER: Final = 64_123  # an id that no user has
# It may read the Python of the tests, which may be in root's own folder, and write nothing that is not its own.
READING: Final = "+dac_read_search"
AS_ANOTHER: Final = (
    *("setpriv", f"--reuid={ANOTHER}", f"--regid={ANOTHER}", "--clear-groups"),
    *(f"--inh-caps=-all,{READING}", f"--ambient-caps=-all,{READING}", "--no-new-privs"),
)
PATIENCE: Final = 40.0  # seconds
DOUBLE: Final = """
def run(numbers: list[float]) -> list[float]:
    return [2 * number for number in numbers]
"""
PID: Final = """
import os
def run(numbers: list[float]) -> list[float]:
    return [{factor} * numbers[0], os.getpid()]
"""


class Agent:
    """Asks as Seldon's agent and its proxy do, over gRPC alone."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub: Any = GRPCInferenceServiceStub(self.channel)

    def call(self, method: str, request: Any) -> Any:
        return getattr(self.stub, method)(request, timeout=PATIENCE)

    def load(self, name: str) -> None:
        self.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name))

    def unload(self, name: str) -> None:
        self.call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name))

    def index(self) -> dict[str, str]:
        return {each.name: each.state for each in self.call("RepositoryIndex", pb.RepositoryIndexRequest()).models}

    def infer(self, name: str, number: float) -> list[float]:
        request = pb.ModelInferRequest(model_name=name)
        tensor = request.inputs.add(name="numbers", datatype="FP64", shape=[1])
        tensor.contents.fp64_contents.append(number)
        answer = self.call("ModelInfer", request)
        return list(map(float, np.frombuffer(answer.raw_output_contents[0])))

    def refused(self, what: Callable[[str], Any], name: str) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as caught:
            what(name)
        code: grpc.StatusCode = caught.value.code()
        return code


def test_seldons_sequence_from_an_empty_folder(server_process: Start, tmp_path: Path) -> None:
    process = server_process(str(tmp_path), "--load", "none", "--grpc-port", "0")
    first, second = (process.wait_for_one("listening", "listening-grpc") for _ in range(2))
    by_stage = {each["message"]: each["url"] for each in (first, second)}
    agent, http = Agent(by_stage["listening-grpc"]), httpx.Client(base_url=by_stage["listening"], timeout=PATIENCE)
    assert agent.call("ServerLive", pb.ServerLiveRequest()).live
    assert agent.call("ServerReady", pb.ServerReadyRequest()).ready
    assert [http.get(path).status_code for path in ("/v2/health/live", "/v2/health/ready", "/readyz")] == [200] * 3
    assert agent.index() == {}
    assert agent.refused(agent.load, "iris_1") is grpc.StatusCode.NOT_FOUND
    assert agent.refused(lambda name: agent.infer(name, 1.0), "iris_1") is grpc.StatusCode.NOT_FOUND
    write_model(tmp_path / "iris_1" / "1", PID.format(factor=2))
    agent.load("iris_1")
    assert agent.index() == {"iris_1": "READY"}
    number, worker = agent.infer("iris_1", 4.0)
    assert number == 8.0
    agent.load("iris_1")
    assert http.post("/v2/repository/models/iris_1/load").status_code == 200
    assert agent.infer("iris_1", 4.0) == [8.0, worker], "nothing has changed, and it was loaded anew"
    write_model(tmp_path / "iris_1" / "1", PID.format(factor=3))
    agent.load("iris_1")
    changed = agent.infer("iris_1", 4.0)
    assert changed[0] == 12.0
    assert changed[1] != worker
    agent.unload("iris_1")
    assert agent.index() == {"iris_1": "UNAVAILABLE"}
    assert agent.refused(lambda name: agent.infer(name, 1.0), "iris_1") is grpc.StatusCode.NOT_FOUND
    shutil.rmtree(tmp_path / "iris_1")
    assert agent.call("ServerReady", pb.ServerReadyRequest()).ready
    agent.channel.close()
    http.close()


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A folder like that which KServe mounts: it belongs to somebody else and cannot be written to."""
    if os.geteuid() != 0:
        pytest.skip("only root may start a server as another user")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv of util-linux is not installed")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        models = write_model(root / "mnt" / "models", DOUBLE)
        (root / "tmp").mkdir()
        os.chown(root / "tmp", ANOTHER, ANOTHER)
        for path in (models / "run.py", models, root / "mnt"):
            path.chmod(0o555)
        yield root


def test_kserves_clients_with_models_of_another_user(server_process: Start, mounted: Path) -> None:
    models, temporary = mounted / "mnt" / "models", str(mounted / "tmp")
    options = ("--model-name", "double", "--health-body", "--grpc-port", "0", "--drain-delay", "5s")
    env = {"HOME": temporary, "XDG_CACHE_HOME": f"{temporary}/cache", "TMPDIR": temporary}
    process = server_process(str(models), *options, env=env, cwd=mounted, under=AS_ANOTHER)
    url = process.wait_for("listening")["url"]
    first, second = (process.wait_for_one("listening-grpc", "ready") for _ in range(2))
    address = first.get("url") or second["url"]
    assert Path(f"/proc/{process.popen.pid}").stat().st_uid == ANOTHER
    command = [sys.executable, "-W", "ignore", str(CLIENT), url, address, "double"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    answer = {"id": "42", "model": "double", "name": "output", "values": [3.0, -4.0, 0.5]}
    assert (seen["rest"], seen["grpc"]) == (answer, answer)
    assert seen["rest metadata"]["models"] == ["double"]
    for health in ("rest live", "rest server ready", "rest ready", "grpc live", "grpc ready", "grpc model ready"):
        assert seen[health] is True, health
    assert [path.name for path in models.iterdir()] == ["run.py"]
