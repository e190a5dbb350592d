"""`--profile`: a file for each run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geartrain.server import DebugOptions
from tests.support.servers import PATIENCE, Serve, write_model

pytest.importorskip("pyinstrument")

SYNC = """
    import time
    from geartrain import BaseRunner

    def think(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    class Runner(BaseRunner):
        def run(self, name: str = "x") -> str:
            think(0.05)
            return name
"""
SLOW_CLOCK = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            from pyinstrument import stack_sampler

            stack_sampler._timing_overhead = {"walltime": 1e-6}  # seconds of a reading: pyinstrument warns from 3e-7 on

        def run(self, name: str = "x") -> str:
            return name
"""
ASYNC = """
    import asyncio, time
    from geartrain import BaseRunner, concurrent

    def think_of_one(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def think_of_two(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    class Runner(BaseRunner):
        async def setup(self) -> None:
            self.arrived, self.both = 0, asyncio.Event()

        @concurrent(max=2)
        async def run(self, name: str = "one") -> str:
            self.arrived += 1
            if self.arrived == 2:
                self.both.set()
            await self.both.wait()
            (think_of_one if name == "one" else think_of_two)(0.05)
            return name
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "geartrain", "run", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def functions_of(path: Path) -> set[str]:
    """The names of the functions in a profile for speedscope."""
    document: dict[str, Any] = json.loads(path.read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    return {frame["name"] for frame in document["shared"]["frames"]}


def test_run_writes_its_profile_where_it_says(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SYNC)
    ended = run("--profile", "model", cwd=tmp_path)  # what follows the bare option is the model
    assert ended.stdout == "x\n"
    (path,) = (tmp_path / "profiles").iterdir()
    assert ended.stderr == f"Profile: {path}\n"
    assert path.name.startswith("pred_")
    assert path.name.endswith(".speedscope.json")
    assert {"think", "run"} <= functions_of(path)


def test_a_slow_clock_is_not_told_at_each_run(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SLOW_CLOCK)
    ended = run("--profile", "model", cwd=tmp_path)
    (path,) = (tmp_path / "profiles").iterdir()
    assert ended.stderr == f"Profile: {path}\n"


def test_profile_is_a_page_in_another_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SYNC)
    ended = run("model", "--profile=made/here", "--profile-format", "html", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (path,) = (tmp_path / "made" / "here").iterdir()
    assert path.suffix == ".html"
    assert "think" in path.read_text()


def test_option_takes_no_file(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SYNC)
    ended = run("model", "--profile=model/run.py", cwd=tmp_path)
    assert ended.stderr == "error: --profile=model/run.py: this is a file; give a folder\n"
    assert (model / "run.py").read_text()


async def test_async_runs_at_once_have_a_profile_each(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    async with serve(ASYNC, debugging=DebugOptions(profiles=folder)) as server:
        one, two = await asyncio.gather(server.predict({"name": "one"}), server.predict({"name": "two"}))
        assert "Profile: " in one["logs"]
        of_one = functions_of(folder / f"{one['id']}.speedscope.json")
        of_two = functions_of(folder / f"{two['id']}.speedscope.json")
    thoughts = [names & {"think_of_one", "think_of_two"} for names in (of_one, of_two)]
    assert thoughts == [{"think_of_one"}, {"think_of_two"}]


async def test_clients_name_cannot_leave_the_folder(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "profiles"
    async with serve(SYNC, debugging=DebugOptions(profiles=folder)) as server:
        await server.predict({"name": "x"}, id="../../up")
    assert [path.name for path in folder.iterdir()] == ["_._.._up.speedscope.json"]
