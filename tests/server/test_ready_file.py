"""The file that tells Kubernetes that the server is ready. Nothing here is written outside of the test's own folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gates import Gates
from tests.support.servers import write_model

# `geartrain serve` with another path, which an operator cannot choose.
SERVE = """
import logging, pathlib, sys
from geartrain.cli import serving
from geartrain.cli.logs import configure
from geartrain.server import ServeOptions, run_server
from geartrain.transport.grpc.options import GrpcOptions

target, ready_file, load = sys.argv[1:]
configure("debug", "json")
sys.exit(run_server(ServeOptions(
    source=serving.find_source(target, "predict", reload=False),
    host="127.0.0.1",
    port=0,
    grpc=GrpcOptions(port=None),
    load=frozenset() if load == "none" else None,
    ready_file=pathlib.Path(ready_file),
)))
"""
WAITING = """
    class Runner:
        def setup(self) -> None:
            open({gate!r}, "rb", buffering=0).read(1)
        def run(self) -> str: return "x"
"""


class Process:
    """A server whose log can be waited for."""

    def __init__(self, target: Path, ready_file: Path, load: str = "all") -> None:
        command = [sys.executable, "-c", SERVE, str(target), str(ready_file), load]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def wait_for(self, message: str) -> dict[str, Any]:
        assert self.popen.stderr is not None
        for text in self.popen.stderr:
            line: dict[str, Any] = json.loads(text)
            if message in line["message"]:
                return line
        pytest.fail(f"the server ended without saying {message}")

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self.popen.stderr is not None:
            self.popen.stderr.close()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Process] = []

    def run(*arguments: Any, **options: Any) -> Process:
        started.append(Process(*arguments, **options))
        return started[-1]

    yield run
    for process in started:
        process.end()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


def test_c8_file_is_there_when_the_model_is_ready(start: Start, tmp_path: Path, gates: Gates) -> None:
    gate = gates["setup"]
    folder = write_model(tmp_path / "model", WAITING.format(gate=str(gate.path)))
    ready = tmp_path / "var" / "run" / "cog" / "ready"
    server = start(folder, ready)
    server.wait_for("listening")
    assert not ready.exists()
    gate.open()
    server.wait_for("ready")
    server.popen.terminate()
    assert server.popen.wait(20) == 0
    assert ready.read_bytes() == b""


def test_c8_file_waits_for_every_model(start: Start, tmp_path: Path, gates: Gates) -> None:
    for name in ("cats", "dogs"):
        write_model(tmp_path / "models" / name, WAITING.format(gate=str(gates[name].path)))
    ready = tmp_path / "ready"
    server = start(tmp_path / "models", ready)
    server.wait_for("listening")
    gates["cats"].open()
    assert server.wait_for("ready")["model"] == "cats"
    assert not ready.exists()
    gates["dogs"].open()
    assert server.wait_for("ready")["model"] == "dogs"
    server.popen.terminate()
    assert server.popen.wait(20) == 0
    assert ready.exists()


def test_c8_server_that_loads_nothing_is_ready(start: Start, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "cats", "def run() -> str: ...")
    server = start(tmp_path / "models", tmp_path / "ready", load="none")
    server.wait_for("listening")
    assert (tmp_path / "ready").exists()


def test_c8_file_that_cannot_be_written_is_no_error(start: Start, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "def run() -> str: ...")
    (tmp_path / "taken").touch()  # where a folder is needed: not even root can write below it
    server = start(folder, tmp_path / "taken" / "ready")
    line = server.wait_for("cannot be written")
    assert line["level"] == "debug"
    assert line["message"] == f"the ready file {tmp_path}/taken/ready cannot be written: File exists"
    server.popen.terminate()
    assert server.popen.wait(20) == 0


def test_c8_setup_that_failed_is_not_ready(start: Start, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "class Runner:\n    def setup(self): 1 / 0\n    def run(self): ...")
    server = start(folder, tmp_path / "ready")
    server.wait_for("setup-failed")
    server.popen.terminate()
    server.popen.wait(20)
    assert not (tmp_path / "ready").exists()
