"""Observed Cog, sections 8 and 11: synchronous, asynchronous and idempotent predictions, and what their bodies hold."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from geartrain.service.models.deployment import Limits
from tests.support.servers import LiveServer, Serve
from tests.support.wire import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRELUDE = """
    import os, time
    from collections.abc import Iterator
    from geartrain import BaseRunner, Secret, current_scope

    def pass_gate(gate: str) -> None:
        while gate and not os.path.exists(gate):
            time.sleep(0.002)

    class MyError(Exception):
        pass
"""
MODEL = (
    PRELUDE
    + """
    class Runner(BaseRunner):
        def run(self, mode: str = "", n: int = 0, gate: str = "", secret: Secret = None) -> dict:
            self.record_metric("n", n)
            print("begun")
            pass_gate(gate)
            match mode:
                case "raise": raise ValueError("bad thing")
                case "mute": raise MyError
                case "lines": raise RuntimeError("one\\ntwo é")
                case "exit": raise SystemExit(3)
                case "interrupt": raise KeyboardInterrupt("ki")
                case "unprintable": raise Unprintable
                case "group": raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])
                case "chain":
                    try:
                        {}["inner"]
                    except KeyError as error:
                        raise MyError("outer") from error
                case "recursion": return self.run(mode)
                case "memory": raise MemoryError
                case "stop": raise StopIteration("x")
            return {"n": n}

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")
"""
)
GENERATOR = (
    PRELUDE
    + """
    class Runner(BaseRunner):
        def run(self, n: int = 3, gate: str = "", fail: bool = False) -> Iterator[str]:
            for i in range(n):
                print(f"yielding {i}")
                yield f"c{i}"
            print("waiting")
            pass_gate(gate)
            if fail:
                raise RuntimeError("midstream")
"""
)
ASYNC = """
    import asyncio, os
    from geartrain import concurrent

    @concurrent(max=2)
    async def run(mode: str = "", gate: str = "", text: str = "") -> str:
        print("begun", text)
        while gate and not os.path.exists(gate):
            await asyncio.sleep(0.002)
        if mode == "raise":
            raise ValueError("async bad")
        return text
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generator(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(GENERATOR, name="generator") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def concurrent(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ASYNC, name="concurrent") as server:
        yield server


def moments(body: dict[str, Any]) -> list[datetime]:
    return [datetime.fromisoformat(body[name]) for name in ("created_at", "started_at", "completed_at")]


# section 8: synchronous


async def test_success(server: LiveServer) -> None:
    response = await server.client.post("/predictions", json={"id": "s1", "input": {"n": 4}})
    assert response.status_code == 200
    body = response.json()
    created, started, completed = moments(body)
    assert created <= started <= completed
    predict_time = body["metrics"]["predict_time"]
    assert isinstance(predict_time, float)
    assert 0 < predict_time < 60
    assert body == {
        "completed_at": body["completed_at"],
        "created_at": body["created_at"],
        "id": "s1",
        "input": {"n": 4},
        "logs": "begun\n",
        "metrics": {"n": 4, "predict_time": predict_time},
        "output": {"n": 4},
        "started_at": body["started_at"],
        "status": "succeeded",
    }


async def test_moments_are_rfc_3339(server: LiveServer) -> None:
    body = await server.predict()
    for name in ("created_at", "started_at", "completed_at"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,9}\+00:00", body[name])


async def test_input_is_echoed_as_it_came(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        answer = await wire.post(
            "/predictions", b'{"input":{"n":7.0,"mode":"\xc3\xa9"}}', "content-type: application/json"
        )
        assert b'"input":{"n":7.0,"mode":"\xc3\xa9"}' in answer.body


async def test_secret_is_masked_in_the_echo(server: LiveServer) -> None:
    body = await server.predict({"secret": "hunter2"})
    assert body["input"] == {"secret": "**********"}


async def test_generated_ids(server: LiveServer) -> None:
    ids = [(await server.predict())["id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(re.fullmatch(r"pred_[0-9a-f]{32}", each) for each in ids)


async def test_d1_slot_is_free_when_the_answer_is_there(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        for _ in range(300):
            answer = await wire.post("/predictions", b'{"input":{}}', "content-type: application/json")
            assert answer.status == 200, answer.body
    for _ in range(30):
        async with connection(server.url) as wire:
            assert (await wire.post("/predictions", b"{}", "content-type: application/json")).status == 200
        assert (await server.health())["status"] == "READY"


async def test_d1_also_after_failures(server: LiveServer) -> None:
    for _ in range(50):
        assert (await server.predict({"mode": "raise"}))["status"] == "failed"


async def test_d1_also_with_several_slots(concurrent: LiveServer) -> None:
    async def one(number: int) -> None:
        for _ in range(50):
            assert (await concurrent.predict({"text": str(number)}))["output"] == str(number)

    await asyncio.gather(one(1), one(2))


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("raise", "ValueError: bad thing"),
        ("mute", "MyError"),
        ("lines", "RuntimeError: one\ntwo é"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt: ki"),
        ("group", "ExceptionGroup: several (2 sub-exceptions)"),
        ("chain", "MyError: outer"),
        ("memory", "MemoryError"),
        ("stop", "StopIteration: x"),
    ],
)
async def test_d4_error_is_type_and_message(server: LiveServer, mode: str, error: str) -> None:
    response = await server.client.post("/predictions", json={"input": {"mode": mode}})
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["error"]) == ("failed", error)
    assert "output" not in body
    assert all(moments(body))
    assert body["metrics"]["predict_time"] > 0
    assert (await server.predict({"n": 1}))["output"] == {"n": 1}  # the worker survives


async def test_d4_traceback_is_in_the_logs(server: LiveServer) -> None:
    logs = (await server.predict({"mode": "chain"}))["logs"]
    assert logs.startswith("begun\nTraceback (most recent call last):\n")
    assert logs.endswith("MyError: outer\n")
    assert "KeyError: 'inner'" in logs
    assert 'run.py", line ' in logs
    assert '{}["inner"]' in logs  # the line itself
    assert "geartrain/worker" not in logs


@pytest.mark.parametrize(("mode", "error"), [("unprintable", "Unprintable: "), ("recursion", "RecursionError: ")])
async def test_error_whose_text_is_hard_to_get(server: LiveServer, mode: str, error: str) -> None:
    body = await server.predict({"mode": mode})
    assert body["status"] == "failed"
    assert body["error"].startswith(error)


async def test_d3_failed_body_has_logs_and_partial_output(generator: LiveServer) -> None:
    body = await generator.predict({"n": 2, "fail": True})
    assert (body["status"], body["error"]) == ("failed", "RuntimeError: midstream")
    assert body["logs"].startswith("yielding 0\nyielding 1\nwaiting\nTraceback")
    assert body["output"] == ["c0", "c1"]


async def test_d3_canceled_body_has_logs_and_partial_output(generator: LiveServer) -> None:
    asked = asyncio.ensure_future(generator.predict({"n": 2, "gate": "never"}, id="d3"))
    await generator.said("d3", "waiting")
    assert (await generator.client.post("/predictions/d3/cancel")).status_code == 200
    body = await asked
    assert body["status"] == "canceled"
    assert body["logs"] == "yielding 0\nyielding 1\nwaiting\n"
    assert body["output"] == ["c0", "c1"]
    assert "error" not in body
    assert all(moments(body))
    assert body["metrics"]["predict_time"] > 0


async def test_failure_before_the_first_chunk_has_no_output(generator: LiveServer) -> None:
    assert "output" not in await generator.predict({"n": 0, "fail": True})


async def test_error_of_an_async_run(concurrent: LiveServer) -> None:
    body = await concurrent.predict({"mode": "raise"})
    assert (body["status"], body["error"]) == ("failed", "ValueError: async bad")
    assert body["logs"].startswith("begun \nTraceback")


@pytest.mark.one_server(reason="another replica has a free slot")
async def test_all_slots_busy_is_409(server: LiveServer) -> None:
    await server.start({"gate": "g409"}, id="holder")
    expected = {"error": "At capacity - all prediction slots busy (--queue lets requests wait)", "status": "failed"}
    for method, path in (("POST", "/predictions"), ("PUT", "/predictions/another")):
        for headers in ({}, {"prefer": "respond-async"}):
            response = await server.client.request(method, path, json={}, headers=headers)
            assert (response.status_code, response.json()) == (409, expected)
    server.open_gate("g409")
    await server.ended("holder")


@pytest.mark.one_server(reason="another replica has a free slot")
async def test_as_many_at_once_as_there_are_slots(concurrent: LiveServer) -> None:
    for number in range(2):
        await concurrent.start({"gate": "g2", "text": str(number)}, id=f"n{number}")
    assert (await concurrent.health())["status"] == "BUSY"
    assert (await concurrent.client.post("/predictions", json={})).status_code == 409
    concurrent.open_gate("g2")
    for number in range(2):
        prediction = await concurrent.ended(f"n{number}")
        assert prediction.output == json.dumps(str(number)).encode()
        assert prediction.logs == f"begun {number}\n"


async def test_busy_slot_leaves_health_ready_while_another_is_free(concurrent: LiveServer) -> None:
    await concurrent.start({"gate": "g1"}, id="one")
    assert (await concurrent.health())["status"] == "READY"
    concurrent.open_gate("g1")
    await concurrent.ended("one")


# section 11: asynchronous


async def test_respond_async(server: LiveServer) -> None:
    body = await server.start({"n": 1, "gate": "ga"}, id="c1")
    assert (body["id"], body["status"], body["input"]) == ("c1", "starting", {"n": 1, "gate": "ga"})
    assert "output" not in body
    assert datetime.fromisoformat(body["created_at"]).tzinfo is not None
    server.open_gate("ga")
    prediction = await server.ended("c1")
    assert (prediction.status, prediction.output) == ("succeeded", b'{"n":1}')


async def test_respond_async_makes_an_id(server: LiveServer) -> None:
    body = await server.start()
    assert re.fullmatch(r"pred_[0-9a-f]{32}", body["id"])
    await server.ended(body["id"])


@pytest.mark.parametrize("prefer", ["wait=5", 'note="a, respond-async"', "respond-asynchronously", ""])
async def test_other_preferences_mean_sync(server: LiveServer, prefer: str) -> None:
    response = await server.client.post("/predictions", json={}, headers={"prefer": prefer})
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")


@pytest.mark.parametrize(
    "prefer", [["Respond-Async"], ["wait=10, respond-async"], ["respond-async;x=y"], ["wait=5", "RESPOND-ASYNC"]]
)
async def test_a11_prefer_is_a_list_without_case(server: LiveServer, prefer: list[str]) -> None:
    headers = [("prefer", value) for value in prefer]
    response = await server.client.post("/predictions", json={}, headers=headers)
    assert (response.status_code, response.json()["status"]) == (202, "starting")
    await server.ended(response.json()["id"])


async def test_async_prediction_survives_its_client(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        body = b'{"id":"alone","input":{"gate":"gc"}}'
        answer = await wire.post("/predictions", body, "content-type: application/json", "prefer: respond-async")
        assert answer.status == 202
        wire.hang_up()
    server.open_gate("gc")
    assert (await server.ended("alone")).status == "succeeded"


# section 11: idempotent


async def test_put_runs_under_the_id_of_its_url(server: LiveServer) -> None:
    for body in ({}, {"id": "p1"}, {"id": None}):
        response = await server.client.put("/predictions/p1", json={**body, "input": {"n": 2}})
        assert response.status_code == 200
        assert (response.json()["id"], response.json()["output"]) == ("p1", {"n": 2})


async def test_put_without_a_body(server: LiveServer) -> None:
    response = await server.client.put("/predictions/p2")
    assert (response.status_code, response.json()["output"]) == (200, {"n": 0})


async def test_put_async(server: LiveServer) -> None:
    response = await server.client.put("/predictions/p3", json={}, headers={"prefer": "respond-async"})
    assert (response.status_code, response.json()["status"]) == (202, "starting")
    assert response.json()["id"] == "p3"
    await server.ended("p3")


async def test_put_with_another_id_in_its_body(server: LiveServer) -> None:
    response = await server.client.put("/predictions/p4", json={"id": "other"})
    assert response.status_code == 422
    assert response.json() == {
        "detail": [
            {
                "loc": ["body", "id"],
                "msg": "prediction ID must match the ID supplied in the URL",
                "type": "value_error",
            }
        ]
    }


@pytest.mark.parametrize(
    ("content", "prefer"),
    [
        ('{"input":{"n":5}}', ""),
        ('{"input":{"n":5}}', "respond-async"),
        ('{"input":{"n":"not even valid"}}', ""),
        ("{}", ""),
    ],
)
async def test_put_on_a_running_id_is_a_snapshot(generator: LiveServer, content: str, prefer: str) -> None:
    gate = f"gp{len(content)}{prefer}"
    values = {"n": 2, "gate": gate}
    accepted = await generator.start(values, id=gate)
    await generator.said(gate, "waiting")
    headers = {"content-type": "application/json", "prefer": prefer}
    for _ in range(2):
        response = await generator.client.put(f"/predictions/{gate}", content=content, headers=headers)
        assert response.status_code == 202
        body = response.json()
        assert body == {
            "created_at": accepted["created_at"],
            "id": gate,
            "input": values,
            "logs": "yielding 0\nyielding 1\nwaiting\n",
            "metrics": {},
            "output": ["c0", "c1"],
            "started_at": body["started_at"],
            "status": "processing",
        }
    generator.open_gate(gate)
    await generator.ended(gate)


async def test_put_without_a_body_on_a_running_id(server: LiveServer) -> None:
    await server.start({"gate": "gq"}, id="q")
    await server.said("q", "begun")
    response = await server.client.put("/predictions/q")
    assert (response.status_code, response.json()["metrics"]) == (202, {"n": 0})
    assert "output" not in response.json()
    server.open_gate("gq")
    await server.ended("q")


async def test_snapshot_masks_secrets(server: LiveServer) -> None:
    await server.start({"gate": "gs", "secret": "hunter2"}, id="sec")
    response = await server.client.put("/predictions/sec", json={})
    assert "hunter2" not in response.text
    server.open_gate("gs")
    await server.ended("sec")


async def test_put_beside_a_sync_prediction_answers_at_once(server: LiveServer) -> None:
    first = asyncio.ensure_future(server.client.put("/predictions/twice", json={"input": {"gate": "gt"}}))
    await server.said("twice", "begun")
    assert (await server.client.put("/predictions/twice", json={})).status_code == 202
    server.open_gate("gt")
    assert (await first).json()["status"] == "succeeded"


async def test_a7_put_on_a_finished_id_returns_the_kept_prediction(server: LiveServer) -> None:
    """As the API document says, and as with a store. Coglet runs again, which `--keep 0` has here."""
    first = await server.client.put("/predictions/again", json={"input": {"n": 1}})
    assert first.json()["output"] == {"n": 1}
    again = await server.client.put("/predictions/again", json={"input": {"n": 2}})
    assert (again.status_code, again.json()) == (200, first.json())
    again = await server.client.put("/predictions/again", json={"input": {}}, headers={"prefer": "respond-async"})
    assert (again.status_code, again.json()) == (202, first.json())


@pytest.mark.without_store(reason="a store keeps an id whatever `--keep` says")
async def test_a7_put_on_a_finished_id_runs_again_if_none_is_kept(serve: Serve) -> None:
    async with serve("def run(n: int) -> int:\n    return n\n", limits=Limits(keep=0.0)) as server:
        for n in (1, 2):
            response = await server.client.put("/predictions/again", json={"input": {"n": n}})
            assert response.json()["output"] == n


async def test_concurrent_puts_make_one_prediction(concurrent: LiveServer) -> None:
    def put() -> asyncio.Future[int]:
        return asyncio.ensure_future(status_of_put())

    async def status_of_put() -> int:
        return (await concurrent.client.put("/predictions/same", json={"input": {"gate": "gm"}})).status_code

    pending = {put() for _ in range(8)}
    while len(pending) > 1:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result() for each in done} == {202}
    concurrent.open_gate("gm")
    assert await pending.pop() == 200


@pytest.mark.without_store(reason="an id is of one prediction for as long as the store knows it")
async def test_d14_one_id_is_one_live_prediction(concurrent: LiveServer) -> None:
    """With a free slot, a second POST of a running id must not hide the first prediction."""
    await concurrent.start({"gate": "g14"}, id="d14")
    await concurrent.said("d14", "begun")
    response = await concurrent.client.post("/predictions", json={"id": "d14"})
    assert response.status_code == 409
    assert "d14" in response.json()["error"]
    assert (await concurrent.predict(id="other"))["status"] == "succeeded"
    assert (await concurrent.client.put("/predictions/d14", json={})).json()["input"] == {"gate": "g14"}
    assert (await concurrent.client.post("/predictions/d14/cancel")).status_code == 200
    assert (await concurrent.ended("d14")).status == "canceled"
    assert (await concurrent.predict(id="d14"))["status"] == "succeeded"
