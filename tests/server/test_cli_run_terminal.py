"""`geartrain run` for a person at a terminal: what it is busy with, until there is output."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gates import Gates
from tests.support.servers import write_model
from tests.support.terminal import on_terminal
from tests.support.web_server import Exchange, running_server

WAITER = """
    import pathlib
    import select
    import sys

    from geartrain import BaseRunner, ConcatenateIterator

    GATES = pathlib.Path(__file__).parent / "gates"

    def wait(name: str) -> None:
        with open(GATES / name) as gate:
            select.select([gate], [], [])

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("loading")
            wait("setup")

        def run(self, bar: bool = False) -> ConcatenateIterator[str]:
            print("thinking")
            wait("run")
            if bar:
                sys.stderr.write("\\r 50%")
                sys.stderr.flush()
                wait("bar")
                sys.stderr.write("\\r100%\\n")
                sys.stderr.flush()
                wait("token")
            yield "once "
            wait("token")
            yield "upon"
    """


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "model" / "gates")
    for name in ("setup", "run", "bar", "token"):
        _ = gates[name]  # so that it is there
    yield gates
    gates.remove()


def test_person_sees_each_step_with_its_time_and_then_the_output_alone(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path / "model", WAITER)
    with on_terminal("run", "model", cwd=tmp_path, stdout=None) as terminal:
        terminal.read_until("Setting up model 0.")
        terminal.read_until("loading\n")
        gates["setup"].open()
        terminal.read_until("thinking\n")
        terminal.read_until("Running the model 0.")
        gates["run"].open()
        before, _, after = terminal.read_until("once ").partition("once ")
        gates["token"].open()
        assert terminal.read_to_end().removeprefix(before) == "once upon\n"
        assert after == ""
        assert terminal.process.wait(timeout=40) == 0


def test_models_own_progress_bar_takes_the_place_of_ours(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path / "model", WAITER)
    gates["setup"].open()
    gates["run"].open()
    with on_terminal("run", "model", "-i", "bar=true", cwd=tmp_path) as terminal:
        before = terminal.read_until("\r 50%")
        gates["bar"].open()
        shown = terminal.read_until("\r100%\n").removeprefix(before)
        assert shown.startswith("\r100%\n")  # nothing in between
        assert terminal.read_until("Running the model").count("100%") == 1
        gates["token"].open()
        terminal.read_to_end()
        assert terminal.process.wait(timeout=40) == 0


def test_download_is_shown_with_its_size(tmp_path: Path) -> None:
    write_model(
        tmp_path / "model", "from geartrain import Path\ndef run(f: Path) -> int:\n    return f.stat().st_size\n"
    )
    second_half = threading.Event()

    def in_two_halves(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Length", "2000000")
        exchange.end_headers()
        exchange.wfile.write(b"x" * 1_000_000)
        exchange.wfile.flush()
        second_half.wait(20)
        exchange.wfile.write(b"x" * 1_000_000)

    with running_server() as server:
        server.routes["/cat.png"] = in_two_halves
        with on_terminal(
            "run", "model", "-i", f"f={server.url('/cat.png')}", cwd=tmp_path, stdout=subprocess.PIPE
        ) as terminal:
            assert "Fetching the input 0." in terminal.read_until("1.0/2.0 MB")
            second_half.set()
            terminal.read_to_end()
            assert terminal.process.communicate()[0] == b"2000000\n"
            assert terminal.process.returncode == 0


def test_cancel_is_shown(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path / "model", WAITER)
    gates["setup"].open()
    with on_terminal("run", "model", cwd=tmp_path) as terminal:
        terminal.read_until("Running the model")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.read_to_end().endswith("error: the prediction was canceled\n")
        assert terminal.process.wait(timeout=40) == 130


def test_terminal_that_cannot_move_its_cursor_gets_text_alone(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "def run() -> str:\n    print('thinking')\n    return 'hello'\n")
    with on_terminal("run", "model", cwd=tmp_path, stdout=None, term="dumb") as terminal:
        assert terminal.read_to_end() == "thinking\nhello\n"
