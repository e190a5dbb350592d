"""Models that crash, ignore their cancel, fork, or print without end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from geartrain.service.predictions import Limits
from geartrain.service.readers import completion
from geartrain.service.restarts import RestartPolicy
from tests.integration.conftest import LiveServer, Serve, eventually

if TYPE_CHECKING:
    import pytest

CRASHING = """
    import os
    class Runner:
        def run(self, crash: bool = False) -> int:
            if crash:
                os._exit(7)
            return os.getpid()
"""


async def until_ready(server: LiveServer) -> None:
    """Wait for the end of a restart."""
    ready = asyncio.get_running_loop().create_future()
    tell = server.model.on_health
    assert tell is not None

    def on_health(health: str) -> None:
        tell(health)  # type: ignore[arg-type]
        if health in {"READY", "DEFUNCT", "SETUP_FAILED"} and not ready.done():
            ready.set_result(health)

    if server.model.health == "READY":
        return
    server.model.on_health = on_health
    async with asyncio.timeout(10):
        await ready
    server.model.on_health = tell


async def test_a_crashed_worker_is_restarted_if_the_operator_wants_it(serve: Serve) -> None:
    policy = RestartPolicy(limit=2, first_delay=0.05)
    async with serve(CRASHING, restarts=policy) as server:
        first = (await server.predict())["output"]
        for count in (1, 2):
            body = await server.predict({"crash": True})
            assert (body["status"], "exited with code 7" in body["error"]) == ("failed", True)
            await until_ready(server)
            health = await server.health()
            assert health["status"] == "READY"
            assert health["restarts"]["count"] == count
            assert "code 7" in health["restarts"]["last_reason"]
            assert (await server.predict())["output"] != first
        await server.predict({"crash": True})
        assert (await server.health())["status"] == "DEFUNCT"
        assert (await server.client.post("/predictions", json={})).status_code == 503


async def test_while_a_worker_is_restarted_predictions_are_refused_as_during_setup(serve: Serve) -> None:
    async with serve(CRASHING, restarts=RestartPolicy(first_delay=0.2)) as server:
        await server.predict({"crash": True})
        assert (await server.health())["status"] == "STARTING"
        assert (await server.client.post("/predictions", json={})).status_code == 503
        await until_ready(server)


async def test_who_waits_in_the_queue_gets_the_restarted_worker(serve: Serve) -> None:
    async with serve(CRASHING, restarts=RestartPolicy(first_delay=0.05), limits=Limits(queue=5)) as server:
        crash = asyncio.ensure_future(server.predict({"crash": True}))
        others = [asyncio.ensure_future(server.predict()) for _ in range(3)]
        statuses = [(await body)["status"] for body in (crash, *others)]
        assert statuses.count("failed") == 1
        assert statuses.count("succeeded") == 3


async def test_a_run_that_ignores_its_cancel_is_ended_with_its_worker(serve: Serve) -> None:
    source = """
        import ctypes
        sleep = ctypes.PyDLL(None).sleep
        class Runner:
            def run(self) -> None:
                print("in C", flush=True)
                sleep(60)  # holds the interpreter: no signal handler of Python's can run
    """
    async with serve(source, limits=Limits(cancel_grace=0.2)) as server:
        response = await server.client.post(
            "/predictions", json={"id": "stuck", "input": {}}, headers={"Prefer": "respond-async"}
        )
        assert response.status_code == 202
        prediction = await server.said("stuck", "in C")
        assert (await server.client.post("/predictions/stuck/cancel")).status_code == 200
        async with asyncio.timeout(10):
            await completion(prediction)
        assert prediction.status == "canceled"
        health = await server.health()
        assert health["status"] == "DEFUNCT"
        assert "had not ended after 0.2 seconds" in health["user_healthcheck_error"]


async def test_a_model_that_forks_does_not_disturb_its_channel(serve: Serve) -> None:
    source = """
        import multiprocessing, os, sys
        from geartrain import current_scope

        def child(number):
            print("child", number, flush=True)
            current_scope().record_metric("from_child", number)

        class Runner:
            def run(self, how: str) -> str:
                print("before")
                if how == "multiprocessing":
                    context = multiprocessing.get_context("fork")
                    processes = [context.Process(target=child, args=(number,)) for number in range(4)]
                    for process in processes: process.start()
                    for process in processes: process.join()
                else:
                    pid = os.fork()
                    if pid == 0:
                        print("the copy")
                        return "from the copy"
                    os.waitpid(pid, 0)
                return "from the worker"
    """
    async with serve(source) as server:
        for _ in range(2):
            body = await server.predict({"how": "multiprocessing"})
            assert body["output"] == "from the worker"
            assert {f"child {number}" for number in range(4)} <= set(body["logs"].splitlines())
            body = await server.predict({"how": "fork"})
            assert body["output"] == "from the worker"
            assert body["logs"] == "before\nthe copy\n"


async def test_a_hundred_thousand_lines_arrive(serve: Serve) -> None:
    source = """
        class Runner:
            def run(self) -> int:
                for number in range(100_000):
                    print("line", number)
                return 1
    """
    async with serve(source) as server:
        body = await server.predict()
        assert body["logs"].splitlines() == [f"line {number}" for number in range(100_000)]


async def test_logs_without_end_are_cut_and_counted(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    source = """
        class Runner:
            def run(self, loud: bool) -> int:
                if loud:
                    for _ in range(50):
                        print("x" * 1_000_000)
                return 1
    """
    async with serve(source) as server:
        body = await server.predict({"loud": True})
        lines = body["logs"].splitlines()
        assert body["output"] == 1
        assert len(lines) == 34
        assert "17 more lines were dropped" in lines[-1]
        assert (await server.predict({"loud": False}))["logs"] == ""
        await eventually(lambda: "the worker dropped 17 log messages in" in caplog.text)


async def test_an_error_as_long_as_a_book_is_cut(serve: Serve) -> None:
    source = """
        class Runner:
            def run(self) -> int:
                raise ValueError("x" * 20_000_000)
    """
    async with serve(source) as server:
        body = await server.predict()
        assert body["status"] == "failed"
        assert body["error"].startswith("ValueError: xxx")
        assert len(body["error"]) < 300_000
        assert (await server.predict())["status"] == "failed"
