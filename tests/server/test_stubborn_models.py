"""Models that crash, ignore their cancel, fork, or print without end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from geartrain.bridge.child import SetupError
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.project.source import find_model
from geartrain.server.workers import launch
from geartrain.service.models.deployment import Limits
from geartrain.service.readers import completion
from geartrain.service.workers.pool import RestartPolicy
from tests.support.servers import LiveServer, Serve, eventually, write_model

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
    await eventually(lambda: server.workers.health in {"READY", "DEFUNCT", "SETUP_FAILED"})


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
        from geartrain import CancelationException
        sleep = ctypes.PyDLL(None).sleep  # holds the interpreter: no signal handler of Python's can run
        class Runner:
            def run(self) -> None:
                try:
                    print("in C", flush=True)
                    sleep(60)
                except CancelationException:  # it came before the interpreter was held
                    sleep(60)
    """
    async with serve(source, limits=Limits(cancel_grace=0.2)) as server:
        response = await server.client.post(
            "/predictions", json={"id": "stuck", "input": {}}, headers={"Prefer": "respond-async"}
        )
        assert response.status_code == 202
        prediction = await server.said("stuck", "in C")
        assert (await server.client.post("/predictions/stuck/cancel")).status_code == 200
        async with asyncio.timeout(40):
            await completion(prediction)
        assert prediction.status == "canceled"
        await eventually(lambda: server.workers.health is Health.DEFUNCT)  # when its process is gone
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
        assert len(lines) < 34
        assert "characters are left out" in lines[0]
        assert "17 more lines were dropped" in lines[-1]
        assert (await server.predict({"loud": False}))["logs"] == ""
        await eventually(lambda: "the worker dropped 17 log messages in" in caplog.text)


FAILING = """
    import gc
    from collections.abc import AsyncIterator, Iterator
    class Runner:
        def run(self, look: bool = False) -> Iterator[str]:
            if look:
                gc.disable()
                gc.collect()
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                yield str([type(each).__name__ for each in gc.garbage if type(each) in (Lost, Given)])
                gc.garbage.clear()
            else:
                given = Given()
                yield "a"
                raise Lost(given)
    class Given:
        pass
    class Lost(Exception):
        pass
"""
FAILING_ASYNC = FAILING.replace("def run", "async def run").replace("-> Iterator", "-> AsyncIterator")


@pytest.mark.parametrize("source", [FAILING, FAILING_ASYNC], ids=["sync", "async"])
async def test_s2_runs_that_fail_leave_no_cycle_in_their_worker(serve: Serve, source: str) -> None:
    async with serve(source) as server:
        await server.predict({"look": True})  # from here on, the collector is off
        for _ in range(3):
            assert (await server.predict({}))["status"] == "failed"
        assert (await server.predict({"look": True}))["output"] == ["[]"]


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


# a worker that dies while it starts anew

SLOW_TO_START = """
    import os, pathlib
    class Runner:
        def setup(self):
            starts = pathlib.Path("starts")
            with starts.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            match pathlib.Path(f"start-{len(starts.read_text().splitlines())}").exists():
                case True:
                    with open("gate", "rb", buffering=0) as gate:
                        gate.read(1)
        def run(self, crash: bool = False) -> int:
            if crash:
                os._exit(7)
            return os.getpid()
"""
FAILING_LATER = """
    import os, pathlib
    class Runner:
        def setup(self):
            if pathlib.Path("broken").exists():
                raise ValueError("no weights")
        def run(self, crash: bool = False) -> int:
            if crash:
                os._exit(7)
            return os.getpid()
"""
DYING_WHEN_READY = """
    import os
    from geartrain.worker.runtime.sync_engine import SyncEngine

    SyncEngine.serve = lambda *_: os._exit(9)  # right after the worker has said that it is ready

    def run() -> str:
        return "done"
"""


def _starts(server: LiveServer) -> list[int]:
    """The process ids of the workers that have begun their setup, in their order."""
    file = server.root / "starts"
    return [int(line) for line in file.read_text().split("\n") if line] if file.exists() else []


async def test_a9_a_worker_killed_while_it_starts_anew_is_restarted(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SLOW_TO_START)
    os.mkfifo(folder / "gate")
    (folder / "start-2").touch()  # these two wait in their setup
    (folder / "start-3").touch()
    async with serve(folder, restarts=RestartPolicy(limit=50, first_delay=0.01)) as server:
        await server.predict({"crash": True})
        for count in (2, 3):
            await eventually(lambda count=count: len(_starts(server)) == count)  # type: ignore[misc]
            os.kill(_starts(server)[-1], signal.SIGKILL)
            await eventually(lambda count=count: server.workers.restarts.count == count)  # type: ignore[misc]
            health = await server.health()
            assert health["status"] == "STARTING"
            assert "killed by SIGKILL" in health["user_healthcheck_error"]
            assert "killed by SIGKILL" in health["restarts"]["last_reason"]
        await until_ready(server)
        assert (await server.health())["status"] == "READY"
        assert (await server.predict())["output"] == _starts(server)[3]


async def test_a9_deaths_at_the_start_end_at_the_limit(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SLOW_TO_START)
    os.mkfifo(folder / "gate")
    for number in (2, 3):
        (folder / f"start-{number}").touch()
    async with serve(folder, restarts=RestartPolicy(limit=2, first_delay=0.01)) as server:
        await server.predict({"crash": True})
        for count in (2, 3):
            await eventually(lambda count=count: len(_starts(server)) == count)  # type: ignore[misc]
            os.kill(_starts(server)[-1], signal.SIGKILL)
        await eventually(lambda: server.workers.health == "DEFUNCT")
        health = await server.health()
        reason = health["user_healthcheck_error"]
        assert reason.startswith("Worker crashed: killed by SIGKILL")
        assert reason.endswith("; no further restart: the limit of restarts in a row is 2")
        assert health["setup"]["status"] == "failed"
        assert health["restarts"]["count"] == 2
        assert (await server.client.post("/predictions", json={})).status_code == 503


async def test_a9_a_setup_that_raises_in_a_restart_is_tried_again(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAILING_LATER)
    async with serve(folder, restarts=RestartPolicy(limit=50, first_delay=0.01, longest_delay=0.05)) as server:
        (folder / "broken").touch()
        await server.predict({"crash": True})
        await eventually(lambda: server.workers.restarts.count >= 2)
        health = await server.health()
        assert health["status"] == "STARTING"
        assert health["user_healthcheck_error"] == "setup() failed: ValueError: no weights"
        (folder / "broken").unlink()
        await until_ready(server)
        assert isinstance((await server.predict())["output"], int)


async def test_a9_the_first_start_is_not_repeated(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAILING_LATER)
    (folder / "broken").touch()
    async with serve(folder, ready=False, restarts=RestartPolicy(first_delay=0)) as server:
        await eventually(lambda: server.workers.health == "SETUP_FAILED")
        assert "restarts" not in await server.health()


class Deaths:
    """Hears of a worker that has been ready."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_setup_log(self, source: str, data: str) -> None:
        """Nothing is printed."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """Nothing is asked of it."""

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """It has none."""

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)

    def on_lost(self, reason: str) -> None:
        self.reasons.append(reason)


async def test_a9_a_worker_that_dies_as_soon_as_it_is_ready_is_noticed(tmp_path: Path) -> None:
    source = find_model(str(write_model(tmp_path / "model", DYING_WHEN_READY)), environ={})
    deaths = Deaths()
    child = launch(source, deaths)
    starting = asyncio.ensure_future(child.start())
    await asyncio.sleep(0)  # it is watched from here on
    with contextlib.suppress(ChildProcessError):  # who watches it has been faster
        os.waitid(os.P_PID, child._process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop is to see none of it
    try:  # all that it has said, and its end, come to the loop at once: one of the two has to tell, and not both
        async with asyncio.timeout(40):
            await starting
        await eventually(lambda: bool(deaths.reasons))
    except SetupError as error:
        deaths.reasons.append(str(error))
    await child.stop(0)
    assert deaths.reasons == ["Worker crashed: exited with code 9"]
