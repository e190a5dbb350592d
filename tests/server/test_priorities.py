"""Priorities and time limits over every protocol, with replicas and with batches."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
import pytest_asyncio
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support.gates import Gates
from tests.support.servers import ServerProcess, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Each begin is a line of a file: when, on the clock that all processes of a machine share, and who.
PLAIN = """
    import os, select, time
    from geartrain import BaseRunner

    def note(diary: str, *names: str) -> None:
        if diary:
            fd = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, "".join(f"{time.monotonic()} {name}\\n" for name in names).encode())
            os.close(fd)

    def wait(gate: str) -> None:
        if gate:
            fd = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
            select.select([fd], [], [])
            os.close(fd)

    class Runner(BaseRunner):
        def run(self, name: str = "", diary: str = "", gate: str = "") -> str:
            note(diary, name)
            wait(gate)
            return name
"""
BATCHED = PLAIN.replace("import BaseRunner", "import BaseRunner, batched").replace(
    """
        def run(self, name: str = "", diary: str = "", gate: str = "") -> str:
            note(diary, name)
            wait(gate)
            return name
""",
    """
        @batched(max_size=8)
        def run(self, name: list[str], diary: list[str], gate: list[str]) -> list[str]:
            note(diary[0], *name)
            for each in gate:
                wait(each)
            return name
""",
)
LEVELS = "priority_levels: 2\n"
SLOTS = {"plain": 2, "batched": 1}
SHARE = {"plain": 1, "batched": 8}  # predictions of a call


class Live:
    """A server of models with two levels, and clients of it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        url = process.wait_for("listening")["url"]
        self.http = httpx.AsyncClient(base_url=url, timeout=60)
        limits = httpx.Limits(max_connections=None)
        # Many clients, because each looks through all of its connections for each request.
        self._clients = [httpx.AsyncClient(base_url=url, timeout=60, limits=limits) for _ in range(32)]
        self._turns = itertools.cycle(self._clients)
        self._channel = grpc.aio.insecure_channel(process.wait_for("listening-grpc")["url"])
        self.grpc: Any = GRPCInferenceServiceStub(self._channel)

    async def start(self) -> None:
        async with asyncio.timeout(40):
            while (await self.http.get("/v2/health/ready")).status_code != HTTPStatus.OK:
                pass

    async def close(self) -> None:
        for client in (self.http, *self._clients):
            await client.aclose()
        await self._channel.close()
        self.process.end()

    async def by_cog(self, model: str, inputs: dict[str, str], _parameters: dict[str, int]) -> str:
        """Ask over Cog's API, which knows no parameters; return what became of it."""
        response = await next(self._turns).post(f"/models/{model}/predictions", json={"input": inputs})
        assert response.status_code == HTTPStatus.OK, response.text
        body: dict[str, str] = response.json()
        return body["status"]

    async def by_rest(self, model: str, inputs: dict[str, str], parameters: dict[str, int]) -> str:
        """Ask over REST; return what became of it."""
        tensors = [{"name": n, "datatype": "BYTES", "shape": [1], "data": [v]} for n, v in inputs.items()]
        body = {"inputs": tensors, "parameters": parameters}
        response = await next(self._turns).post(f"/v2/models/{model}/infer", json=body)
        return {200: "succeeded", 504: "timed out"}.get(response.status_code, response.text)

    async def by_grpc(self, model: str, inputs: dict[str, str], parameters: dict[str, int]) -> str:
        """Ask over gRPC; return what became of it."""
        request = pb.ModelInferRequest(model_name=model)
        for name, value in inputs.items():
            contents = pb.InferTensorContents(bytes_contents=[value.encode()])
            request.inputs.add(name=name, datatype="BYTES", shape=[1], contents=contents)
        for name, number in parameters.items():
            request.parameters[name].int64_param = number
        try:
            await self.grpc.ModelInfer(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return "timed out"
            return f"{error.code()} {error.details()}"
        return "succeeded"

    async def metric(self, name: str, model: str) -> int:
        """A number of the server's metrics."""
        start = f'{name}{{model="{model}",version="1"}} '
        lines = (await self.http.get("/metrics")).text.splitlines()
        return int(float(next(line for line in lines if line.startswith(start)).removeprefix(start)))

    async def reached(self, name: str, model: str, number: int) -> None:
        """Wait until a metric has at least that value."""
        async with asyncio.timeout(40):
            while await self.metric(name, model) < number:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    root = tmp_path_factory.mktemp("priorities") / "models"
    write_model(root / "plain", PLAIN)
    (root / "plain" / "geartrain.yaml").write_text(f"{LEVELS}replicas: 2\n")
    write_model(root / "batched", BATCHED)
    (root / "batched" / "geartrain.yaml").write_text(LEVELS)
    write_model(root / "strict", PLAIN)
    (root / "strict" / "geartrain.yaml").write_text(
        "priority_levels:\n  - timeout: 0.1\n  - max_queue: 1\ndefault_priority: 2\n"
    )
    server = Live(ServerProcess(str(root), "--grpc-port", "0", "--queue", "2000", "--inference-queue", "2000"))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
def gates(tmp_path: Path) -> Any:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


class Asked(NamedTuple):
    """A request, and what became of it, when."""

    is_high: bool
    outcome: str
    at: float


@pytest.mark.parametrize("model", ["plain", "batched"])
async def test_a_thousand_requests(live: Live, gates: Gates, tmp_path: Path, model: str) -> None:
    """All wait together; then the slots become free, and every high one begins before every low one.

    Where several workers begin calls at the same time, what they write down may be in another order: so many
    predictions as they have in their hands may seem to be overtaken.
    """
    dice = random.Random(model)  # noqa: S311 - of a test
    diary, gate = tmp_path / "diary", gates["go"]
    held = [
        asyncio.ensure_future(live.by_rest(model, {"name": "held", "diary": "", "gate": str(gate.path)}, {}))
        for _ in range(SLOTS[model])
    ]
    await live.reached("geartrain_slots_in_use", model, SLOTS[model])
    asked: dict[str, Asked] = {}

    async def ask(name: str) -> None:
        door = dice.choice([live.by_rest, live.by_grpc, live.by_cog])
        is_high = door != live.by_cog and dice.random() < 0.5
        parameters = {"priority": 1} if is_high else dice.choice([{}, {"priority": 2}])
        if door != live.by_cog:
            parameters = {**parameters, "timeout": dice.choice([50_000, 60_000_000, dice.randint(1, 3_000_000)])}
        outcome = await door(model, {"name": name, "diary": str(diary), "gate": ""}, parameters)
        asked[name] = Asked(is_high, outcome, time.monotonic())

    asking = [asyncio.ensure_future(ask(str(number))) for number in range(1000)]
    async with asyncio.timeout(60):
        while len(asked) + await live.metric("nv_inference_pending_request_count", model) < len(asking):
            pass
    gate.open()
    await asyncio.gather(*asking)
    assert {await each for each in held} == {"succeeded"}
    check(diary, asked, most_at_once=(SLOTS[model] - 1) * SHARE[model])


def check(diary: Path, asked: dict[str, Asked], *, most_at_once: int) -> None:
    """No high one waited behind a low one that had not begun, and no one that timed out ran afterwards."""
    lines = sorted((float(at), name) for at, name in (line.split() for line in diary.read_text().splitlines()))
    began = {name: at for at, name in lines}
    assert len(began) == len(lines), "nobody ran twice"
    order = [asked[name].is_high for _, name in lines]
    assert order.count(True) > 50
    assert order.count(False) > 100
    first_low = order.index(False)
    assert order[first_low:].count(True) <= most_at_once
    outcomes = [each.outcome for each in asked.values()]
    assert set(outcomes) == {"succeeded", "timed out"}
    assert outcomes.count("timed out") > 100
    for name, each in asked.items():
        assert began.get(name, 0.0) < each.at, "it ran after its end"
        assert each.outcome == "timed out" or name in began


async def test_a_priority_out_of_range_is_the_clients_mistake(live: Live) -> None:
    sentence = "parameter 'priority' is 3, out of range: this model takes 1, the highest, to 2, or 0 for its default, 2"
    inputs = {"name": "x"}
    assert await live.by_rest("plain", inputs, {"priority": 3}) == f'{{"error":"{sentence}"}}'
    assert await live.by_grpc("plain", inputs, {"priority": 3}) == f"StatusCode.INVALID_ARGUMENT {sentence}"
    assert await live.by_rest("plain", inputs, {"priority": 0}) == "succeeded"
    assert await live.by_grpc("plain", inputs, {"priority": 2}) == "succeeded"


async def test_a_level_has_limits_of_its_own(live: Live, gates: Gates) -> None:
    """In `strict` a high one may wait for a moment, and one low one as long as it takes."""
    inputs = {"name": "x", "gate": str(gates["go"].path)}
    held = asyncio.ensure_future(live.by_rest("strict", inputs, {}))
    await live.reached("geartrain_slots_in_use", "strict", 1)
    waits = asyncio.ensure_future(live.by_rest("strict", inputs, {}))
    await live.reached("nv_inference_pending_request_count", "strict", 1)
    assert await live.by_rest("strict", inputs, {}) == '{"error":"Exceeds maximum queue size"}'
    assert await live.by_grpc("strict", inputs, {}) == "StatusCode.RESOURCE_EXHAUSTED Exceeds maximum queue size"
    response = await live.http.post("/models/strict/predictions", json={"input": inputs})
    assert response.status_code == HTTPStatus.CONFLICT
    assert int(response.headers["retry-after"]) >= 1
    body = {"inputs": [], "parameters": {"priority": 1}}
    response = await live.http.post("/v2/models/strict/infer", json=body)
    assert (response.status_code, response.json()) == (503, {"error": "Request timeout expired"})
    assert int(response.headers["retry-after"]) >= 1
    late = await live.by_grpc("strict", inputs, {"priority": 1})
    assert late == "StatusCode.UNAVAILABLE Request timeout expired"
    gates["go"].open()
    assert [await held, await waits] == ["succeeded", "succeeded"]
