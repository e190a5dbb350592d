"""The process that starts before its model is known: who gets it, and that it never stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from geartrain.bridge import child
from geartrain.bridge.child import ChildWorker, Launch, SetupError
from geartrain.bridge.process import Spare
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.own_metrics import OwnReport
from tests.support.processes import is_there
from tests.support.servers import eventually, write_model

TELLING = """
    import json, os
    from geartrain import BaseRunner

    names = ("GEARTRAIN_REPLICA", "OF_THE_MODEL")

    class Runner(BaseRunner):
        def setup(self) -> None:
            print(json.dumps([os.getpid(), os.getcwd(), {name: os.environ.get(name) for name in names}]))

        def run(self) -> str:
            return ""
"""


class Observer:
    """Keeps what a setup prints."""

    def __init__(self) -> None:
        self.printed = ""

    def on_setup_log(self, source: LogSource, data: str) -> None:
        self.printed += data

    def on_loaded(self, info: WorkerInfo) -> None:
        pass

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        pass

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)

    def on_lost(self, reason: str) -> None:
        pass


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    """That of the workers of a test, which begins it: pytest changes the environment between a fixture and a test."""
    spare = Spare()
    monkeypatch.setattr(child, "SPARE", spare)
    yield spare
    spare.discard()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path.resolve() / "model", TELLING)


def begun(spare: Spare) -> int:
    """Begin it; return its process."""
    spare.begin()
    [process] = spare._processes
    return process.pid


@asynccontextmanager
async def set_up(launch: Launch) -> AsyncIterator[tuple[int, str, dict[str, str | None]]]:
    """Run a worker; give what its model tells: its process, its folder, and two variables."""
    observer = Observer()
    worker = ChildWorker(launch, observer)
    try:
        await worker.start()
        pid, folder, variables = json.loads(observer.printed)
        yield pid, folder, variables
    finally:
        await worker.stop(0)


async def test_the_first_model_gets_it(spare: Spare, model: Path) -> None:
    pid = begun(spare)
    placement = {"GEARTRAIN_REPLICA": "7"}
    async with set_up(Launch("run.py:Runner", model, placement=placement)) as told:
        assert told == (pid, str(model), {**placement, "OF_THE_MODEL": None})
        assert not spare.take()
        async with set_up(Launch("run.py:Runner", model, placement=placement)) as other:
            assert other[0] != pid
            assert other[1:] == told[1:]
    assert not is_there(pid)


async def test_a_model_with_variables_of_its_own_starts_with_them(spare: Spare, model: Path) -> None:
    pid = begun(spare)
    async with set_up(Launch("run.py:Runner", model, {"OF_THE_MODEL": "x"})) as (other, _, variables):
        assert other != pid
        assert variables["OF_THE_MODEL"] == "x"
    [left] = spare.take()
    assert left.pid == pid
    left.discard()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process")
async def test_a_model_with_processors_of_its_own_starts_with_them(spare: Spare, model: Path) -> None:
    pid = begun(spare)
    [cpu, *_] = os.sched_getaffinity(0)
    async with set_up(Launch("run.py:Runner", model, cpus=(cpu,))) as (other, _, _):
        assert other != pid
        assert os.sched_getaffinity(other) == {cpu}


async def test_it_is_ended_where_the_environment_has_changed_since(
    spare: Spare, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = begun(spare)
    monkeypatch.setenv("OF_THE_MODEL", "later")
    async with set_up(Launch("run.py:Runner", model)) as (other, _, variables):
        assert other != pid
        assert variables["OF_THE_MODEL"] == "later"
        assert not is_there(pid)


async def test_a_folder_that_is_gone_is_the_models_fault(spare: Spare, tmp_path: Path) -> None:
    begun(spare)
    worker = ChildWorker(Launch("run.py:Runner", tmp_path / "gone"), Observer())
    with pytest.raises(SetupError, match=r"the model's folder is gone: .*No such file or directory"):
        await worker.start()
    await worker.stop(0)
    assert not spare.take()


def test_discarded_it_is_ended(spare: Spare) -> None:
    pid = begun(spare)
    spare.discard()
    assert not is_there(pid)
    spare.discard()  # nothing happens


def processes_with(variable: str) -> list[Path]:
    """Those that have it in the environment that they were started with."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ends just now, or is not ours
            if variable.encode() in file.read_bytes():
                found.append(file)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("words", "code"),
    [(["no/such/folder"], 1), (["--port", "100000"], 2), (["--no-such-option"], 2), (["--store", "mysql://x"], 1)],
)
async def test_it_ends_with_a_server_that_does_not_start(words: list[str], code: int, model: Path) -> None:
    marker = uuid.uuid4().hex
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "geartrain", "serve", *words, "--grpc-port", "off"],
        check=False,
        capture_output=True,
        cwd=model,
        env={**os.environ, "MARKER": marker},
        timeout=40,
    )
    assert done.returncode == code, done.stderr
    await eventually(lambda: not processes_with(marker))
