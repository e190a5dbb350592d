"""Observed Cog, sections 1 and 4: setup and its failures, the author's healthcheck, and what the worker finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model
from tests.support.wire import connection

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.one_server(reason="each replica has its own health, and its own state of the model"),
]

SetupEnds = Callable[[LiveServer], Awaitable[None]]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# the author's healthcheck

CHECKED = """
    import asyncio, os, time
    from geartrain import BaseRunner

    mode = "healthy"

    class Runner(BaseRunner):
        def healthcheck(self):
            with open("checks", "a") as checks:
                checks.write("x")
            print("checking")
            if mode == "hang":
                while not os.path.exists("released"):
                    time.sleep(0.002)
            if mode == "raise":
                raise RuntimeError("hc boom")
            if mode == "exit":
                raise SystemExit(3)
            return {"true": True, "none": None, "zero": 0, "text": "x", "false": False}.get(mode, True)

        def run(self, become: str = "", gate: str = "") -> str:
            global mode
            if gate:
                print("begun")
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            mode = become or mode
            return mode
"""
ASYNC_CHECKED = """
    import asyncio, os

    async def helper() -> int:
        return 5

    class Runner:
        async def setup(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.value = True

        async def healthcheck(self):
            assert asyncio.get_running_loop() is self.loop
            await asyncio.sleep(0)
            if isinstance(self.value, str):
                raise RuntimeError(self.value)
            return self.value

        async def run(self, value: bool = True, text: str = "") -> bool:
            self.value = text or value
            return value
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(CHECKED) as server:
        yield server


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("true", None),
        ("none", None),
        ("zero", None),
        ("text", None),
        ("false", "Healthcheck failed: user-defined healthcheck returned False"),
        ("raise", "Healthcheck failed: RuntimeError: hc boom"),
        ("exit", "Healthcheck failed: SystemExit: 3"),
    ],
)
async def test_healthcheck(server: LiveServer, mode: str, error: str | None) -> None:
    await server.predict({"become": mode})
    for _ in range(2):
        health = await server.health()
        assert health["status"] == ("READY" if error is None else "UNHEALTHY")
        assert health.get("user_healthcheck_error") == error
        assert health["setup"]["status"] == "succeeded"
    assert (await server.predict())["output"] == mode  # predictions are accepted all the same


async def test_healthcheck_while_busy(server: LiveServer) -> None:
    for mode, status in (("true", "BUSY"), ("false", "UNHEALTHY"), ("none", "BUSY")):
        gate = f"busy {mode}"
        await server.predict({"become": mode})
        await server.start({"gate": gate}, id=gate)
        await server.said(gate, "begun")
        assert (await server.health())["status"] == status
        server.open_gate(gate)
        await server.ended(gate)


async def test_what_a_healthcheck_prints_is_in_no_prediction(server: LiveServer) -> None:
    await server.predict({"become": "true"})
    await server.health()
    assert (await server.predict())["logs"] == ""


async def test_d26_slow_healthcheck_holds_up_nothing(server: LiveServer) -> None:
    """And those who ask meanwhile share the one that runs."""
    checks = server.root / "checks"
    await server.predict({"become": "hang"})
    checks.write_text("")
    asked = [asyncio.ensure_future(server.health()) for _ in range(3)]
    await eventually(lambda: checks.read_text() == "x")
    for _ in range(20):
        assert (await server.predict())["status"] == "succeeded"
    await server.start({"gate": "never"}, id="d26")
    await server.said("d26", "begun")
    assert (await server.client.post("/predictions/d26/cancel")).status_code == 200
    assert (await server.ended("d26")).status == "canceled"
    assert not any(each.done() for each in asked)
    server.open_gate("released")
    assert [health["status"] for health in await asyncio.gather(*asked)] == ["READY"] * 3
    assert checks.read_text() == "x"
    (server.root / "released").unlink()


async def test_healthcheck_that_takes_too_long(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain.service.workers.pool.HEALTHCHECK_TIMEOUT", 0.1)
    await server.predict({"become": "hang"})
    for _ in range(2):
        health = await server.health()
        assert health["status"] == "UNHEALTHY"
        error = "Healthcheck failed: user-defined healthcheck timed out after 0.1 seconds"
        assert health["user_healthcheck_error"] == error
        assert (await server.predict())["status"] == "succeeded"
    await server.predict({"become": "true"})
    server.open_gate("released")
    await eventually(lambda: server.workers._check._run is None or server.workers._check._run.done())
    assert (await server.health())["status"] == "READY"


async def test_async_healthcheck(serve: Serve) -> None:
    async with serve(ASYNC_CHECKED) as server:
        assert (await server.health())["status"] == "READY"
        await server.predict({"value": False})
        assert (await server.health())["status"] == "UNHEALTHY"
        await server.predict({"text": "async boom"})
        assert (await server.health())["user_healthcheck_error"] == "Healthcheck failed: RuntimeError: async boom"
        await server.predict({"value": True})
        assert (await server.health())["status"] == "READY"


async def test_async_healthcheck_of_a_sync_model(serve: Serve) -> None:
    source = """
        import asyncio
        from geartrain import BaseRunner
        class Runner(BaseRunner):
            async def healthcheck(self) -> bool:
                await asyncio.sleep(0)
                return False
            def run(self) -> str: return "x"
    """
    async with serve(source) as server:
        assert (await server.health())["status"] == "UNHEALTHY"
        assert (await server.predict())["output"] == "x"


async def test_healthcheck_is_not_asked_before_setup_ends(serve: Serve, setup_ends: SetupEnds) -> None:
    source = """
        import os, time
        class Runner:
            def setup(self):
                while not os.path.exists("go"):
                    time.sleep(0.002)
            def healthcheck(self): return False
            def run(self) -> str: return "x"
    """
    async with serve(source, ready=False) as server:
        assert (await server.health())["status"] == "STARTING"
        server.open_gate()
        await setup_ends(server)
        assert (await server.health())["status"] == "UNHEALTHY"


# setup and its failures


async def failed_setup(server: LiveServer, setup_ends: SetupEnds) -> dict[str, Any]:
    """The `setup` part of the health of a server whose setup failed."""
    await setup_ends(server)
    health = await server.health()
    assert health["status"] == "SETUP_FAILED"
    assert "user_healthcheck_error" not in health
    setup: dict[str, Any] = health["setup"]
    assert setup["status"] == "failed"
    assert setup["completed_at"] >= setup["started_at"]
    response = await server.client.post("/predictions", json={})
    assert (response.status_code, response.json()["status"]) == (503, "failed")
    await eventually(lambda: not is_running(server.pid))
    return setup


PRINTS = "print('before'); import sys, os; print('to stderr', file=sys.stderr); os.write(1, b'raw\\n')"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            f"""
            class Runner:
                def setup(self):
                    {PRINTS}
                    raise RuntimeError("boom in setup")
                def run(self) -> str: return "x"
            """,
            ["Traceback", 'raise RuntimeError("boom in setup")', "RuntimeError: boom in setup"],
        ),
        (
            f"""
            class Runner:
                async def setup(self):
                    {PRINTS}
                    raise RuntimeError("async boom")
                async def run(self) -> str: return "x"
            """,
            ["RuntimeError: async boom"],
        ),
        (f"{PRINTS}\nraise ImportError('cannot import this')", ["ImportError", "cannot import this", "run.py"]),
        (f"{PRINTS}\nimport nowhere_to_be_found", ["nowhere_to_be_found", "run.py"]),
        (
            f"""
            class Runner:
                def setup(self):
                    {PRINTS}
                    sys.exit("no model file")
                def run(self) -> str: return "x"
            """,
            ["SystemExit", "no model file"],
        ),
        (
            f"""
            class Runner:
                def setup(self):
                    {PRINTS}
                    os._exit(7)
                def run(self) -> str: return "x"
            """,
            ["crashed", "code 7"],
        ),
        (
            f"""
            class Runner:
                def setup(self):
                    {PRINTS}
                    os.kill(os.getpid(), 9)
                def run(self) -> str: return "x"
            """,
            ["crashed", "SIGKILL"],
        ),
    ],
)
async def test_d13_logs_of_a_failed_setup_are_kept(
    serve: Serve, setup_ends: SetupEnds, source: str, words: list[str]
) -> None:
    async with serve(source, ready=False) as server:
        logs = (await failed_setup(server, setup_ends))["logs"]
        for word in ["before\n", "to stderr\n", "raw\n", *words]:
            assert word in logs


async def test_d13_prints_of_an_instant_setup_are_kept(serve: Serve) -> None:
    source = """
        import ctypes, os
        print("import")
        class Runner:
            def setup(self):
                print("setup", end="")
                os.write(1, b"raw")
                ctypes.CDLL(None).printf(b"printf")
            def run(self) -> str: return "x"
    """
    for _ in range(3):
        async with serve(source) as server:
            logs = (await server.health())["setup"]["logs"]
            assert logs.startswith("import\n")
            assert {word for word in ("setup", "raw", "printf") if word in logs} == {"setup", "raw", "printf"}
            assert (await server.predict())["logs"] == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Other:\n    def other(self) -> str: ...", ["Runner", "Other"]),
        ("class Runner:\n    def run(self) -> str: ...\n    def predict(self) -> str: ...", ["run", "predict"]),
        ("class Runner: pass", ["run"]),
        ("def run(x) -> str: ...", ["x", "annotation"]),
        ("def run(x: bytes) -> str: ...", ["x", "bytes"]),
        ("def run(*args: str) -> str: ...", ["args"]),
        ("def run(: -> str: ...", ["SyntaxError", "run.py", "1"]),
        (
            "class Runner:\n    def __init__(self): raise ValueError('in init')\n    def run(self) -> str: ...",
            ["in init"],
        ),
        ("from geartrain import Input\ndef run(n: int = Input(default=0, ge=1)) -> str: ...", ["n", "1"]),
    ],
)
async def test_model_that_cannot_be_loaded(serve: Serve, setup_ends: SetupEnds, source: str, words: list[str]) -> None:
    async with serve(source, ready=False) as server:
        logs = (await failed_setup(server, setup_ends))["logs"]
        for word in words:
            assert word in logs


async def test_sync_run_with_several_slots_is_refused(serve: Serve, setup_ends: SetupEnds) -> None:
    environ = {"COG_MAX_CONCURRENCY": "2"}
    async with serve("def run() -> str: return 'x'", environ=environ, ready=False) as server:
        assert "async" in (await failed_setup(server, setup_ends))["logs"]


async def test_d21_setup_timeout_ends_the_worker(serve: Serve, setup_ends: SetupEnds) -> None:
    source = """
        import os, subprocess, time
        class Runner:
            def setup(self):
                print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
                while True:
                    try:
                        time.sleep(600)
                    except BaseException:
                        pass
            def run(self) -> str: return "x"
    """
    async with serve(source, ready=False, setup_timeout=4) as server:
        logs = (await failed_setup(server, setup_ends))["logs"]
        assert "worker setup timed out" in logs
        child = int(logs.split()[1])
        await eventually(lambda: not is_running(child))


async def test_cog_setup_timeout(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    source = "import time\ntime.sleep(600)\ndef run() -> str: ..."
    process = server_process(str(write_model(tmp_path / "model", source)), env={"COG_SETUP_TIMEOUT": "0.2"})
    line = await asyncio.to_thread(process.wait_for, "setup-failed")
    assert "timed out" in str(line)


# what the worker finds


async def test_surroundings_of_a_model(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import os, sys
        import helper
        class Runner:
            def setup(self, weights: str | None = None) -> None:
                self.weights = weights
            def run(self) -> dict:
                return {
                    "cwd": os.getcwd(),
                    "env": [os.environ.get("FROM_YAML"), os.environ.get("INHERITED")],
                    "argv": len(sys.argv),
                    "helper": helper.VALUE,
                    "name": __name__,
                    "data": open("data.txt").read(),
                    "stdin": sys.stdin.read(),
                    "weights": self.weights,
                }
    """
    monkeypatch.setenv("INHERITED", "inherited")
    cog_yaml = """
        run: "model.py:Runner"
        environment:
          - FROM_YAML=a=b
    """
    folder = write_model(tmp_path / "elsewhere", source, cog_yaml)
    (folder / "run.py").rename(folder / "model.py")
    (folder / "helper.py").write_text("VALUE = 'helped'")
    (folder / "data.txt").write_text("data")
    async with serve(folder, environ={"COG_WEIGHTS": "http://example.com/weights"}) as server:
        assert (await server.predict())["output"] == {
            "argv": 1,
            "cwd": str(folder.resolve()),
            "data": "data",
            "env": ["a=b", "inherited"],
            "helper": "helped",
            "name": "model",
            "stdin": "",
            "weights": "http://example.com/weights",
        }


@pytest.mark.parametrize(
    ("decorator", "cog_yaml", "environ", "slots"),
    [
        ("", None, {}, 1),
        ("@concurrent(max=2)", None, {}, 2),
        ("@concurrent(max=2)", "concurrency:\n  max: 3", {}, 3),
        ("@concurrent(max=2)", "concurrency:\n  max: 3", {"COG_MAX_CONCURRENCY": "4"}, 4),
        ("@concurrent(max=2)", None, {"COG_MAX_CONCURRENCY": "0"}, 2),
        ("", None, {"COG_MAX_CONCURRENCY": "garbage"}, 1),
    ],
)
async def test_number_of_slots(
    serve: Serve, decorator: str, cog_yaml: str | None, environ: dict[str, str], slots: int
) -> None:
    source = f"from geartrain import concurrent\n{decorator}\nasync def run() -> str: return 'x'"
    async with serve(source, cog_yaml=cog_yaml, environ=environ) as server:
        assert server.workers.permits.size == slots
        assert (await server.predict())["output"] == "x"


async def test_health_can_be_asked_as_fast_as_it_is_answered(server: LiveServer) -> None:
    await server.predict({"become": "true"})
    async with connection(server.url) as wire:
        for _ in range(500):
            answer = await wire.ask(b"GET /health-check HTTP/1.1\r\nhost: t\r\n\r\n")
            assert answer.json()["status"] == "READY"


async def test_a10_setup_logs_are_in_the_order_of_writing(serve: Serve) -> None:
    source = """
        import os, sys
        class Runner:
            def setup(self):
                for number in range(50):
                    print("python", number, file=sys.stderr if number % 3 else sys.stdout)
                    os.write(1, f"raw {number}\\n".encode())
            def run(self) -> str:
                return ""
    """
    async with serve(source) as server:
        logs = (await server.health())["setup"]["logs"]
    assert logs.splitlines() == [f"{kind} {number}" for number in range(50) for kind in ("python", "raw")]
