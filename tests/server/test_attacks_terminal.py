"""Prompts of a debugger that end badly: the terminal is gone, the server is told to end, the worker dies."""

from __future__ import annotations

import os
import signal
import socket
import termios
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.askers import Request, url_of
from tests.support.person import PROMPT, Person
from tests.support.servers import PATIENCE, write_model

AtTerminal = Callable[..., Person]

# To fork is safe here: the child executes another program at once.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

STOPS = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, name: str = "x") -> str:
            breakpoint()
            return name
"""
TOGETHER = """
    import asyncio
    from geartrain import BaseRunner, concurrent

    class Runner(BaseRunner):
        @concurrent(max=4)
        async def run(self, name: str = "x") -> str:
            breakpoint()
            await asyncio.sleep(0)
            return name
"""


def family(person: Person) -> list[psutil.Process]:
    """The command and its workers."""
    command = psutil.Process(person.child.pid)
    return [command, *command.children(recursive=True)]


def asked(url: str) -> socket.socket:
    """Ask for a prediction; the connection, whose answer nobody reads."""
    address = urlsplit(url)
    client = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
    head = f"POST /predictions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    client.sendall(head.encode() + b'Content-Length: 12\r\n\r\n{"input":{}}')
    return client


def ended(processes: list[psutil.Process], seconds: float = PATIENCE) -> None:
    """Wait for the end of processes; a zombie has ended."""
    until = time.monotonic() + seconds
    left = processes
    while left := [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < until, [(each.pid, each.status(), each.cmdline()[:6]) for each in left]
        time.sleep(0.05)  # between two looks at processes that are not this one's children


def settings(person: Person) -> list[object]:
    return list(termios.tcgetattr(person.child.child_fd))


def prompted(at_terminal: AtTerminal, folder: Path, source: str = STOPS) -> tuple[Person, str, list[object]]:
    """A server that waits for a person; its address, and how its terminal was before."""
    person = at_terminal(
        "dev",
        str(write_model(folder / "model", source)),
        "--port",
        "0",
        "--no-open",
    )
    url = url_of(person)
    return person, url, settings(person)


def test_terminal_that_hangs_up_at_a_prompt_ends_the_server_and_its_workers(
    tmp_path: Path, at_terminal: AtTerminal
) -> None:
    person, url, _ = prompted(at_terminal, tmp_path)
    question = asked(url)
    person.sees(PROMPT)
    processes = family(person)
    assert len(processes) > 1
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), person.child.child_fd)  # the window is closed
    ended(processes)
    question.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_server_that_is_told_to_end_at_a_prompt_ends_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, at_terminal: AtTerminal, number: int
) -> None:
    person, url, before = prompted(at_terminal, tmp_path)
    question = asked(url)
    person.sees(PROMPT)
    assert settings(person) != before
    person.asks("import tty; tty.setcbreak(0)")
    processes = family(person)
    os.kill(person.child.pid, number)
    if number == signal.SIGINT:  # the first one is for the debugger
        person.sees("ended in the debugger")
    os.kill(person.child.pid, number)  # a second SIGTERM does not wait for the run
    ended(processes)
    assert settings(person) == before
    question.close()


def test_worker_that_is_killed_at_a_prompt_gives_the_terminal_back_as_it_was(
    tmp_path: Path, at_terminal: AtTerminal
) -> None:
    person, url, before = prompted(at_terminal, tmp_path)
    dying = Request(url)
    person.sees(PROMPT)
    person.asks("import os, tty; tty.setraw(0)")
    assert settings(person) != before
    person.child.send("os.kill(os.getpid(), 9)\r\n")
    person.child.expect_exact("another is started")
    assert "Worker crashed" in dying.answer()["error"]
    assert settings(person) == before
    person.interrupts()
    assert person.exit_code() == 0


def test_server_that_is_killed_at_a_prompt_leaves_no_worker_at_the_terminal(
    tmp_path: Path, at_terminal: AtTerminal
) -> None:
    person, url, _ = prompted(at_terminal, tmp_path)
    question = asked(url)
    person.sees(PROMPT)
    processes = family(person)
    os.kill(person.child.pid, signal.SIGKILL)
    ended(processes)
    question.close()


def test_prompts_of_runs_at_the_same_time_come_one_after_the_other(tmp_path: Path, at_terminal: AtTerminal) -> None:
    person, url, before = prompted(at_terminal, tmp_path, TOGETHER)
    requests = {name: Request(url, name=name) for name in ("one", "two", "three")}
    for _ in requests:
        person.sees(PROMPT)
        assert person.asks("p name").strip("'") in requests
        person.types("c")
    for name, request in requests.items():
        assert request.answer()["output"] == name
    assert settings(person) == before
    person.interrupts()
    assert person.exit_code() == 0
