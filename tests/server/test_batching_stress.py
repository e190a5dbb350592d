"""10,000 requests of a batched model through three APIs, with cancels, faults and a crash: each has its own answer."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.processes import children
from tests.support.servers import ServerProcess, write_model
from tests.support.wire import Connection, connection

REQUESTS: Final = 10_000
CLIENTS: Final = 22  # of each API: together about twice what the workers can take at once
MAX_SIZE: Final = 16
LEAVING: Final = 0.05  # of the requests are canceled at some moment
MOMENTS: Final = (0.0, 0.001, 0.004)  # seconds until then
SCALES: Final = (1, 1, 1, 3)  # only equal ones share a batch

# One number in a hundred fails, in one of the two ways in which an item can.
MODEL = """
    import time
    from geartrain import BaseRunner, ItemError, batch_item, batched

    class Runner(BaseRunner):
        @batched(max_size=16)
        def run(self, number: list[int], scale: int = 1) -> list[int]:
            refused = {place: f"refused {each}" for place, each in enumerate(number) if each % 200 == 117}
            if refused:
                raise ItemError(refused)
            time.sleep(0.002)
            for place, each in enumerate(number):
                with batch_item(place):
                    print(each)
            return [ValueError(f"failed {each}") if each % 200 == 17 else each * scale for each in number]
"""

Fate = str  # "succeeded", "failed", "canceled", "crashed", and of a client that has left: "unknown"


def fault_of(number: int) -> str | None:
    """What the model says of a number, if it fails."""
    return {17: f"ValueError: failed {number}", 117: f"refused {number}"}.get(number % 200)


def judge(number: int, scale: int, answer: int | None, error: str) -> Fate:
    """Say how a request ended; fail unless it may end like that. `answer` None: it failed, and `error` says why."""
    if answer is not None:
        assert (answer, fault_of(number)) == (number * scale, None)
        return "succeeded"
    if "SIGKILL" in error:
        return "crashed"
    assert error == fault_of(number), (number, error)
    return "failed"


class Clients:
    """The clients of a server, and what they have seen."""

    def __init__(self, url: str, grpc_url: str, seed: int) -> None:
        self.url = url
        self.grpc_url = grpc_url
        self.seen: Counter[Fate] = Counter()
        self.is_half_done = asyncio.Event()
        self._dice = random.Random(seed)  # noqa: S311
        self._numbers = iter(range(REQUESTS))

    async def go(self) -> None:
        """Ask every API until all numbers have had their turn."""
        async with asyncio.TaskGroup() as group, grpc.aio.insecure_channel(self.grpc_url) as channel:
            stub = GRPCInferenceServiceStub(channel)
            clients = [
                group.create_task(client)
                for _ in range(CLIENTS)
                for client in (self._ask_cog(), self._ask_rest(), self._ask_grpc(stub))
            ]
            await asyncio.wait(clients)

    def _requests(self) -> Iterator[tuple[int, int, float | None]]:
        """Give a number, a scale, and after how many seconds to cancel, if at all."""
        for number in self._numbers:
            if number == REQUESTS // 2:
                self.is_half_done.set()
            leaves = self._dice.choice(MOMENTS) if self._dice.random() < LEAVING else None
            yield number, self._dice.choice(SCALES), leaves

    async def _ask_cog(self) -> None:
        """Cancel by the prediction's id: its own client then hears how it ended."""
        async with connection(self.url) as own, connection(self.url) as other:
            for number, scale, leaves in self._requests():
                body = {"id": f"n{number}", "input": {"number": number, "scale": scale}}
                asked = asyncio.ensure_future(post(own, "/predictions", body))
                if leaves is not None:
                    await asyncio.sleep(leaves)
                    await post(other, f"/predictions/n{number}/cancel", {})
                status, answer = await asked
                assert (status, answer["id"]) == (200, f"n{number}")
                if answer["status"] == "canceled":
                    assert leaves is not None
                    self.seen["canceled"] += 1
                    continue
                fate = judge(number, scale, answer.get("output"), answer.get("error", ""))
                self.seen[fate] += 1
                if fate == "succeeded":
                    assert answer["logs"] == f"{number}\n"
                    assert 1 <= answer["metrics"]["batch_size"] <= MAX_SIZE

    async def _ask_rest(self) -> None:
        """Cancel by disconnecting."""
        requests = self._requests()
        while await self._ask_rest_until_one_leaves(requests):
            pass

    async def _ask_rest_until_one_leaves(self, requests: Iterator[tuple[int, int, float | None]]) -> bool:
        async with connection(self.url) as own:
            for number, scale, leaves in requests:
                values = {"number": number, "scale": scale}
                tensors = [
                    {"name": name, "datatype": "INT64", "shape": [1], "data": [value]} for name, value in values.items()
                ]
                asked = asyncio.ensure_future(post(own, "/v2/models/model/infer", {"inputs": tensors}))
                if leaves is not None:
                    await asyncio.sleep(leaves)
                    asked.cancel()
                    self.seen["unknown"] += 1
                    return True
                status, answer = await asked
                result = answer["outputs"][0]["data"][0] if status == 200 else None
                self.seen[judge(number, scale, result, answer.get("error", ""))] += 1
        return False

    async def _ask_grpc(self, stub: Any) -> None:
        """Cancel the call."""
        for number, scale, leaves in self._requests():
            request = pb.ModelInferRequest(model_name="model")
            for name, value in (("number", number), ("scale", scale)):
                tensor = request.inputs.add(name=name, datatype="INT64", shape=[1])
                tensor.contents.int64_contents.append(value)
            call = stub.ModelInfer(request)
            if leaves is not None:
                await asyncio.sleep(leaves)
                call.cancel()
                self.seen["unknown"] += 1
                continue
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                self.seen[judge(number, scale, None, error.details() or "")] += 1
            else:
                (result,) = struct.unpack("<q", answer.raw_output_contents[0])
                self.seen[judge(number, scale, result, "")] += 1


async def post(own: Connection, path: str, body: object) -> tuple[int, dict[str, Any]]:
    answer = await own.post(path, json.dumps(body).encode(), "content-type: application/json")
    return answer.status, answer.json()


class Books:
    """What the server's metrics say of its model."""

    def __init__(self, text: str) -> None:
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # The parser adds `_total` to the names of Triton, which have none.
                name = sample.name.removesuffix("_total") if sample.name.startswith("nv_") else sample.name
                self._numbers[name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> int:
        return int(self._numbers[name, frozenset({"model": "model", "version": "1", **labels}.items())])

    @property
    def is_calm(self) -> bool:
        """Whether nothing waits or runs any more, and the worker that was killed has its follower."""
        busy = self("geartrain_slots_in_use") + self("nv_inference_pending_request_count")
        return (busy, self("geartrain_replicas_ready")) == (0, 2)


def check_figures(books: Books, statistics: dict[str, Any], seen: Counter[Fate]) -> None:
    """What the server has counted is what the clients have seen; how those ended that left, only the server knows."""
    faults = {reason: books("nv_inference_request_failure", reason=reason) for reason in ("CANCELED", "BACKEND")}
    success = books("nv_inference_request_success")
    unknown = seen["unknown"]
    for counted, told in (
        (success, seen["succeeded"]),
        (faults["BACKEND"], seen["failed"] + seen["crashed"]),
        (faults["CANCELED"], seen["canceled"]),
    ):
        assert told <= counted <= told + unknown
    assert REQUESTS - unknown <= success + sum(faults.values()) <= REQUESTS
    assert books("nv_inference_request_failure", reason="REJECTED") == 0
    assert books("nv_inference_request_failure", reason="OTHER") == 0
    # batches: of requests that came to a run each is in one, those that ran again or were canceled in it included
    calls, rows = books("geartrain_batch_size_count"), books("geartrain_batch_size_sum")
    assert calls == books("nv_inference_exec_count") == statistics["execution_count"]
    assert books("geartrain_batch_size_bucket", le=f"{MAX_SIZE}.0") == calls
    assert success + faults["BACKEND"] <= rows <= success + sum(faults.values())
    assert rows / calls > MAX_SIZE / 4
    batches = {each["batch_size"]: each["compute_infer"]["count"] for each in statistics["batch_stats"]}
    assert (sum(batches.values()), sum(size * count for size, count in batches.items())) == (calls, rows)
    inference = statistics["inference_stats"]
    assert (statistics["inference_count"], books("nv_inference_count")) == (success, success)
    assert inference["success"]["count"] == inference["queue"]["count"] == success
    assert inference["fail"]["count"] == sum(faults.values())
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert abs(inference["success"]["ns"] - sum(inference[part]["ns"] for part in parts)) < 1000


@pytest.mark.slow
async def test_every_request_has_its_own_answer(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MODEL)
    (folder / "geartrain.yaml").write_text("replicas: 2\n")
    process = server_process(str(folder), "--restart", "on-crash", "--grpc-port", "0")
    url = process.wait_for("listening")["url"]
    events = [process.wait_for_one("listening-grpc", "ready") for _ in range(2)]
    clients = Clients(url, next(event["url"] for event in events if "url" in event), seed=5)
    workers = sorted(children(process.popen.pid))
    assert len(workers) == 2
    going = asyncio.ensure_future(clients.go())
    await asyncio.wait(
        (going, half := asyncio.ensure_future(clients.is_half_done.wait())), return_when="FIRST_COMPLETED"
    )
    half.cancel()
    os.kill(workers[0], signal.SIGKILL)
    await going
    seen = clients.seen
    assert seen.total() == REQUESTS
    assert seen["crashed"] <= MAX_SIZE
    assert seen["failed"] > 0 < seen["canceled"]
    async with httpx.AsyncClient(base_url=url) as client:
        while not (books := Books((await client.get("/metrics")).text)).is_calm:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        statistics = (await client.get("/v2/models/model/stats")).json()["model_stats"][0]
    assert books("geartrain_worker_restarts_total") == 1
    check_figures(books, statistics, seen)
