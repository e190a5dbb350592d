"""The memory of all that a server keeps: at its bound, and after its end."""

from __future__ import annotations

import socket
import time
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

ZEROS = """
    import geartrain
    import numpy as np
    from numpy.typing import NDArray

    @geartrain.concurrent(max=4)
    async def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.zeros(1_000_000, np.float32)
"""

PRINTS = """
    import os
    from collections.abc import Iterator
    from geartrain import BaseRunner, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, count: int) -> Iterator[str]:
            for _ in range(count):
                os.write(1, b"p" * 999_999 + b"\\n")
            yield "done"
"""

METRICS = """
    from pathlib import Path
    from geartrain import BaseRunner

    def resident() -> int:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    class Runner(BaseRunner):
        def run(self, size: int) -> int:
            before = resident()
            for number in range(size // 2000):
                self.record_metric("all", f"{number:2000}", "append")
            for number in range(size // 200_000):
                self.record_metric("last", f"{number:200000}")
            return resident() - before
"""


class Server:
    """A server in a process of its own, and its memory."""

    def __init__(self, process: ServerProcess) -> None:
        self.url: str = process.wait_for("listening")["url"]
        process.wait_for("ready")
        self._pid = process.popen.pid

    async def measured(self, **inputs: Any) -> int:
        """Return the memory once all has been imported that waits for a first webhook and a first call of gRPC."""
        async with receiving() as receiver:
            self.put("before", webhook=receiver.url(), **(inputs or {"size": 1_000_000}))
            await receiver.ended()
        with grpc_channel(self.url.removeprefix("http://")) as channel:
            assert GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=60).live
        return self.memory

    def put(self, name: str, *, webhook: str | None = None, **inputs: Any) -> dict[str, Any]:
        """Make a prediction, and return it. `webhook` is sent its end."""
        hook = {} if webhook is None else {"webhook": webhook, "webhook_events_filter": ["completed"]}
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


async def test_events_of_prints_are_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """Twice 200 MB in 200 lines: fewer than the events that are held, and than a reader may lie behind."""
    server = Server(server_process(str(write_model(tmp_path / "model", PRINTS)), "--queue", "1", *HOOKS))
    before = await server.measured(count=0)
    body = b'{"input": {"count": 200}}'
    url = httpx.URL(server.url)
    head = b"POST /predictions HTTP/1.1\r\nhost: %b\r\naccept: text/event-stream\r\n" % url.netloc
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(head + body)
        assert client.recv(12) == b"HTTP/1.1 200"  # and nothing is read from here on
        answer = server.put("after", count=200)  # runs when the first one has ended
        assert len(answer["logs"]) > 16 * MIB
        assert server.memory - before < 150_000_000
    await eventually(lambda: server.memory - before < 120_000_000, 30)


def test_metrics_that_a_run_records_are_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """Appends of 80 MB, and 80 MB of values that are replaced, in fewer events than are held."""
    server = Server(server_process(str(write_model(tmp_path / "model", METRICS))))
    server.put("before", size=400_000)
    before = server.memory
    answer = server.put("much", size=80_000_000)
    assert (answer["status"], answer["metrics"]["all"][7], answer["output"] < 15_000_000) == (
        "succeeded",
        f"{7:2000}",
        True,
    )
    assert "metric 'all' is left out, and so are further ones" in answer["logs"]
    assert server.memory - before < 50_000_000


async def test_webhooks_that_wait_are_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """Ends of 400 MB, of which the oldest are given up, for a receiver that is down and comes back."""
    options = ("--keep", "0", "--max-output-size", "1GB", *HOOKS)
    server = Server(server_process(str(write_model(tmp_path / "model", LARGE)), *options))
    before = await server.measured()
    async with receiving() as receiver:
        port = receiver.port
        await receiver.close()
        for number in range(4):
            server.put(str(number), webhook=receiver.url(), size=100_000_000)
        held = server.memory - before
        assert 180_000_000 < held < 320_000_000
        await receiver.open(port)
        calls = await receiver.ended(2)
        assert {int(call.prediction["id"]) for call in calls} == {2, 3}
    await eventually(lambda: server.memory - before < 60_000_000, 30)


async def test_heads_that_are_recognized_are_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """12 MB of heads, each of which would be recognized, after 30 MB of others."""
    server = Server(server_process(str(write_model(tmp_path / "model", LARGE)), *HOOKS))
    url = httpx.URL(server.url)
    line = b"GET /v2/health/live HTTP/1.1\r\nhost: %b\r\nx: " % url.netloc
    before = 0
    with socket.create_connection((url.host, url.port)) as client:
        for number in range(210):
            if number == 150:
                before = server.memory
            client.sendall(b"".join([line + b"%d-%d-%b\r\n\r\n" % (number, each, b"x" * 1900) for each in range(100)]))
            answers = b""
            while answers.count(b"HTTP/1.1 200") < 100:
                answers += client.recv(65536)
    assert server.memory - before < 5_000_000


async def test_unread_responses_of_a_stream_of_grpc_are_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """600 MB, for a client that sends all requests before it reads, and then gets all responses."""
    server = Server(server_process(str(write_model(tmp_path / "model", ZEROS)), *HOOKS))
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    asked = [pb.ModelInferRequest(model_name="model", id=str(number), inputs=[tensor]) for number in range(150)]
    for each in asked:
        each.raw_input_contents.append(bytes(4))
    with grpc_channel(server.url.removeprefix("http://")) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert not next(stub.ModelStreamInfer(iter(asked[:1]))).error_message
        before = server.memory
        responses = stub.ModelStreamInfer(iter(asked))
        with httpx.Client(base_url=server.url) as client:
            await eventually(lambda: answered(client) == answered(client, pause=1.0) > 1, 40)
        assert server.memory - before < 200_000_000
        found = [response.infer_response for response in responses]
        assert {response.id for response in found} == {each.id for each in asked}
        assert {len(response.raw_output_contents[0]) for response in found} == {4_000_000}
    await eventually(lambda: server.memory - before < 100_000_000, 30)


def answered(client: httpx.Client, *, pause: float = 0.0) -> float:
    """Return how many predictions have ended, after a pause in seconds."""
    time.sleep(pause)
    lines = [line.split() for line in client.get("/metrics").text.splitlines()]
    return sum(float(line[-1]) for line in lines if line[0].startswith("nv_inference_count"))
