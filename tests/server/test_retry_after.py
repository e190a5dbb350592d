"""`Retry-After` on answers that may be another one later, in every HTTP API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.gates import Gates
from tests.support.servers import Serve, eventually

MODEL = """
    import os, select
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, gate: str) -> str:
            fd = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
            select.select([fd], [], [])
            os.close(fd)
            return gate
"""


@pytest.fixture
def gates(tmp_path: Any) -> Any:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


async def test_who_is_refused_is_told_when_to_come_again(serve: Serve, gates: Gates) -> None:
    gate = str(gates["go"].path)
    async with serve(MODEL) as server:
        prediction = {"id": "held", "input": {"gate": gate}}
        first = asyncio.ensure_future(server.client.post("/predictions", json=prediction))
        await eventually(lambda: server.workers.permits.idle == 0)
        server.deployment.scheduler.pace.seconds = 4.5  # that of runs before
        for headers in ({}, {"prefer": "respond-async"}):
            refused = await server.client.post("/predictions", json={"input": {"gate": gate}}, headers=headers)
            assert (refused.status_code, refused.headers["retry-after"]) == (409, "5")
        taken = await server.client.post("/predictions", json=prediction)
        assert (taken.status_code, taken.headers["retry-after"]) == (409, "5")
        inputs = [{"name": "gate", "datatype": "BYTES", "shape": [1], "data": [gate]}]
        infer = {"inputs": inputs, "parameters": {"timeout": 100_000}}
        late = await server.client.post("/v2/models/model/infer", json=infer)
        assert (late.status_code, "retry-after" in late.headers) == (504, False)
        wrong = await server.client.post("/predictions", json={"input": {}})
        assert (wrong.status_code, "retry-after" in wrong.headers) == (422, False)
        gates["go"].open()
        answer = await first
        assert (answer.status_code, "retry-after" in answer.headers) == (200, False)


async def test_a_full_queue_tells_when_to_come_again(serve: Serve, gates: Gates) -> None:
    gate = str(gates["go"].path)
    async with serve(MODEL) as server:
        first = asyncio.ensure_future(server.client.post("/predictions", json={"input": {"gate": gate}}))
        await eventually(lambda: server.workers.permits.idle == 0)
        inputs = [{"name": "gate", "datatype": "BYTES", "shape": [1], "data": [gate]}]
        server.deployment.scheduler.pace.seconds = 0.01
        limit = 1024
        waiting = [
            asyncio.ensure_future(server.client.post("/v2/models/model/infer", json={"inputs": inputs}, timeout=60))
            for _ in range(64)
        ]
        await eventually(lambda: server.deployment.scheduler.waiting == 64)
        server.deployment.scheduler.waiting += limit - 64  # as if there were as many as there is room for
        try:
            for path, body in (("infer", {"inputs": inputs}), ("generate", {"gate": gate})):
                full = await server.client.post(f"/v2/models/model/{path}", json=body)
                assert (full.status_code, full.headers["retry-after"]) == (503, "11")
        finally:
            server.deployment.scheduler.waiting -= limit - 64
        gates["go"].open()
        for answer in await asyncio.gather(first, *waiting):
            assert answer.status_code == 200


async def test_a_model_that_is_not_ready_may_be_soon(serve: Serve) -> None:
    source = MODEL + "\n        def setup(self) -> None:\n            import time\n            time.sleep(600)\n"
    async with serve(source, ready=False) as server:
        for path in ("/predictions", "/v2/models/model/infer", "/v2/models/model/generate"):
            answer = await server.client.post(path, json={"input": {"gate": "x"}})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), path
