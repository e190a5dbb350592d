"""What Cog has not, and its users ask for: a queue instead of 409, and asking for a prediction by its id."""

from __future__ import annotations

import asyncio
import time

import pytest

from geartrain.domain.principal import ANYONE
from geartrain.service.models.deployment import Limits
from tests.support.servers import LiveServer, Serve

GATED = """
    import os, time
    class Runner:
        def run(self, name: str) -> str:
            while not os.path.exists(name) and not os.path.exists("all"):
                time.sleep(0.002)
            return name
"""


async def start(server: LiveServer, name: str) -> int:
    response = await server.client.post(
        "/predictions", json={"id": name, "input": {"name": name}}, headers={"Prefer": "respond-async"}
    )
    return response.status_code


async def status(server: LiveServer, name: str) -> str:
    response = await server.client.get(f"/predictions/{name}")
    assert response.status_code == 200
    value: str = response.json()["status"]
    return value


async def over(server: LiveServer, name: str) -> str:
    prediction = server.predictions.look_up(name, ANYONE)
    assert prediction is not None
    if not prediction.is_terminal:
        from geartrain.service.readers import completion

        async with asyncio.timeout(40):
            await completion(prediction)
    return await status(server, name)


def open_gate(server: LiveServer, name: str) -> None:
    (server.root / name).touch()


async def test_without_a_queue_the_next_one_is_refused(serve: Serve) -> None:
    async with serve(GATED) as server:
        assert [await start(server, name) for name in "ab"] == [202, 409]
        open_gate(server, "all")
        assert await over(server, "a") == "succeeded"


async def test_predictions_wait_their_turn(serve: Serve) -> None:
    async with serve(GATED, limits=Limits(queue=2)) as server:
        assert [await start(server, name) for name in "abcd"] == [202, 202, 202, 409]
        assert [await status(server, name) for name in "abc"] == ["processing", "starting", "starting"]
        assert (await server.health())["status"] == "BUSY"
        open_gate(server, "a")
        assert await over(server, "a") == "succeeded"
        assert [await status(server, name) for name in "bc"] == ["processing", "starting"]
        assert await start(server, "d") == 202
        open_gate(server, "all")
        assert [await over(server, name) for name in "bcd"] == ["succeeded"] * 3
        assert (await server.health())["status"] == "READY"


async def test_a_waiting_prediction_can_be_canceled_and_leaves_its_place(serve: Serve) -> None:
    async with serve(GATED, limits=Limits(queue=1)) as server:
        assert [await start(server, name) for name in "abc"] == [202, 202, 409]
        assert (await server.client.post("/predictions/b/cancel")).status_code == 200
        assert await status(server, "b") == "canceled"
        assert (await server.client.post("/predictions/b/cancel")).status_code == 404
        assert await start(server, "c") == 202
        open_gate(server, "all")
        assert [await over(server, name) for name in "ac"] == ["succeeded"] * 2


async def test_a9_predict_time_is_the_run_alone(serve: Serve) -> None:
    """The run is instant. What fails is the upload of its file, after the client that takes it has waited."""
    source = """
        from geartrain import Path
        def run(n: int) -> Path:
            with open("out.txt", "w") as file:
                file.write("text")
            return Path("out.txt")
    """

    async def refuse_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.6)  # the slow upload that is measured
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse_late, "127.0.0.1", 0) as receiver:
        port = receiver.sockets[0].getsockname()[1]
        async with serve(source, upload_url=f"http://127.0.0.1:{port}/") as server:
            began = time.monotonic()
            body = await server.predict({"n": 1})
    assert body["status"] == "failed"
    assert time.monotonic() - began > 0.6
    assert 0 < body["metrics"]["predict_time"] < 0.5


async def test_a9_predict_time_without_a_run_is_zero(serve: Serve) -> None:
    async with serve(GATED, limits=Limits(queue=1)) as server:
        assert [await start(server, name) for name in "ab"] == [202, 202]
        assert (await server.client.post("/predictions/b/cancel")).status_code == 200
        body = (await server.client.get("/predictions/b")).json()
        assert (body["status"], body["metrics"]["predict_time"]) == ("canceled", 0.0)
        open_gate(server, "all")


async def test_a_sync_client_waits_in_the_queue_and_gets_its_own_answer(serve: Serve) -> None:
    async with serve(GATED, limits=Limits(queue=10)) as server:
        open_gate(server, "all")
        bodies = await asyncio.gather(*(server.predict({"name": str(number)}) for number in range(11)))
        assert [body["output"] for body in bodies] == [str(number) for number in range(11)]


async def test_who_waits_for_a_worker_that_died_is_told(serve: Serve) -> None:
    async with serve(GATED, limits=Limits(queue=1)) as server:
        assert [await start(server, name) for name in "ab"] == [202, 202]
        server.worker.kill("for this test")
        assert [await over(server, name) for name in "ab"] == ["failed", "failed"]
        body = (await server.client.get("/predictions/b")).json()
        assert "worker is gone" in body["error"]
        assert "started_at" not in body


async def test_a_finished_prediction_can_be_looked_up(serve: Serve) -> None:
    async with serve(GATED) as server:
        open_gate(server, "all")
        assert await start(server, "a") == 202
        assert await over(server, "a") == "succeeded"
        body = (await server.client.get("/predictions/a")).json()
        assert (body["output"], body["input"]) == ("a", {"name": "a"})
        assert (await server.client.head("/predictions/a")).status_code == 200
        assert (await server.client.get("/predictions/nobody")).status_code == 404
        # A PUT of a kept id returns the kept prediction (a7).
        response = await server.client.put("/predictions/a", json={"input": {"name": "again"}})
        assert response.json()["output"] == "a"
        assert (await server.client.get("/predictions/a")).json()["output"] == "a"


async def test_what_nobody_can_ask_for_is_not_kept(serve: Serve) -> None:
    async with serve(GATED) as server:
        open_gate(server, "all")
        body = await server.predict({"name": "x"})
        assert (await server.client.get(f"/predictions/{body['id']}")).status_code == 404


@pytest.mark.parametrize("keep", [0.0])
async def test_nothing_is_kept_if_the_operator_does_not_want_it(serve: Serve, keep: float) -> None:
    async with serve(GATED, limits=Limits(keep=keep)) as server:
        open_gate(server, "all")
        body = await server.predict({"name": "x"}, id="mine")
        assert body["id"] == "mine"
        assert (await server.client.get("/predictions/mine")).status_code == 404
