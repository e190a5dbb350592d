"""A server under a supervisor such as systemd: what it tells, the sockets it is given, and its reload."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.servers import PATIENCE, ServerProcess, write_model
from tests.support.supervisor import Supervisor

Start = Callable[..., ServerProcess]

# The variables that it sees are those that a supervisor has set.
MODEL = """
    import os
    def run() -> str:
        seen = [name for name in os.environ if name.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))]
        return "VERSION" + "".join(seen)
"""
WAITING = (
    MODEL
    + """
    import pathlib, time
    class Runner:
        def setup(self) -> None:
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
        def run(self) -> str:
            return run()
"""
)
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "geartrain", "serve", *sys.argv[1:]])
"""
ACTIVATE = """
import os, sys
names, *descriptors = sys.argv[1].split(",")
count = len(descriptors)
copies = [os.dup(int(each)) for each in descriptors]
moved = [os.dup2(each, 100 + number) for number, each in enumerate(copies)]
for number in range(count):
    os.dup2(100 + number, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES=names)
os.execv(sys.executable, [sys.executable, "-m", "geartrain", "serve", *sys.argv[2:]])
"""


def write(folder: Path, version: str) -> Path:
    return write_model(folder, MODEL.replace("VERSION", version))


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    return ask_on(connection, method, path, body)


def ask_on(connection: HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"content-type": "application/json"})
    answer = json.loads(connection.getresponse().read() or "{}")
    connection.close()
    return answer


def output(url: str, path: str = "/predictions") -> str:
    found: str = ask(url, "POST", path, {"input": {}})["output"]
    return found


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing has come, a moment later either."""
    return not select.select([connection], [], [], 0.05)[0]


def hang_up(process: ServerProcess) -> None:
    process.popen.send_signal(signal.SIGHUP)


def test_a_supervisor_hears_of_the_start_the_reload_and_the_end(
    server_process: Start, tmp_path: Path, supervisor: Supervisor
) -> None:
    folder = write(tmp_path / "model", "1")
    environ = {"NOTIFY_SOCKET": supervisor.address, "WATCHDOG_USEC": "20000000"}
    process = server_process(str(folder), env=environ)
    url = process.wait_for("listening")["url"]
    assert supervisor.wait_for("READY=1") == ["STATUS=Ready.", "READY=1"]
    assert ask(url, "GET", "/readyz") == {"ready": True}
    if "WATCHDOG=1" not in supervisor.lines:
        supervisor.wait_for("WATCHDOG=1")
    assert output(url) == "1"
    write(folder, "2")
    hang_up(process)
    status, reloading, clock = supervisor.wait_for("RELOADING=1")
    assert (status, reloading, clock.partition("=")[0]) == ("STATUS=Reloading.", "RELOADING=1", "MONOTONIC_USEC")
    supervisor.wait_for("READY=1")
    assert output(url) == "2"
    process.popen.send_signal(signal.SIGTERM)
    assert supervisor.wait_for("STOPPING=1") == ["STATUS=Stopping.", "STOPPING=1"]
    assert process.popen.wait(PATIENCE) == 0


def test_a_reload_takes_up_models_keys_and_nothing_that_is_broken(server_process: Start, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    for name in ("cats", "dogs", "hens"):
        write(zoo / name, f"{name} 1 ")
    process = server_process(str(zoo), "--grpc-port", "off")
    url = process.wait_for("listening")["url"]
    for _ in range(3):
        process.wait_for("ready")
    assert ask(url, "POST", "/v2/repository/models/hens/unload", {}) == {}
    process.wait_for("unloaded")
    for name in ("cats", "eels", "hens"):
        write(zoo / name, f"{name} 2 ")
    (zoo / "dogs" / "run.py").write_text("nonsense(")
    hang_up(process)
    process.wait_for("the reload is over")
    told = [(line["message"], line.get("model")) for line in process.lines]
    assert ("reload-failed", "dogs") in told
    assert told.count(("ready", "hens")) == 1, "it had been unloaded"
    for name, version in (("cats", 2), ("dogs", 1), ("eels", 2)):
        assert output(url, f"/models/{name}/predictions").startswith(f"{name} {version}")
    index = {each["name"]: each.get("state") for each in ask(url, "POST", "/v2/repository/index", {})}
    assert index == {"cats": "READY", "dogs": "READY", "eels": "READY", "hens": "UNAVAILABLE"}


def test_a_reload_wakes_no_model_that_rests(server_process: Start, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    for name in ("cats", "dogs"):
        write(zoo / name, f"{name} 1 ")
    process = server_process(str(zoo), "--load", "on-demand")
    url = process.wait_for("listening")["url"]
    assert output(url, "/models/cats/predictions") == "cats 1 "
    for name in ("cats", "dogs"):
        write(zoo / name, f"{name} 2 ")
    hang_up(process)
    process.wait_for("the reload is over")
    assert [line["model"] for line in process.lines if line["message"] == "ready"] == ["cats", "cats"]
    assert [output(url, f"/models/{name}/predictions") for name in ("cats", "dogs")] == ["cats 2 ", "dogs 2 "]


def test_a_server_whose_terminal_is_closed_ends(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "1")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, str(folder), "--port", "0", "--grpc-port", "off"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "LOG_FORMAT": "console"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, b"Ctrl-C stops")
        process.send_signal(signal.SIGHUP)  # somebody wants a reload
        read_until(ours, b"the reload is over")
        os.close(ours)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def read_until(terminal: int, words: bytes) -> None:
    shown = b""
    while words not in shown:
        shown += os.read(terminal, 65536)


def test_sockets_that_a_supervisor_has_opened(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", WAITING)
    path = os.path.relpath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        others = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        sockets = [unix, *others]
        descriptors = [each.fileno() for each in sockets]
        passed = ",".join(("http:http:admin:grpc", *map(str, descriptors)))
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, passed, str(folder), "--log-format", "json"],
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
        assert process.stderr is not None
        http, admin, grpc = (each.getsockname()[1] for each in others)
        # A client that comes before the server is ready waits.
        early = HTTPConnection("127.0.0.1", http, timeout=PATIENCE)
        early.request("GET", "/readyz")
        assert ask(f"http://127.0.0.1:{admin}", "GET", "/readyz")["reasons"] == ["Model 'model': 1 loading."]
        assert is_silent(early.sock)
        (folder / "go").touch()
        told: list[dict[str, Any]] = []
        while not told or told[-1]["message"] != "ready":
            told.append(json.loads(process.stderr.readline()))
        assert json.loads(early.getresponse().read()) == {"ready": True}
        early.close()
        assert output(f"http://127.0.0.1:{http}") == "VERSION", "workers have none of the variables"
        local = HTTPConnection("localhost", timeout=PATIENCE)
        local.sock = socket.socket(socket.AF_UNIX)
        local.sock.connect(path)
        assert ask_on(local, "GET", "/readyz") == {"ready": True}
        assert "name" in ask(f"http://127.0.0.1:{grpc}", "GET", "/v2"), "every port speaks everything"
        assert "error" in ask(f"http://127.0.0.1:{http}", "GET", "/metrics"), "it is administration"
        assert ask(f"http://127.0.0.1:{admin}", "POST", "/shutdown") == {}
        told += [json.loads(line) for line in process.stderr]
        assert process.wait(PATIENCE) == 0
        process.stderr.close()
        where = {(line["message"], line["url"]) for line in told if line["message"].startswith("listening")}
        assert where == {
            ("listening", f"unix:{path}"),
            ("listening", f"http://127.0.0.1:{http}"),
            ("listening-admin", f"http://127.0.0.1:{admin}"),
            ("listening-grpc", f"127.0.0.1:{grpc}"),
        }
        with socket.create_connection(("127.0.0.1", http)):  # the supervisor's socket is still there
            pass
        for each in others:
            each.close()
