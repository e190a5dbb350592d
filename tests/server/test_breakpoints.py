"""`breakpoint()` and `pdb.set_trace()` in a model, typed through at a terminal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.askers import Request, url_of
from tests.support.person import PROMPT, Person
from tests.support.servers import PATIENCE, ServerProcess, write_model

AtTerminal = Callable[..., Person]

# To fork is safe here: the child executes another program at once.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SYNC = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            greeting = "Hello"
            breakpoint()
            self.greeting = greeting

        def run(self, name: str) -> str:
            times = 1
            print("before")
            breakpoint()
            times += 1
            print("times is", times)
            return f"{self.greeting} {name}" * times
"""
ASYNC = """
    import asyncio
    import pdb
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        async def setup(self) -> None:
            greeting = "Hello"
            await asyncio.sleep(0)
            pdb.set_trace()
            self.greeting = greeting

        async def run(self, name: str) -> str:
            times = 1
            print("before")
            breakpoint()
            await asyncio.sleep(0)
            times += 1
            print("times is", times)
            return f"{self.greeting} {name}" * times
"""
RUN_ONLY = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, name: str = "x") -> str:
            breakpoint()
            return name
"""


def leave_after(url: str, **values: Any) -> socket.socket:
    """Ask for a prediction, and return the connection, for a client that leaves."""
    address = urlsplit(url)
    body = json.dumps({"input": values}).encode()
    client = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
    head = f"POST /predictions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    return client


def health(url: str) -> str:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
    connection.request("GET", "/health-check")
    status: str = json.loads(connection.getresponse().read())["status"]
    connection.close()
    return status


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_run_is_stepped_through_in_setup_and_in_run(tmp_path: Path, at_terminal: AtTerminal, source: str) -> None:
    model = write_model(tmp_path / "model", source)
    person = at_terminal("run", str(model), "-i", "name=Ada", env={"TERM": "xterm"})  # with a line that moves
    person.sees("-> self.greeting = greeting")
    person.sees(PROMPT)
    assert person.asks("p greeting") == "'Hello'"
    person.asks("greeting = 'Bye'")
    person.types("c")
    shown = person.sees(PROMPT)
    assert "before" in shown
    assert "run.py" in shown
    while "times is 2" not in (shown := person.asks("n")):
        assert "geartrain" not in shown, "our own code is not stepped into"
    assert shown.index("times is 2") < shown.index("-> return"), "it is shown before the next prompt"
    person.asks("times = 3")
    person.types("c")
    assert person.exit_code() == 0
    assert "Bye AdaBye AdaBye Ada" in person.child.before


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_server_waits_for_a_person_and_lives_on(tmp_path: Path, at_terminal: AtTerminal, source: str) -> None:
    model = write_model(tmp_path / "model", source)
    person = at_terminal("dev", str(model), "--port", "0", "--no-open")
    person.sees("-> self.greeting = greeting")
    person.sees(PROMPT)
    person.types("c")
    url = url_of(person)

    stepped = Request(url, name="Ada")
    person.matches(r"pred_\w+ before")
    person.sees(PROMPT)
    assert health(url) == "BUSY"
    assert person.asks("p name") == "'Ada'"
    person.asks("times = 2")
    person.types("c")
    person.matches(r"pred_\w+ times is 3")
    answer = stepped.answer()
    assert (answer["status"], answer["output"]) == ("succeeded", "Hello Ada" * 3)
    assert answer["logs"] == "before\ntimes is 3\n"

    interrupted = Request(url, name="Bob")
    person.sees(PROMPT)
    person.interrupts()
    assert interrupted.answer()["error"] == "BdbQuit: ended in the debugger"
    quit_ = Request(url, name="Eve")
    person.sees(PROMPT)
    person.types("q")
    answer = quit_.answer()
    assert answer.get("error") == "BdbQuit: ended in the debugger", (answer, person.child.before)
    assert "Traceback" not in answer["logs"]

    again = Request(url, name="Ada")
    person.sees(PROMPT)
    person.types("c")
    assert again.answer()["output"] == "Hello Ada" * 2
    person.sees("200 succeeded")  # lines of requests come a moment later
    person.interrupts()
    assert person.exit_code() == 0


def test_prompt_ends_with_its_client_and_with_its_worker(tmp_path: Path, at_terminal: AtTerminal) -> None:
    model = write_model(tmp_path / "model", RUN_ONLY)
    person = at_terminal("dev", str(model), "--port", "0", "--no-open")
    url = url_of(person)
    with leave_after(url):
        person.sees(PROMPT)
    person.sees("499 disconnected")

    dying = Request(url)
    person.sees(PROMPT)
    person.types("import os; os._exit(3)")
    assert dying.answer()["error"] == "Worker crashed: exited with code 3"
    while health(url) != "READY":
        pass  # the next worker is on its way
    person.child.expect_exact("another is started")
    following = Request(url)
    person.sees(PROMPT)
    person.types("c")
    assert following.answer()["status"] == "succeeded"
    person.interrupts()
    assert person.exit_code() == 0


@pytest.mark.parametrize("source", [RUN_ONLY, SYNC], ids=["run", "setup"])
def test_sigterm_at_the_prompt_ends_the_command(tmp_path: Path, at_terminal: AtTerminal, source: str) -> None:
    """At once: the run would wait for a person, and a second one for the terminal, as long as they are let."""
    model = write_model(tmp_path / "model", source)
    person = at_terminal("dev", str(model), "--port", "0", "--no-open")
    person.child.timeout = 15  # seconds; runs may go on for 30
    if source is RUN_ONLY:
        url = url_of(person)
        with leave_after(url), leave_after(url):
            person.sees(PROMPT)
            person.child.kill(signal.SIGTERM)
            assert person.exit_code() == 0
    else:
        person.sees(PROMPT)
        person.child.kill(signal.SIGTERM)
        assert person.exit_code() == 0


def test_steps_end_with_the_run(tmp_path: Path, at_terminal: AtTerminal) -> None:
    source = RUN_ONLY.replace("breakpoint()", "breakpoint() if name == 'x' else None")
    model = write_model(tmp_path / "model", source)
    person = at_terminal("dev", str(model), "--port", "0", "--no-open")
    url = url_of(person)
    stepped = Request(url)
    person.sees(PROMPT)
    assert "--Return--" in person.asks("n")
    person.types("n")
    assert stepped.answer()["output"] == "x"
    assert Request(url, name="y").answer()["output"] == "y"  # where no debugger asks


def test_first_prompt_is_where_the_author_asks_for_it(tmp_path: Path, at_terminal: AtTerminal) -> None:
    """Not in a finalizer that the interpreter happens to run before the next line."""
    source = """
        from geartrain import BaseRunner

        class Dying:
            def __del__(self) -> None:
                print("gone")

        class Runner(BaseRunner):
            def run(self) -> str:
                breakpoint() or Dying()
                return "end"
    """
    person = at_terminal("run", str(write_model(tmp_path / "model", source)))
    shown = person.sees(PROMPT)
    assert '-> return "end"' in shown
    assert "--Call--" not in shown
    person.types("q")
    assert person.exit_code() == 1


def test_other_debuggers_by_the_variable(tmp_path: Path, at_terminal: AtTerminal) -> None:
    model = write_model(tmp_path / "model", RUN_ONLY)
    person = at_terminal("run", str(model), env={"PYTHONBREAKPOINT": "ipdb.set_trace"})
    person.sees("ipdb> ")
    person.types("name = 'from ipdb'")
    person.sees("ipdb> ")
    person.types("c")
    assert person.exit_code() == 0
    assert "from ipdb" in person.child.before
    off = at_terminal("run", str(model), "-i", "name=off", env={"PYTHONBREAKPOINT": "0"})
    assert off.exit_code() == 0
    assert "off" in off.child.before


def test_ctrl_c_in_setup_ends_the_command(tmp_path: Path, at_terminal: AtTerminal) -> None:
    model = write_model(tmp_path / "model", SYNC)
    person = at_terminal("run", str(model), "-i", "name=Ada")
    person.sees(PROMPT)
    person.interrupts()
    assert person.exit_code() == 1
    assert "error: setup() failed: BdbQuit: ended in the debugger" in person.child.before


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_server_without_a_terminal_says_what_to_do(
    tmp_path: Path, server_process: Callable[..., ServerProcess], call: str
) -> None:
    source = RUN_ONLY.replace("breakpoint()", f"if name == 'x': {call}\n            name += '!'")
    process = server_process(str(write_model(tmp_path / "model", source)))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    error = Request(url).answer()["error"]
    assert "geartrain dev" in error
    assert error.startswith("NoTerminalError: ")
    assert Request(url, name="y").answer()["output"] == "y!"


def test_command_in_a_pipe_says_what_to_do(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", RUN_ONLY)
    ended = subprocess.run(
        [sys.executable, "-m", "geartrain", "run", str(model)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=False,
        start_new_session=True,
    )
    assert ended.returncode == 1
    assert "geartrain dev" in ended.stderr
