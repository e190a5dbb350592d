"""Every command of docs/scale.md, run as it stands there; only the database, the ports and the folder are others."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from geartrain.cli import serve
from tests.support import modes
from tests.support.postgres import running_postgres
from tests.support.servers import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scale.md").read_text()
COMMANDS = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
DATABASE = "postgres://geartrain@db/predictions"

Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a command of the page in a shell; a server goes on in the background."""
    if modes.current().scheme == "https" or modes.current().is_hosted:
        pytest.skip("the commands of the page say themselves how servers are served")
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine (Debian: apt install curl)")
    ports = {port: str(free_port()) for port in ("5001", "5002")}
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "geartrain").write_text(f'#!/bin/sh\nexec {sys.executable} -m geartrain "$@"\n')
    (programs / "geartrain").chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GEARTRAIN_KEY": ""}
    servers: list[subprocess.Popen[bytes]] = []
    with running_postgres() as postgres:

        def run(command: str) -> str:
            command = re.sub("500[12]", lambda match: ports[match[0]], command.replace(DATABASE, f"'{postgres.url}'"))
            if command.startswith("geartrain serve"):
                servers.append(subprocess.Popen(f"exec {command} --grpc-port off", shell=True, cwd=tmp_path, env=env))  # noqa: S602
                port = re.findall(r"--port (\d+)", command)[0]
                until_ready(servers[-1], f"http://127.0.0.1:{port}/health-check")
                return ""
            done = subprocess.run(command, shell=True, check=False, cwd=tmp_path, env=env, stdout=subprocess.PIPE)  # noqa: S602
            assert done.returncode in {0, 28}, command  # 28: curl has come to the end of its time
            return done.stdout.decode()

        try:
            yield run
        finally:
            for server in servers:
                server.kill()
                server.wait()


def free_port() -> int:
    """Return a port that the system gives to nobody who asks for any."""
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - below those that are given out
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert server.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(url) as response:  # noqa: S310 - our own server
                if json.load(response)["status"] == "READY":
                    return
        except OSError:
            pass
        time.sleep(0.02)
    pytest.fail("the server has not become ready")


def test_the_commands_of_the_page(run: Run) -> None:
    made, one, other, put, get, follow, cancel, show = COMMANDS  # a new one is to be looked at here
    assert run(made) == run(one) == run(other) == ""
    assert json.loads(run(put))["status"] in {"starting", "processing"}
    found: dict[str, Any] = json.loads(run(get))
    assert (found["id"], found["status"] in {"starting", "processing"}) == ("a", True)
    assert "event: output" in run(follow)
    assert json.loads(run(cancel)) == {}
    end = time.monotonic() + PATIENCE
    while '"canceled"' not in (shown := run(show)) and time.monotonic() < end:
        time.sleep(0.05)
    assert '"canceled"' in shown


def test_the_options_of_the_page_are_those_of_the_command() -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--max-time"}
    assert named <= {name for each in typer.main.get_command(serve.app).params for name in each.opts}
