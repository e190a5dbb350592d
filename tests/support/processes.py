"""Processes of a server under test, seen from outside: whether they run, and when they end. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.gates import Gates
from tests.support.servers import ServerProcess, write_model

SOON = 25.0  # seconds: a server that has ended takes a moment of it; one that waits for its grace takes 30

# What it does in setup is told by the environment, what it does in run() by its input. A gate that it opens tells the
# test that it is there; one that it waits for lets it go on.
MODEL = """
    import asyncio, ctypes, os, pathlib, select, signal, subprocess
    from geartrain import BaseRunner, CancelationException

    def act(what, gates):
        there = lambda: pathlib.Path(gates, "there").write_bytes(b"x")
        if what == "hold":  # the interpreter's lock, in C code
            there()
            ctypes.PyDLL(None).sleep(600)
        elif what == "wait":
            there()
            with open(os.path.join(gates, "go"), "rb", buffering=0) as gate:
                gate.read(1)
        elif what == "ignore":  # the cancel
            there()
            while True:
                try:
                    select.select([], [], [])
                except CancelationException:
                    pass

    if os.environ["SETUP"] in ("SIGTERM", "SIGINT"):
        os.kill(os.getppid(), signal.Signals[os.environ["SETUP"]])

    class Runner(BaseRunner):
        def setup(self) -> None:
            self.helper = subprocess.Popen(["sleep", "600"])
            print("pids", os.getpid(), self.helper.pid)
            act(os.environ["SETUP"], os.environ["GATES"])

        def run(self, what: str = "") -> str:
            act(what, os.environ["GATES"])
            return what
"""


class Watched:
    """Some processes, held by descriptors: a number may be given to another process, a descriptor not."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids
        self._fds = {pid: os.pidfd_open(pid) for pid in pids}

    def all_end(self, seconds: float = SOON) -> bool:
        """Whether all of them end within so many seconds."""
        until = time.monotonic() + seconds
        return all(select.select([fd], [], [], max(0.0, until - time.monotonic()))[0] for fd in self._fds.values())

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._fds.values():
            os.close(fd)


def children(pid: int) -> dict[int, str]:
    """The state of each child of a process, `Z` for a zombie."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                found[int(child)] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    return found


class Server:
    """A real server of `MODEL`, with its worker and its worker's helper."""

    def __init__(self, start: Callable[..., ServerProcess], folder: Path, setup: str, arguments: Iterable[str]) -> None:
        self._connections: list[HTTPConnection] = []
        self.temporary = Path(tempfile.mkdtemp(prefix="t-"))  # short: the address of a socket has to fit below it
        self.gates = Gates(folder / "gates")
        self.there = self.gates["there"]
        self.go = self.gates["go"]
        environment = {"TMPDIR": str(self.temporary), "GATES": str(folder / "gates"), "SETUP": setup}
        self.watched = Watched()
        self.process = start(str(write_model(folder / "model", MODEL)), *arguments, env=environment)
        if setup.startswith("SIG"):
            return
        address = urlsplit(self.process.wait_for("listening")["url"])
        self._address = (address.hostname or "", address.port)
        words = self.process.wait_for("setup-output")["text"].split()
        assert words[0] == "pids"
        self.worker, self.helper = map(int, words[1:])
        self.watched = Watched(self.worker, self.helper)
        if setup:
            self.there.wait()
        else:
            self.process.wait_for("ready")

    @property
    def pid(self) -> int:
        """The server's own."""
        return self.process.popen.pid

    def connect(self) -> HTTPConnection:
        """A connection of one's own, closed at the end."""
        self._connections.append(HTTPConnection(*self._address, timeout=60))
        return self._connections[-1]

    def ask(self, path: str, values: dict[str, Any] | None = None, **headers: str) -> HTTPConnection:
        """POST, and leave the answer for later."""
        connection = self.connect()
        body = None if values is None else json.dumps({"input": values})
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        return connection

    def predict(self, what: str, **headers: str) -> HTTPConnection:
        """Ask for a prediction and wait until it runs."""
        connection = self.ask("/predictions", {"what": what}, **headers)
        self.there.wait()
        return connection

    def health(self) -> dict[str, Any]:
        """GET the health."""
        connection = self.connect()
        connection.request("GET", "/health-check")
        return answer(connection)[1]

    def exit_code(self, seconds: float = SOON) -> int:
        """Wait for the server's end."""
        return self.process.popen.wait(seconds)

    def leftovers(self) -> list[str]:
        """What is left in the directory for temporary files."""
        return sorted(path.name for path in self.temporary.iterdir())

    def close(self) -> None:
        """Give everything back."""
        for connection in self._connections:
            connection.close()
        self.watched.close()
        self.gates.remove()
        shutil.rmtree(self.temporary)


def answer(connection: HTTPConnection) -> tuple[int, dict[str, Any]]:
    """The status and the body of an answer; closes the connection."""
    response = connection.getresponse()
    body: dict[str, Any] = json.loads(response.read())
    connection.close()
    return response.status, body


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(server_process: Callable[..., ServerProcess], tmp_path: Path) -> Iterator[StartServer]:
    """Start a real server; `setup` is what its model does then."""
    started: list[Server] = []

    def start(*arguments: str, setup: str = "") -> Server:
        started.append(Server(server_process, tmp_path, setup, arguments))
        return started[-1]

    yield start
    for server in started:
        server.close()


def is_there(pid: int) -> bool:
    """Whether a process runs, or is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
