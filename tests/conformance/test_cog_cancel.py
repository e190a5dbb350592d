"""Observed Cog, section 12: cancel and disconnect."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support import modes
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.wire import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYNC = """
    import os, time
    from geartrain import BaseRunner, CancelationException
    import geartrain

    class Runner(BaseRunner):
        def run(self, mode: str = "", gate: str = "never") -> str:
            try:
                print("begun")  # in here: whoever reads it may cancel at once
                if mode == "blocked":
                    time.sleep(0.3)
                    return "slept to the end"
                while not os.path.exists(gate):
                    if mode == "spin":
                        sum(range(1000))
                    else:
                        time.sleep(0.002)
                return "not canceled"
            except CancelationException as error:
                assert geartrain.CancellationException is CancelationException
                print("caught", type(error).__name__, isinstance(error, Exception))
                if mode == "swallow":
                    return "swallowed"
                if mode == "other":
                    raise ValueError("another error")
                if mode == "exit":
                    raise SystemExit(1)
                if mode == "slow":
                    while not os.path.exists("cleaned"):
                        time.sleep(0.002)
                raise
            except Exception as error:
                print("a cancel is no Exception")
            finally:
                print("finally")
"""
GENERATOR = """
    import os, time
    from collections.abc import Iterator

    def run(mode: str = "") -> Iterator[int]:
        try:
            for i in range(1_000_000):
                yield i
                if i == 2:
                    print("three")
                if mode != "flood":
                    time.sleep(0.002)
        finally:
            print("closed")
"""
ASYNC = """
    import asyncio, os
    from geartrain import concurrent

    @concurrent(max=2)
    async def run(mode: str = "", gate: str = "never", text: str = "") -> str:
        print("begun", text)
        try:
            while not os.path.exists(gate):
                await asyncio.sleep(0.002)
            if mode == "says so":
                raise ValueError("this was cancelled by user")
            if mode == "itself":
                raise asyncio.CancelledError("not by a client")
            if mode == "its task":
                task = asyncio.create_task(asyncio.sleep(60))
                task.cancel()
                await task
            return text
        except asyncio.CancelledError:
            print("caught CancelledError")
            if mode == "swallow":
                return "swallowed"
            if mode == "other":
                raise ValueError("another error")
            if mode == "slow":
                while not os.path.exists("cleaned"):
                    await asyncio.sleep(0.002)
                print("cleaned up")
            raise
"""
ASYNC_GENERATOR = """
    import asyncio
    from typing import AsyncIterator

    async def run() -> AsyncIterator[int]:
        try:
            for i in range(1_000_000):
                yield i
                if i == 2:
                    print("three")
                await asyncio.sleep(0.002)
        finally:
            print("closed")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SYNC) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generator(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(GENERATOR, name="generator") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def concurrent(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ASYNC, name="concurrent") as server:
        yield server


async def cancel(server: LiveServer, prediction_id: str, status: int = 200) -> None:
    response = await server.client.post(f"/predictions/{prediction_id}/cancel")
    assert (response.status_code, response.json()) == (status, {})
    assert response.headers["content-type"] == "application/json"


async def usable(server: LiveServer) -> None:
    """Every slot is back and the worker lives."""
    assert (await server.health())["status"] == "READY"
    for _ in range(3):
        assert (await server.predict({"gate": "."}))["status"] == "succeeded"


async def test_unknown_id_is_404(server: LiveServer) -> None:
    await cancel(server, "nobody", 404)
    await server.predict({"gate": "."}, id="finished")
    await cancel(server, "finished", 404)


async def test_async_prediction(server: LiveServer) -> None:
    await server.start(id="a1")
    await server.said("a1", "begun")
    await cancel(server, "a1")
    prediction = await server.ended("a1")
    assert prediction.status == "canceled"
    assert prediction.logs == "begun\ncaught CancelationException False\nfinally\n"
    assert (prediction.output, prediction.error) == (None, None)
    await cancel(server, "a1", 404)
    await usable(server)


async def test_sync_prediction_from_another_connection(server: LiveServer) -> None:
    """The documents say it cannot be; that it can is no harm."""
    asked = asyncio.ensure_future(server.predict({"mode": "spin"}, id="s1"))
    await server.said("s1", "begun")
    await cancel(server, "s1")
    body = await asked
    assert (body["status"], body["id"]) == ("canceled", "s1")
    assert "output" not in body
    await usable(server)


async def test_put_prediction_with_an_encoded_id(server: LiveServer) -> None:
    asked = asyncio.ensure_future(server.client.put("/predictions/r%2F3%20x", json={}))
    await server.said("r/3 x", "begun")
    await cancel(server, "r%2F3%20x")
    assert (await asked).json()["status"] == "canceled"


@pytest.mark.parametrize("body", [b"", b"{bad", b'{"reason":"x"}', b"x" * 100_000])
async def test_body_of_a_cancel_is_ignored(server: LiveServer, body: bytes) -> None:
    prediction_id = f"b{len(body)}"
    await server.start(id=prediction_id)
    async with connection(server.url) as wire:
        assert (await wire.post(f"/predictions/{prediction_id}/cancel", body)).status == 200
        assert (await wire.post("/predictions/nobody/cancel", b"")).status == 404
    assert (await server.ended(prediction_id)).status == "canceled"


async def test_repeated_cancels(server: LiveServer) -> None:
    await server.start({"mode": "slow"}, id="r1")
    await server.said("r1", "begun")
    await cancel(server, "r1")
    await server.said("r1", "caught")
    for _ in range(5):
        await cancel(server, "r1")
    server.open_gate("cleaned")
    prediction = await server.ended("r1")
    assert prediction.status == "canceled"
    assert prediction.logs.count("caught") == 1
    assert prediction.logs.endswith("finally\n")
    await usable(server)


@pytest.mark.parametrize("mode", ["swallow", "other", "exit", "blocked", "spin"])
async def test_whatever_the_model_makes_of_it(server: LiveServer, mode: str) -> None:
    asked = asyncio.ensure_future(server.predict({"mode": mode}, id=mode))
    await server.said(mode, "begun")
    await cancel(server, mode)
    body = await asked
    assert body["status"] == "canceled"
    assert "output" not in body
    assert "error" not in body
    await usable(server)


async def test_generator_is_closed(generator: LiveServer) -> None:
    for mode in ("calm", "flood"):
        await generator.start({"mode": mode}, id=mode)
        await generator.said(mode, "three")
        await cancel(generator, mode)
        prediction = await generator.ended(mode)
        assert prediction.status == "canceled"
        assert prediction.logs.endswith("closed\n")
        assert prediction.chunks[:3] == [b"0", b"1", b"2"]
        assert (await generator.health())["status"] == "READY"


async def test_async_generator_is_closed(serve: Serve) -> None:
    async with serve(ASYNC_GENERATOR) as server:
        asked = asyncio.ensure_future(server.predict(id="g"))
        await server.said("g", "three")
        await cancel(server, "g")
        body = await asked
        assert (body["status"], body["logs"]) == ("canceled", "three\nclosed\n")
        assert body["output"][:3] == [0, 1, 2]
        assert (await server.health())["status"] == "READY"


# async models


@pytest.mark.parametrize("mode", ["", "swallow", "other"])
async def test_async_model(concurrent: LiveServer, mode: str) -> None:
    await concurrent.start({"text": "neighbour", "gate": f"n{mode}"}, id=f"n{mode}")
    asked = asyncio.ensure_future(concurrent.predict({"mode": mode}, id=f"c{mode}"))
    await concurrent.said(f"c{mode}", "begun")
    await cancel(concurrent, f"c{mode}")
    body = await asked
    assert (body["status"], body["logs"]) == ("canceled", "begun \ncaught CancelledError\n")
    concurrent.open_gate(f"n{mode}")
    assert (await concurrent.ended(f"n{mode}")).output == b'"neighbour"'
    await usable(concurrent)


@pytest.mark.one_server(reason="it looks at the slots of one server")
async def test_async_model_whose_cleanup_is_slow(concurrent: LiveServer) -> None:
    """The client is answered, the slot stays taken until the cleanup is over, and its prints are nobody else's."""
    asked = asyncio.ensure_future(concurrent.predict({"mode": "slow"}, id="slow"))
    await concurrent.said("slow", "begun")
    await cancel(concurrent, "slow")
    assert (await asked)["status"] == "canceled"
    await cancel(concurrent, "slow", 404)
    await concurrent.start({"gate": "other slot", "text": "other"}, id="other")
    assert (await concurrent.client.post("/predictions", json={})).status_code == 409
    concurrent.open_gate("cleaned")
    await eventually(lambda: concurrent.workers.permits.idle == 1)
    concurrent.open_gate("other slot")
    assert (await concurrent.ended("other")).logs == "begun other\n"
    await usable(concurrent)


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("says so", "ValueError: this was cancelled by user"),
        ("itself", "CancelledError: not by a client"),
        ("its task", "CancelledError"),
    ],
)
async def test_d27_only_a_cancel_makes_it_canceled(concurrent: LiveServer, mode: str, error: str) -> None:
    body = await concurrent.predict({"mode": mode, "gate": "."})
    assert (body["status"], body["error"]) == ("failed", error)
    await usable(concurrent)


async def test_d27_in_sync_code(serve: Serve) -> None:
    source = """
        from geartrain import CancelationException
        def run(own: bool) -> str:
            if own:
                raise CancelationException("raised by the model itself")
            raise ValueError("cancelled")
    """
    async with serve(source) as server:
        body = await server.predict({"own": False})
        assert (body["status"], body["error"]) == ("failed", "ValueError: cancelled")
        assert (await server.predict({"own": True}))["status"] == "failed"
        assert (await server.health())["status"] == "READY"


# at once


@pytest.mark.parametrize("which", ["server", "concurrent"])
async def test_d28_cancel_right_after_the_202(which: str, server: LiveServer, concurrent: LiveServer) -> None:
    """It interrupts, however early it comes: none of these would ever end by itself."""
    server = server if which == "server" else concurrent
    async with connection(server.url) as wire:
        for number in range(50):
            body = json.dumps({"id": f"early{number}"}).encode()
            headers = ("content-type: application/json", "prefer: respond-async")
            assert (await wire.post("/predictions", body, *headers)).status == 202
            assert (await wire.post(f"/predictions/early{number}/cancel", b"")).status == 200
            assert (await server.ended(f"early{number}")).status == "canceled"
    await usable(server)


@pytest.mark.without_store(reason="an id is of one prediction for as long as the store knows it")
@pytest.mark.parametrize("which", ["server", "concurrent"])
async def test_id_of_a_canceled_prediction_can_be_used_again(
    which: str, server: LiveServer, concurrent: LiveServer
) -> None:
    server = server if which == "server" else concurrent
    for _ in range(3):
        await server.start(id="again")
        await cancel(server, "again")
        assert (await server.ended("again")).status == "canceled"
        assert (await server.predict({"gate": "."}, id="again"))["status"] == "succeeded"


@pytest.mark.parametrize("which", ["server", "concurrent"])
async def test_cancel_at_any_moment(which: str, server: LiveServer, concurrent: LiveServer) -> None:
    """Cancels that race with the end: one status or the other, never a stuck slot or a cancel of the next one."""
    server = server if which == "server" else concurrent
    names = itertools.count() if modes.current().has_store else itertools.repeat("race")  # a store keeps an id
    bodies = (json.dumps({"id": f"{name}", "input": {"gate": "."}}).encode() for name in names)
    async with connection(server.url) as one, connection(server.url) as two:
        for number in range(100):
            body = next(bodies)
            await one.send(
                b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            for _ in range(number % 5):
                await asyncio.sleep(0)
            assert (await two.post(f"/predictions/{json.loads(body)['id']}/cancel", b"")).status in {200, 404}
            assert (await one.answer()).json()["status"] in {"succeeded", "canceled"}
            answer = await one.post("/predictions", next(bodies), "content-type: application/json")
            assert (answer.status, answer.json()["status"]) == (200, "succeeded")


# disconnect


async def test_disconnect_cancels_a_sync_prediction(server: LiveServer) -> None:
    for number in range(3):
        body = json.dumps({"id": f"h{number}", "input": {}}).encode()
        async with connection(server.url) as wire:
            await wire.send(
                b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            await server.said(f"h{number}", "begun")
        prediction = await server.ended(f"h{number}")
        assert prediction.status == "canceled"
        assert (prediction.completed_at or 0) - prediction.created_at < 2
    await usable(server)


async def test_disconnect_cancels_a_put(concurrent: LiveServer) -> None:
    async with connection(concurrent.url) as wire:
        await wire.send(b"PUT /predictions/hp HTTP/1.1\r\nhost: t\r\n\r\n")
        await concurrent.said("hp", "begun")
    assert (await concurrent.ended("hp")).status == "canceled"
    await usable(concurrent)


async def test_a2_put_after_a_disconnect_runs(concurrent: LiveServer) -> None:
    async with connection(concurrent.url) as wire:
        await wire.send(b"PUT /predictions/a2 HTTP/1.1\r\nhost: t\r\n\r\n")
        await concurrent.said("a2", "begun")
    asked = asyncio.ensure_future(concurrent.client.put("/predictions/a2", json={"input": {"gate": "."}}))
    response = await asked
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")
    assert response.json()["input"] == {"gate": "."}
    again = await concurrent.client.put("/predictions/a2", json={})
    assert (again.status_code, again.json()) == (200, response.json())  # a7: the kept prediction


async def test_a8_disconnect_cancels_nothing_that_somebody_was_told_of(concurrent: LiveServer) -> None:
    async with connection(concurrent.url) as wire:
        body = b'{"input":{"gate":"told"}}'
        await wire.send(
            b"PUT /predictions/a8 HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        await concurrent.said("a8", "begun")
        assert (await concurrent.client.put("/predictions/a8", json={})).status_code == 202
    await usable(concurrent)  # by then the server has read the end of the connection
    concurrent.open_gate("told")
    assert (await concurrent.ended("a8")).status == "succeeded"


async def test_disconnect_of_one_who_looked_at_it_cancels_nothing(server: LiveServer) -> None:
    await server.start({"gate": "looked"}, id="l")
    async with connection(server.url) as wire:
        assert (await wire.ask(b"PUT /predictions/l HTTP/1.1\r\nhost: t\r\n\r\n")).status == 202
    server.open_gate("looked")
    assert (await server.ended("l")).status == "succeeded"


@pytest.mark.own_wire(reason="a host may start what somebody who has left has asked for")
async def test_many_clients_that_hang_up(server: LiveServer) -> None:
    for _ in range(20):
        async with connection(server.url) as wire:
            await wire.send(b"POST /predictions HTTP/1.1\r\nhost: t\r\n\r\n")
        await eventually(lambda: not server.predictions.live)
    await usable(server)


async def test_half_a_request_is_no_prediction(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        await wire.send(
            b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
        )
    await usable(server)
