"""The memory of all that a server keeps: at its bound, and after its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.attacks import resident
from tests.support.receiver import receiving
from tests.support.servers import ServerProcess, eventually, write_model
from tests.support.triton import grpc_channel

MIB = 1024**2
HOOKS = ("--allow-private-urls",)  # for a receiver of webhooks on this machine
StartProcess = Callable[..., ServerProcess]

LARGE = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, size: int = 0, prints: int = 0) -> str:
            for _ in range(prints // 1000):
                print("p" * 999)
            return "x" * size
"""

STREAM = """
    from collections.abc import Iterator
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, size: int) -> Iterator[str]:
            for _ in range(size // 1_000_000):
                yield "x" * 1_000_000
"""


class Server:
    """A server in a process of its own, and its memory."""

    def __init__(self, process: ServerProcess) -> None:
        self.url: str = process.wait_for("listening")["url"]
        process.wait_for("ready")
        self._pid = process.popen.pid

    async def measured(self) -> int:
        """Return the memory once all has been imported that waits for a first webhook and a first call of gRPC."""
        async with receiving() as receiver:
            self.put("before", webhook=receiver.url(), size=1_000_000)
            await receiver.ended()
        with grpc_channel(self.url.removeprefix("http://")) as channel:
            assert GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=60).live
        return self.memory

    def put(self, name: str, *, webhook: str | None = None, **inputs: Any) -> dict[str, Any]:
        """Make a prediction, and return it."""
        hook = {} if webhook is None else {"webhook": webhook}
        response = httpx.put(f"{self.url}/predictions/{name}", json={"input": inputs, **hook}, timeout=60)
        assert response.status_code in {200, 201}, response.text[:200]
        value: dict[str, Any] = response.json()
        return value

    def get(self, name: str) -> dict[str, Any]:
        """Look a prediction up."""
        value: dict[str, Any] = httpx.get(f"{self.url}/predictions/{name}", timeout=60).json()
        return value

    @property
    def memory(self) -> int:
        """Bytes of memory of the server, its workers left out."""
        return resident(self._pid)


@pytest.mark.parametrize("inputs", [{"size": 20_000_000}, {"prints": 10 * MIB}], ids=["outputs", "prints"])
def test_s4_recent_predictions_are_bounded(
    server_process: StartProcess, tmp_path: Path, inputs: dict[str, Any]
) -> None:
    """Forty outputs of 20 MB, or logs of 10 MiB."""
    server = Server(server_process(str(write_model(tmp_path / "model", LARGE))))
    for number in range(2):
        server.put(f"before-{number}", size=10)
    before = server.memory
    for number in range(40):
        assert server.put(str(number), **inputs)["status"] == "succeeded"
    assert server.memory - before < 100_000_000


async def test_s4_recent_predictions_go_when_their_time_is_over(server_process: StartProcess, tmp_path: Path) -> None:
    """No request comes meanwhile that would find them out."""
    server = Server(server_process(str(write_model(tmp_path / "model", LARGE)), "--keep", "5s", *HOOKS))
    before = await server.measured()
    for number in range(2):
        server.put(str(number), size=20_000_000)
    assert server.memory - before > 20_000_000
    await eventually(lambda: server.memory - before < 10_000_000, 30)


async def test_s10_a_stream_that_is_too_large_fails(server_process: StartProcess, tmp_path: Path) -> None:
    """What it has given is given back, and the run is canceled: the next one begins."""
    server = Server(server_process(str(write_model(tmp_path / "model", STREAM)), "--max-output-size", "100MB", *HOOKS))
    before = await server.measured()
    failed = server.put("large", size=10_000_000_000_000)
    assert failed["status"] == "failed"
    assert "larger than the limit of 100000000 bytes (--max-output-size)" in failed["error"]
    assert "output" not in failed
    await eventually(lambda: server.memory - before < 15_000_000, 30)
    assert server.get("large")["error"] == failed["error"]
    assert server.put("after", size=3_000_000)["status"] == "succeeded"


async def test_s10_the_default_bounds_the_output_of_a_run(server_process: StartProcess, tmp_path: Path) -> None:
    server = Server(server_process(str(write_model(tmp_path / "model", LARGE)), *HOOKS))
    before = await server.measured()
    failed = server.put("large", size=300_000_000)
    assert (failed["status"], failed.get("output")) == ("failed", None)
    assert "larger than the limit of 268435456 bytes (--max-output-size)" in failed["error"]
    await eventually(lambda: server.memory - before < 15_000_000, 30)
