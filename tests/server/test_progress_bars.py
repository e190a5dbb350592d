"""Progress bars of tqdm, wherever what a model prints is shown: as a terminal would show them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from geartrain.domain.printed.text import Printed
from geartrain.domain.printed.updates import INTERVAL
from tests.support import sse
from tests.support.servers import LiveServer, Serve, ServerProcess, write_model
from tests.support.wire import connection

in_module = pytest.mark.asyncio(loop_scope="module")

STEPS = 1000
MODEL = f"""
    import subprocess, sys, time
    from tqdm import tqdm
    from geartrain import BaseRunner, ConcatenateIterator, streaming

    BAR = "from tqdm import tqdm; [None for _ in tqdm(range({STEPS}), mininterval=0, desc='apart', ncols=70)]"

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("before")
            for _ in tqdm(range({STEPS}), mininterval=0, desc="weights", ncols=70):
                pass
            print("after")

        @streaming
        def run(self, what: str = "bar") -> ConcatenateIterator[str]:
            if what == "bar":
                for _ in tqdm(range({STEPS}), mininterval=0, desc="steps", ncols=70):
                    time.sleep(0.0005)
            elif what == "nested":
                for _ in tqdm(range(3), mininterval=0, desc="outer", ncols=70):
                    for _ in tqdm(range(100), mininterval=0, desc="inner", leave=False, ncols=70):
                        pass
            elif what == "print":
                for step in tqdm(range(4), mininterval=0, desc="steps", ncols=70):
                    tqdm.write(f"step {{step}}")
            elif what == "apart":
                subprocess.run([sys.executable, "-c", BAR], check=True)
            yield what
"""
LAST = re.compile(rf"(\w+): 100%\|.*\| {STEPS}/{STEPS} \[.*\]")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


@in_module
async def test_setup_keeps_the_last_state(server: LiveServer) -> None:
    logs = (await server.health())["setup"]["logs"]
    before, bar, after = logs.splitlines()
    assert (before, after) == ("before", "after")
    assert LAST.fullmatch(bar)
    assert len(logs) <= 200


@in_module
@pytest.mark.parametrize("what", ["bar", "apart"])
async def test_logs_keep_the_last_state(server: LiveServer, what: str) -> None:
    logs = (await server.predict({"what": what}))["logs"]
    assert LAST.fullmatch(logs.removesuffix("\n"))


@in_module
async def test_nested_bars(server: LiveServer) -> None:
    logs = (await server.predict({"what": "nested"}))["logs"]
    assert re.fullmatch(r"outer: 100%\|.*\| 3/3 \[.*\]\n\s*", logs)


@in_module
async def test_prints_between_updates(server: LiveServer) -> None:
    logs = (await server.predict({"what": "print"}))["logs"].splitlines()
    assert logs[:4] == ["step 0", "step 1", "step 2", "step 3"]
    assert re.match(r"steps: 100%\|.*\| 4/4 ", logs[4])
    assert len(logs) == 5


@in_module
@pytest.mark.parametrize(("what", "name", "last"), [("bar", "steps", f"{STEPS}/{STEPS}"), ("nested", "outer", "3/3")])
async def test_streams_get_an_update_now_and_then(server: LiveServer, what: str, name: str, last: str) -> None:
    began = time.monotonic()
    async with connection(server.url) as wire:
        stream = await sse.ask(wire, {"what": what})
        events = await stream.rest()
    elapsed = time.monotonic() - began
    updates = [data["data"] for kind, data in events if kind == "log"]
    assert 2 <= len(updates) <= elapsed / INTERVAL + 2  # the first one and the last one come without a pause
    assert all(update.count(name) <= 1 for update in updates)
    (completed,) = [data for kind, data in events if kind == "completed"]
    assert str(Printed("".join(updates))) == completed["logs"]
    assert last in completed["logs"]


def test_run_in_a_pipe_shows_the_last_state(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MODEL)
    command = [sys.executable, "-m", "geartrain", "run", str(folder), "-i", "what=bar"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "bar\n"
    before, weights, after, steps = done.stderr.splitlines()
    assert (before, after) == ("before", "after")
    assert LAST.fullmatch(weights)
    assert LAST.fullmatch(steps)


def test_json_lines_have_the_last_state(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)))
    process.wait_for("ready")
    printed = "".join(line["text"] for line in process.lines if line["message"] == "setup-output")
    assert LAST.fullmatch(printed.splitlines()[1])
    assert len(printed) <= 200
    assert len(json.dumps(process.lines)) < 4000
