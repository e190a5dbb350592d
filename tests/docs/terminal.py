"""A shell that carries out the commands of a page, in a folder of its own, with real servers."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import ROOT

PATIENCE: Final = 120.0  # seconds for a command, or for a server to become ready
_SERVER: Final = re.compile(r"^(?:\w+=\S+ )*geartrain (serve|dev)\b")
_ADDRESS: Final = re.compile(r"(localhost|127\.0\.0\.1):(\d{4,5})\b")
_HOME: Final = "/home/ada"
_CONTROL: Final = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
_TYPED: Final = re.compile(r"^\(Pdb\) (.+)$", re.MULTILINE)
# The command of the pages: `geartrain` of this interpreter, whose servers are at a terminal, and on free ports.
_COMMAND: Final = """#!/bin/sh
case "$1" in
serve) export PORT=0; set -- "$@" --grpc-port 0; test "$LOG_FORMAT" || exec {python} {terminal} "$@";;
dev) export PORT=0; test "$LOG_FORMAT" || exec {python} {terminal} "$@";;
*) test -z "$TYPED" || exec {python} {terminal} "$@";;
esac
exec {python} -m geartrain "$@"
"""


# Nothing is installed: what a page names has to be an extra that there is.
_PIP: Final = """
import re, sys, tomllib
with open({root!r} + "/pyproject.toml", "rb") as project:
    extras = tomllib.load(project)["project"]["optional-dependencies"]
for name in re.findall(r"geartrain\\[(.*?)\\]", " ".join(sys.argv)):
    sys.exit(not set(name.split(",")) <= set(extras) and f"there is no extra {{name}}")
"""


class _WebServer(SimpleHTTPRequestHandler):
    """Somebody else's server."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_PUT  # noqa: N815 - as http.server calls it

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class Terminal:
    """A shell of bash. `folder` is the current folder; in what it prints, that is /home/ada."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[int, int] = {}  # that a page names, and the real ones
        self._servers: dict[int, tuple[int, Path]] = {}  # by the port of the page: process id and log
        self._web_servers: list[ThreadingHTTPServer] = []
        self._count = 0
        self.status = 0
        self._bin = folder.parent / f"{folder.name}-bin"
        _write_programs(self._bin)
        self._reports, reports = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            cwd=folder,
            env=_environment(folder, self._bin),
            pass_fds=[reports],
            start_new_session=True,
            text=True,
        )
        self._said = f">&{reports}"
        os.close(reports)
        self._tell("set -m\n")

    def close(self) -> None:
        """End the servers and the shell."""
        for port in list(self._servers):
            self.stop(port)
        for server in self._web_servers:
            server.shutdown()
            server.server_close()
        if self._shell.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._shell.stdin.close()
        try:
            self._shell.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        os.close(self._reports)

    def do(self, command: str, shown: str = "", done: Callable[[str], bool] | None = None) -> str:
        """Carry out a command and return what it has printed, with addresses and paths as on the page.

        What is `shown` after the prompt of a debugger is typed. A server goes on in the background: this returns as
        soon as it is ready, or `done` with what it has printed.
        """
        if _SERVER.match(command):
            return self._serve(command, done)
        if program := re.fullmatch(r"python (\w+)\.py", command):
            text = (self.folder / f"{program[1]}.py").read_text()
            (self.folder / f"{program[1]}_here.py").write_text(self.for_real(text))
            command = f"python {program[1]}_here.py"
        typed = "\n".join(_TYPED.findall(shown))
        return self._run((f"TYPED={shlex.quote(typed)} " if typed else "") + self.for_real(command))

    def for_real(self, command: str) -> str:
        """Return a command, or a program, with the real ports in the place of those of the page."""

        def address(found: re.Match[str]) -> str:
            return f"{found[1]}:{self.ports.get(int(found[2]), found[2])}"

        return _ADDRESS.sub(address, command)

    def as_shown(self, printed: str) -> str:
        """Return what a command has printed as a page would show it."""
        printed = _CONTROL.sub("", printed).replace("\r\n", "\n")
        for shown, real in self.ports.items():
            printed = re.sub(rf"(localhost|127\.0\.0\.1):{real}\b", rf"\1:{shown}", printed)
        return printed.replace(str(self.folder), _HOME).replace(str(ROOT), f"{_HOME}/geartrain")

    def _run(self, command: str) -> str:
        output = self._output()
        output.touch()
        self._tell(f"exec >>{output} 2>&1\n(exit $status)\n{{ {command}\n}} </dev/null\n")
        self._tell(f"status=$?; echo done $status {self._said}\n")
        self.status = int(self._hear().split()[1])
        return self.as_shown(output.read_text(errors="replace"))

    def _output(self) -> Path:
        self._count += 1
        return self._bin / f"output-{self._count}"

    def _serve(self, command: str, done: Callable[[str], bool] | None) -> str:
        port = int(found[1]) if (found := re.search(r"--port (\d+)", command)) else 5000
        self.stop(port)
        command = re.sub(r"--port \d+", "--port 0", self.for_real(command.partition("  #")[0]).rstrip("& \n"))
        log = self._output()
        log.touch()
        if command.endswith("2>&1 | cat"):
            command = f"LOG_FORMAT=json {command.removesuffix('2>&1 | cat')}"
        self._tell(f"{command} </dev/null >>{log} 2>&1 &\necho $! {self._said}\n")
        pid = int(self._hear())
        self._servers[port] = (pid, log)
        grpc = 8081 if port == 5000 else 8082
        self._wait(log, r"127\.0\.0\.1:(\d+)(?=/|\")", port)
        if (
            "--grpc-port off" not in command
            and "--x-mode" not in command
            and done is None
            and "dev" not in command.split()
        ):
            self._wait(log, r"(?:gRPC +|listening-grpc\",\"url\":\")127\.0\.0\.1:(\d+)", grpc)
        deadline = time.monotonic() + PATIENCE
        while not (done(self._log(log, grpc)) if done else self._is_ready(port)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._log(log, grpc)

    def _wait(self, log: Path, pattern: str, port: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, _CONTROL.sub("", log.read_text(errors="replace")))):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.02)
        self.ports[port] = int(found[1])

    def _log(self, log: Path, grpc: int) -> str:
        text = log.read_text(errors="replace")
        if found := re.search(r"(?:gRPC +|listening-grpc\",\"url\":\")127\.0\.0\.1:(\d+)", text):
            self.ports[grpc] = int(found[1])
        return self.as_shown(text)

    def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/readyz", timeout=5).status == 200)
        return False

    def printed(self, port: int = 5000) -> str:
        """Return what a server has printed so far."""
        return self._log(self._servers[port][1], 8081)

    def stop(self, port: int = 5000) -> str:
        """End a server as Ctrl-C does, and return all that it has printed; "" if there is none."""
        if port not in self._servers:
            return ""
        pid, log = self._servers.pop(port)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGINT)
        self._tell(f"wait {pid}; echo ended {self._said}\n")
        self._hear()
        return self._log(log, 8081)

    def be_web_server(self, port: int) -> None:
        """Have a web server at an address of the page: it has the files of the folder, and takes what is sent."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_WebServer, directory=str(self.folder)))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self._web_servers.append(server)
        self.ports[port] = server.server_port

    def _tell(self, text: str) -> None:
        assert self._shell.stdin
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def _hear(self) -> str:
        heard = b""
        while not heard.endswith(b"\n"):
            if not select.select([self._reports], [], [], PATIENCE)[0]:
                pytest.fail("the command does not end")
            part = os.read(self._reports, 4096)
            assert part, "the shell has ended"
            heard += part
        return heard.decode()


def _write_programs(folder: Path) -> None:
    python = shlex.quote(sys.executable)
    terminal = shlex.quote(str(Path(__file__).with_name("at_terminal.py")))
    programs = {
        "geartrain": _COMMAND.format(python=python, terminal=terminal),
        "pip": f"#!{sys.executable}\n{_PIP.format(root=str(ROOT))}",
        "python": f'#!/bin/sh\nexec {python} "$@"\n',
        "pytest": f'#!/bin/sh\nPYTEST_DISABLE_PLUGIN_AUTOLOAD=1 exec {python} -m pytest -p no:cacheprovider "$@"\n',
    }
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def _environment(home: Path, programs: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COG_", "PYTEST", "OTEL"))}
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH"), str(home)])])
    return {
        **kept,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path,
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "HOME": str(home),
    }
