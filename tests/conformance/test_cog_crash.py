"""Observed Cog, section 19: a worker that dies, code that tries to end it, and ids that wedged a slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from geartrain.bridge.child import ChildWorker
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.wire import connection

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.one_server(reason="a client cannot tell which of the replicas has crashed"),
]

MODEL = """
    import ctypes, os, signal, subprocess, sys, time
    from collections.abc import Iterator
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, how: str = "", gate: str = "") -> Iterator[str]:
            yield "chunk"
            self.record_metric("n", 1)
            print("last words")
            os.write(2, b"raw words")
            if how == "child":
                print("child", subprocess.Popen(["sleep", "600"]).pid)
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            match how:
                case "_exit": os._exit(3)
                case "kill" | "child": os.kill(os.getpid(), signal.SIGKILL)
                case "term": signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)
                case "segfault": ctypes.string_at(0)
                case "abort": os.abort()
"""
ASYNC = """
    import asyncio, os, signal, sys, threading
    from geartrain import concurrent

    def leave() -> None:
        raise SystemExit(4)

    async def leave_soon() -> None:
        await asyncio.sleep(0)
        sys.exit(5)

    @concurrent(max=2)
    async def run(how: str = "", gate: str = "") -> str:
        print("begun")
        while gate and not os.path.exists(gate):
            await asyncio.sleep(0.002)
        match how:
            case "exit": sys.exit(2)
            case "interrupt": raise KeyboardInterrupt
            case "generator exit": raise GeneratorExit
            case "base": raise BaseException("of the base")
            case "task":
                task = asyncio.create_task(leave_soon())
                await asyncio.sleep(0.01)
                assert task.done()
            case "awaited task":
                await asyncio.create_task(leave_soon())
            case "callback":
                asyncio.get_running_loop().call_soon(leave)
                await asyncio.sleep(0.01)
            case "thread":
                threading.excepthook = lambda _: None
                await asyncio.to_thread(threading.Thread(target=sys.exit).run)
            case "stop the loop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(0.01)
            case "cancel all":
                for task in asyncio.all_tasks():
                    task.cancel()
                await asyncio.sleep(0)
            case "_exit": os._exit(3)
        return "done"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def concurrent(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ASYNC, name="concurrent") as server:
        yield server


async def is_defunct(server: LiveServer, reason: str) -> None:
    """The worker is gone for good and says why; everything else works; nothing hangs."""
    health = await server.health()
    assert health["status"] == "DEFUNCT"
    assert health["setup"]["status"] == "succeeded"
    assert reason in health["user_healthcheck_error"]
    for method, path in (("POST", "/predictions"), ("PUT", "/predictions/x")):
        for headers in ({}, {"prefer": "respond-async"}):
            response = await server.client.request(method, path, json={}, headers=headers)
            assert response.status_code == 503
            assert response.json()["status"] == "failed"
            assert "worker" in response.json()["error"]
    assert (await server.client.post("/predictions/x/cancel")).status_code == 404
    assert (await server.client.post("/predictions", json={"input": {"nope": 1}})).status_code in {422, 503}
    for path in ("/", "/docs", "/openapi.json", "/health-check"):
        assert (await server.client.get(path)).status_code == 200
    with pytest.raises(ProcessLookupError):  # no zombie either
        os.kill(server.pid, 0)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("_exit", "exited with code 3"),
        ("kill", "SIGKILL"),
        ("term", "SIGTERM"),
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
    ],
)
async def test_d17_worker_that_dies_in_a_prediction(serve: Serve, how: str, reason: str) -> None:
    async with serve(MODEL) as server:
        response = await server.client.post("/predictions", json={"id": "p", "input": {"how": how}})
        assert response.status_code == 200
        body = response.json()
        assert body["status"] == "failed"
        assert body["error"].startswith("Worker crashed: ")
        assert reason in body["error"]
        assert body["input"] == {"how": how}
        assert body["output"] == ["chunk"]
        assert body["metrics"]["n"] == 1
        assert body["completed_at"] >= body["started_at"]
        assert "last words\n" in body["logs"]
        assert "raw words" in body["logs"]
        if how == "segfault":
            assert "Fatal Python error: Segmentation fault" in body["logs"]
            assert "run.py" in body["logs"]
        await is_defunct(server, reason)


async def test_d17_worker_that_is_killed_while_idle(serve: Serve) -> None:
    async with serve(MODEL) as server:
        assert (await server.predict())["status"] == "succeeded"
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: server.workers.health == "DEFUNCT", 5)
        await is_defunct(server, "SIGKILL")


async def test_d17_next_prediction_after_a_crash_does_not_hang(serve: Serve) -> None:
    """The server may not have noticed yet: then the prediction fails, and is not lost."""
    async with serve(MODEL) as server:
        os.kill(server.pid, signal.SIGKILL)
        response = await server.client.post("/predictions", json={})
        assert response.json()["status"] == "failed"
        if response.status_code == 200:
            assert "Worker crashed" in response.json()["error"]
        await is_defunct(server, "SIGKILL")


async def test_d17_every_running_prediction_fails(serve: Serve) -> None:
    async with serve(ASYNC) as server:
        asked = asyncio.ensure_future(server.predict({"gate": "never"}, id="sync"))
        await server.said("sync", "begun")
        await server.start({"how": "_exit", "gate": "go"}, id="async")
        server.open_gate()
        bodies = [await asked, vars_of(await server.ended("async"))]
        assert [body["status"] for body in bodies] == ["failed", "failed"]
        assert {body["error"] for body in bodies} == {"Worker crashed: exited with code 3"}
        await is_defunct(server, "code 3")


def vars_of(prediction: Any) -> dict[str, Any]:
    return {"status": prediction.status, "error": prediction.error}


async def test_what_the_model_has_started_dies_with_it(serve: Serve) -> None:
    async with serve(MODEL) as server:
        logs = (await server.predict({"how": "child"}))["logs"]
        child = int(logs.partition("child ")[2].split()[0])
        await eventually(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())


async def test_cancel_of_a_prediction_whose_worker_has_died(serve: Serve) -> None:
    async with serve(MODEL) as server:
        await server.start({"gate": "never"}, id="p")
        await server.said("p", "last words")
        os.kill(server.pid, signal.SIGKILL)
        assert (await server.client.post("/predictions/p/cancel")).status_code in {200, 404}
        assert (await server.ended("p")).status in {"failed", "canceled"}
        await is_defunct(server, "SIGKILL")


async def test_client_that_hangs_up_as_the_worker_dies(serve: Serve) -> None:
    async with serve(MODEL) as server:
        asked = asyncio.ensure_future(server.predict({"gate": "never"}, id="p"))
        await server.said("p", "last words")
        os.kill(server.pid, signal.SIGKILL)
        asked.cancel()
        await server.ended("p")
        await is_defunct(server, "SIGKILL")


async def test_d17_nothing_is_sent_to_a_client_in_the_workers_place(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the connection of the slots is gone and the worker not yet known to be, its descriptor may be a client's."""
    async with serve(MODEL) as server, contextlib.AsyncExitStack() as stack:
        exits: list[int] = []
        monkeypatch.setattr(server.worker, "_on_exit", exits.append)
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: exits != [] and server.worker._slots.calls.lost.is_set())
        wires = [await stack.enter_async_context(connection(server.url)) for _ in range(8)]
        for wire in wires:  # each has been accepted, and so has its descriptor
            assert (await wire.ask(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n")).status == 200
        await wires[0].send(b"POST /predictions HTTP/1.1\r\nhost: t\r\n\r\n")
        await eventually(lambda: not server.workers.permits.idle)
        for wire in wires[1:]:
            assert (await wire.post("/predictions", b"")).status == 409
        ChildWorker._on_exit(server.worker, exits[0])
        assert (await wires[0].answer()).json()["error"].startswith("Worker crashed")
        await is_defunct(server, "SIGKILL")


# code that tries to end the worker


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("exit", "SystemExit: 2"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator exit", "GeneratorExit"),
        ("base", "BaseException: of the base"),
        ("awaited task", "SystemExit: 5"),
        ("task", None),
        ("callback", None),
        ("thread", None),
    ],
)
async def test_d18_exit_in_async_code_ends_no_worker(concurrent: LiveServer, how: str, error: str | None) -> None:
    await concurrent.start({"gate": f"go {how}"}, id=how)
    await concurrent.said(how, "begun")
    body = await concurrent.predict({"how": how})
    if error is None:
        assert body["status"] in {"succeeded", "failed"}
    else:
        assert (body["status"], body["error"]) == ("failed", error)
    concurrent.open_gate(f"go {how}")  # the neighbour does not notice
    assert (await concurrent.ended(how)).output == b'"done"'
    assert (await concurrent.health())["status"] == "READY"
    for _ in range(3):
        assert (await concurrent.predict())["output"] == "done"


@pytest.mark.parametrize("how", ["stop the loop", "cancel all"])
async def test_d18_tampering_with_the_loop_hangs_nobody(serve: Serve, how: str) -> None:
    async with serve(ASYNC) as server:
        async with asyncio.timeout(40):
            response = await server.client.post("/predictions", json={"input": {"how": how}})
            assert response.json()["status"] in {"succeeded", "failed"}
            after = (await server.client.post("/predictions", json={})).json()
        assert (await server.health())["status"] == ("READY" if after["status"] == "succeeded" else "DEFUNCT")


# ids


FILES = """
    from geartrain import Path, current_scope

    def run(image: Path, name: str = "out.txt") -> list[Path]:
        print("read", image.read_text())
        Path("out.txt").write_text(current_scope().prediction_id)
        return [Path("out.txt")]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(FILES, name="files") as server:
        yield server


async def runs(server: LiveServer, prediction_id: str) -> None:
    """A prediction with files coming in and going out, under an id."""
    body = await server.predict({"image": "data:text/plain,content"}, id=prediction_id)
    assert (body["status"], body["id"]) == ("succeeded", prediction_id), body
    assert body["logs"] == "read content\n"
    assert (await server.health())["status"] == "READY"


@pytest.mark.without_store(reason="an id is of one prediction for as long as the store knows it")
@pytest.mark.parametrize("prediction_id", ["x" * 256, "é" * 200, "x" * 1024, "\0", "\n", "CON", "a\\b", "%00", " "])
async def test_d22_id_that_is_no_file_name_wedges_nothing(files: LiveServer, prediction_id: str) -> None:
    for _ in range(2):
        await runs(files, prediction_id)


async def test_d22_id_of_an_absurd_length_is_refused(files: LiveServer) -> None:
    for response in (
        await files.client.post("/predictions", json={"id": "x" * 1025, "input": {"image": "data:,x"}}),
        await files.client.put(f"/predictions/{'x' * 1025}", json={"input": {"image": "data:,x"}}),
    ):
        assert response.status_code == 422
        [fault] = response.json()["detail"]
        assert fault["loc"] == ["body", "id"]
        assert len(response.content) < 1000
    assert (await files.health())["status"] == "READY"


async def test_d23_id_leads_nowhere(files: LiveServer, tmp_path: Path) -> None:
    parents = (files.root, files.root.parent, tmp_path)
    await runs(files, "ordinary")  # it has left its own file behind

    def present() -> list[list[str]]:
        return [sorted(path.name for path in parent.iterdir()) for parent in parents]

    before = present()
    for prediction_id in ("../../d23", "..", ".", "/", str(tmp_path / "d23"), "../" * 20 + str(tmp_path)[1:] + "/d23"):
        await runs(files, prediction_id)
    assert present() == before
