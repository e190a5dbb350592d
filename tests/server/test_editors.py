"""An editor that attaches to a model with debugpy, over the Debug Adapter Protocol."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.askers import Request, url_of
from tests.support.debug_adapter import Editor
from tests.support.person import Person
from tests.support.servers import write_model

AtTerminal = Callable[..., Person]

pytest.importorskip("debugpy")
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SYNC = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, number: int) -> int:
            half = number // 2
            result = half + 1
            return result
"""
ASYNC = """
    import asyncio
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        async def setup(self) -> None:
            factor = 3
            self.factor = factor

        async def run(self, number: int) -> int:
            await asyncio.sleep(0)
            result = number * self.factor
            breakpoint()
            return result
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        port: int = trial.getsockname()[1]
        return port


def line_of(path: Path, text: str) -> int:
    """The number of the line that has a text."""
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_editor_stops_a_run_also_after_a_reload(tmp_path: Path, at_terminal: AtTerminal) -> None:
    path = write_model(tmp_path / "model", SYNC) / "run.py"
    port = free_port()
    person = at_terminal("dev", str(path.parent), "--port", "0", "--no-open", "--debugpy", str(port))
    url = url_of(person)
    with Editor(port) as editor:
        line = line_of(path, "result = ")
        editor.attach(str(path), line)
        request = Request(url, number=7)
        thread, stopped_at, variables = editor.stopped()
        assert (stopped_at, variables["number"], variables["half"]) == (line, "7", "3")
        editor.ask("continue", threadId=thread)
        assert request.answer()["output"] == 4
        editor.ask("disconnect")
    path.write_text(path.read_text().replace("half + 1", "half + 2"))
    person.sees("Reloaded")
    person.sees(f"debugpy listens on 127.0.0.1:{port}")  # when the worker before has ended
    with Editor(port) as editor:
        editor.attach(str(path), line)
        request = Request(url, number=7)
        thread, stopped_at, _ = editor.stopped()
        assert stopped_at == line
        editor.ask("continue", threadId=thread)
        assert request.answer()["output"] == 5
        person.interrupts()
        assert person.exit_code() == 0
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass  # debugpy has ended with its worker


def test_run_waits_for_an_editor_which_stops_in_setup_and_at_breakpoint(
    tmp_path: Path, at_terminal: AtTerminal
) -> None:
    path = write_model(tmp_path / "model", ASYNC) / "run.py"
    port = free_port()
    person = at_terminal("run", str(path.parent), "-i", "number=5", "--debugpy", str(port), "--debugpy-wait")
    person.sees(f"debugpy waits on 127.0.0.1:{port} for an editor")
    with Editor(port) as editor:
        editor.attach(str(path), line_of(path, "self.factor = "))
        thread, stopped_at, variables = editor.stopped()
        assert (stopped_at, variables["factor"]) == (line_of(path, "self.factor = "), "3")
        editor.ask("continue", threadId=thread)
        thread, stopped_at, variables = editor.stopped()
        assert stopped_at in {line_of(path, "breakpoint()"), line_of(path, "return result")}
        assert variables["result"] == "15"
        editor.ask("continue", threadId=thread)
        assert person.exit_code() == 0
    assert re.search(r"^15\r?$", person.child.before, re.MULTILINE)


def test_port_that_is_taken_is_told_before_anything_is_started(tmp_path: Path, at_terminal: AtTerminal) -> None:
    model = write_model(tmp_path / "model", SYNC)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        person = at_terminal("run", str(model), "-i", "number=1", "--debugpy", str(port))
        assert person.exit_code() == 1
    assert f"error: --debugpy: cannot listen on 127.0.0.1:{port}" in person.child.before
