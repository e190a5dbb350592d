"""The time limits of runs and requests, over every protocol."""

from __future__ import annotations

import asyncio
import json
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.service.models.deployment import Limits
from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support.receiver import receiving
from tests.support.servers import Serve, ServerProcess, write_model
from tests.support.waiting import for_each

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN = """
    import time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, seconds: float = 0.0, note: str = "") -> float:
            if note:
                with open(note, "a") as file:
                    file.write("ran ")
            time.sleep(seconds)
            return seconds
"""
STREAM = """
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from geartrain import BaseRunner, concurrent, streaming

    class Runner(BaseRunner):
        @streaming
        @concurrent(max=4)
        async def run(self, seconds: float = 0.0) -> AsyncIterator[str]:
            yield "first"
            await asyncio.sleep(seconds)
            yield "last"
"""
BATCHED = """
    import asyncio
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        async def run(self, seconds: list[float]) -> list[int]:
            await asyncio.sleep(max(seconds))
            return [len(seconds)] * len(seconds)
"""
TRAIN = """
    import time

    def train(seconds: float) -> str:
        time.sleep(seconds)
        return "trained"
"""
LIMIT = "1.5"  # seconds: a busy machine begins a run, or does one that takes no time, in less
TIMED_OUT = "timed out after 1.5 s"


class Live:
    """A server with a limit of a second and a half, and clients of it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.http = httpx.AsyncClient(base_url=process.wait_for("listening")["url"], timeout=60)
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        address = await asyncio.to_thread(lambda: self.process.wait_for("listening-grpc")["url"])
        self._channel = grpc.aio.insecure_channel(address)
        self.grpc: Any = GRPCInferenceServiceStub(self._channel)
        async with asyncio.timeout(40):
            while (await self.http.get("/v2/health/ready")).status_code != HTTPStatus.OK:
                pass

    async def close(self) -> None:
        await self.http.aclose()
        if self._channel is not None:
            await self._channel.close()
        self.process.end()

    async def predict(self, model: str, **values: Any) -> dict[str, Any]:
        """A prediction over Cog's API."""
        response = await self.http.post(f"/models/{model}/predictions", json={"input": values})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def infer(
        self, model: str, seconds: float, *, timeout_s: float | None = None, note: str = ""
    ) -> httpx.Response:
        """An inference over REST."""
        inputs: list[dict[str, Any]] = [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [seconds]}]
        if note:
            inputs.append({"name": "note", "datatype": "BYTES", "shape": [1], "data": [note]})
        parameters = {} if timeout_s is None else {"timeout": int(timeout_s * 1e6)}
        body = {"inputs": inputs, "parameters": parameters}
        return await self.http.post(f"/v2/models/{model}/infer", json=body)

    async def ask(
        self, model: str, seconds: float, *, timeout_s: float | None = None, deadline: float | None = None
    ) -> grpc.StatusCode:
        """The status of an inference over gRPC."""
        request = message(model, seconds, timeout_s)
        try:
            await self.grpc.ModelInfer(request, timeout=deadline)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    async def busy(self, model: str) -> None:
        """Wait until a model runs something."""
        line = f'geartrain_slots_in_use{{model="{model}",version="1"}} 1'
        async with asyncio.timeout(40):
            while line not in (await self.http.get("/metrics")).text:
                pass


def message(model: str, seconds: float, timeout: float | None) -> Any:
    """A request over gRPC. `timeout` in seconds."""
    contents = pb.InferTensorContents(fp64_contents=[seconds])
    tensor = pb.ModelInferRequest.InferInputTensor(name="seconds", datatype="FP64", shape=[1], contents=contents)
    parameters = {} if timeout is None else {"timeout": pb.InferParameter(int64_param=int(timeout * 1e6))}
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], parameters=parameters)


def files(folder: Path) -> list[Path]:
    """What lies in a folder."""
    return list(folder.iterdir())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    root = tmp_path_factory.mktemp("limits") / "models"
    write_model(root / "plain", PLAIN)
    write_model(root / "stream", STREAM)
    write_model(root / "batched", BATCHED)
    write_model(root / "equal", PLAIN)
    (root / "equal" / "geartrain.yaml").write_text("replicas: 2\n")
    write_model(root / "patient", PLAIN)
    write_model(root / "gathering", BATCHED)
    for name in ("patient", "gathering"):
        (root / name / "geartrain.yaml").write_text("timeout: 0\n")
    server = Live(ServerProcess(str(root), "--grpc-port", "0", "--run-timeout", LIMIT, "--allow-private-urls"))
    await server.start()
    yield server
    await server.close()


async def test_a_run_over_cogs_api_fails_when_its_time_is_up(live: Live) -> None:
    body = await live.predict("plain", seconds=60)
    assert (body["status"], body["error"]) == ("failed", TIMED_OUT)
    body = await live.predict("plain", seconds=0)
    assert body["status"] == "succeeded"


async def test_events_and_webhooks_tell_it(live: Live) -> None:
    async with receiving() as receiver:
        body = {"input": {"seconds": 60}, "webhook": f"{receiver.url()}", "webhook_events_filter": ["completed"]}
        headers = {"accept": "text/event-stream"}
        events = (await live.http.post("/models/stream/predictions", json=body, headers=headers)).text
        last = events.strip().split("\n\n")[-1].splitlines()
        assert last[0] == "event: completed"
        told = json.loads(last[1].removeprefix("data: "))
        assert (told["status"], told["error"], told["output"]) == ("failed", TIMED_OUT, ["first"])
        (call,) = await receiver.ended()
        assert (call.prediction["status"], call.prediction["error"]) == ("failed", TIMED_OUT)


async def test_inferences_have_the_operators_limit(live: Live) -> None:
    async def check(model: str) -> None:
        response = await live.infer(model, 60)
        assert (response.status_code, response.json()) == (504, {"error": TIMED_OUT}), model
        assert await live.ask(model, 60) is grpc.StatusCode.DEADLINE_EXCEEDED, model
        assert await live.ask(model, 60, timeout_s=60) is grpc.StatusCode.DEADLINE_EXCEEDED, "nobody can lengthen it"

    await for_each(check, "plain", "equal", "batched", "stream")


async def test_inferences_have_the_clients_limit(live: Live) -> None:
    async def check(model: str) -> None:
        response = await live.infer(model, 60, timeout_s=0.25)
        assert (response.status_code, response.json()) == (504, {"error": "timed out after 0.25 s"}), model
        assert await live.ask(model, 60, timeout_s=0.25) is grpc.StatusCode.DEADLINE_EXCEEDED, model
        assert await live.ask(model, 60, deadline=0.25) is grpc.StatusCode.DEADLINE_EXCEEDED, model
        response = await live.infer(model, 0, timeout_s=20)
        assert response.status_code == 200, (model, response.text)

    await for_each(check, "plain", "equal", "batched", "patient")


async def test_s1_no_time_is_504_and_leaves_the_server_as_it_was(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    write_model(tmp_path, PLAIN)
    process = server_process(str(tmp_path), "--grpc-port", "0")
    server = Live(process)
    await server.start()
    tensor = {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.0]}
    name = (await server.http.post("/v2/repository/index", json={})).json()[0]["name"]

    async def send(microseconds: str) -> httpx.Response:
        body = json.dumps({"inputs": [tensor], "parameters": {"timeout": "T"}}).replace('"T"', microseconds)
        return await server.http.post(f"/v2/models/{name}/infer", content=body)

    for _ in range(10_000):
        assert (await send("1")).status_code == 504
    for timeout, status in {"1": 504, "499": 504, "0": 200, str(2**63): 200}.items():
        answer = await send(timeout)
        assert answer.status_code == status, (timeout, answer.text)
    for timeout in ("-1", "NaN", "1e-3", '"1"', "true", "1" + "0" * 400):
        answer = await send(timeout)
        assert answer.status_code == 400, (timeout, answer.text)
        assert "timeout" in answer.text or timeout == "NaN", (timeout, answer.text)
    assert await server.ask(name, 0, timeout_s=1e-6) is grpc.StatusCode.DEADLINE_EXCEEDED
    for _ in range(20):
        answer = await server.http.post("/predictions", json={"input": {}})
        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded"), answer.text
    await server.http.aclose()
    began = time.monotonic()
    process.popen.terminate()
    await asyncio.to_thread(process.popen.wait, 20)
    assert time.monotonic() - began < 10, "nothing ran, so that the grace of 30 s is not waited for"


async def test_generate_has_the_limit(live: Live) -> None:
    answer = await live.http.post("/v2/models/plain/generate", json={"seconds": 60})
    assert (answer.status_code, answer.json()) == (504, {"error": TIMED_OUT})
    answer = await live.http.post("/v2/models/plain/generate_stream", json={"seconds": 60})
    assert (answer.status_code, answer.json()) == (504, {"error": TIMED_OUT})
    answer = await live.http.post("/v2/models/stream/generate_stream", json={"seconds": 60})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.strip().split("\n\n")]
    assert answer.status_code == 200, "it had begun"
    assert [event.get("error") for event in events] == [None, TIMED_OUT]


async def test_requests_of_a_grpc_stream_have_their_own_limits(live: Live) -> None:
    async def requests() -> AsyncIterator[Any]:
        for number, (seconds, timeout) in enumerate([(60.0, None), (60.0, 0.25), (0.0, 20.0)]):
            request = message("stream", seconds, timeout)
            request.id = str(number)
            yield request

    errors = {}
    async for response in live.grpc.ModelStreamInfer(requests(), timeout=20):
        errors[response.infer_response.id] = response.error_message
    assert errors == {"0": TIMED_OUT, "1": "timed out after 0.25 s", "2": ""}


async def test_a_model_may_have_its_own_limit(live: Live) -> None:
    """`patient` may run as long as it likes."""
    assert (await live.predict("patient", seconds=1.75))["status"] == "succeeded"


async def test_who_waits_too_long_never_runs(live: Live, tmp_path: Path) -> None:
    running = asyncio.ensure_future(live.infer("patient", 60))
    await live.busy("patient")
    late = [live.infer("patient", 0, timeout_s=0.1, note=str(tmp_path / f"{n}")) for n in range(8)]
    for response in await asyncio.gather(*late):
        assert (response.status_code, response.json()) == (504, {"error": "timed out after 0.1 s"})
    running.cancel()  # its client leaves, so the slot is free again
    assert (await live.infer("patient", 0)).status_code == 200
    assert files(tmp_path) == []


async def test_in_a_batch_only_one_ends(live: Live) -> None:
    first = asyncio.ensure_future(live.infer("gathering", 2.0))
    await live.busy("gathering")
    short, long = await asyncio.gather(live.infer("gathering", 2.0, timeout_s=3.5), live.infer("gathering", 0.0))
    assert (await first).status_code == HTTPStatus.OK
    assert (short.status_code, long.status_code) == (504, 200)
    assert long.json()["outputs"][0]["data"] == [2], "they have shared a call"


async def test_a_training_takes_as_long_as_it_needs(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "trained", PLAIN, "run: run.py:Runner\ntrain: train.py:train\n")
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    (folder / "geartrain.yaml").write_text("timeout: 0.1s\n")
    async with serve(folder, limits=Limits(run_timeout=30)) as server:
        assert (await server.predict({"seconds": 60}))["error"] == "timed out after 0.1 s"
        response = await server.client.post("/trainings", json={"input": {"seconds": 0.3}})
        assert (response.json()["status"], response.json()["output"]) == ("succeeded", "trained")
