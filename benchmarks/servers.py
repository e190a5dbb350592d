"""The servers that are measured: how each is started, when it is ready, what memory it takes, how it is ended."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = pathlib.Path(sys.executable).with_name("geartrain")
ROOT = HERE.parent
TIMEOUT = 30.0  # seconds that a server may take to become ready, and to end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A program to start. In its command and its environment, `{port}`, `{grpc}` and `{metrics}` become ports.

    It is ready when `ready` is answered with 200, and, where the answer is JSON with a status, that is READY.
    """

    name: str
    command: tuple[str, ...]
    folder: pathlib.Path = ROOT
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ready: str = "/health-check"


@dataclasses.dataclass(frozen=True)
class Running:
    """A started server that said READY, so many seconds after its process began."""

    pid: int
    port: int
    grpc_port: int
    seconds_to_ready: float

    def memory(self) -> int:
        """Bytes of memory of all its processes; what several of them share is counted once (PSS)."""
        return sum(_proportional_set_size(pid) for pid in processes_of(self.pid))

    def resident(self) -> int:
        """Bytes of memory of all its processes; what several of them share is counted for each (RSS)."""
        return sum(_kilobytes(pid, "status", "VmRSS") for pid in processes_of(self.pid))

    def cpu_seconds(self) -> tuple[float, float]:
        """Seconds of CPU since the start: of the server's own process, and of all its descendants together."""
        parent, *others = processes_of(self.pid)
        return _cpu_seconds(parent), sum(map(_cpu_seconds, others))


def geartrain(model: pathlib.Path, *, slots: int = 1) -> Server:
    """The server of this work tree, from the environment that runs this script."""
    return Server(
        name="geartrain",
        command=(str(SCRIPT), "serve", str(model), "--host", "127.0.0.1", "--port", "{port}"),
        environment={"COG_MAX_CONCURRENCY": str(slots)},
    )


def serving(model: pathlib.Path | str, *options: str, name: str = "geartrain", grpc: str = "off") -> Server:
    """The same server without an access log, and without gRPC unless `grpc` is a port; `options` are its own."""
    address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", grpc, "--access-log", "off")
    return Server(name=name, command=(str(SCRIPT), "serve", str(model), *address, *options))


def load(started: Running, *options: str, seconds: int) -> dict[str, Any]:
    """Put a server under load with `geartrain bench`; the figures of the only level.

    Raises RuntimeError if a request has failed.
    """
    how = ("--results", "-", "--duration", f"{seconds}s", *options)
    done = subprocess.run(
        [str(SCRIPT), "bench", f"http://127.0.0.1:{started.port}", *how],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
    )
    if done.returncode:
        raise RuntimeError(f"geartrain bench ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    (level,) = json.loads(done.stdout)["levels"]
    return dict(level)


def coglet(model: pathlib.Path, venv: pathlib.Path, *, slots: int = 1) -> Server:
    """Cog's own server, as its container images start it."""
    binaries = venv / "bin"
    return Server(
        name="coglet",
        command=(str(binaries / "python"), "-m", "cog.server.http", "--host", "127.0.0.1"),
        folder=model,
        environment={
            "COG_MAX_CONCURRENCY": str(slots),
            "COG_PREDICT_TYPE_STUB": "run.py:Runner",
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",  # it starts its worker as `python`
            "PORT": "{port}",
        },
    )


def floor(*, slots: int = 1) -> Server:
    """The bare application of `floor.py`."""
    return Server(name="floor", command=(sys.executable, str(HERE / "floor.py"), "{port}", str(slots)))


@contextlib.contextmanager
def running(server: Server) -> Iterator[Running]:
    """Start a server, wait until it is ready, and end it together with its children.

    Raises RuntimeError with the end of its output when it does not become ready.
    """
    ports = {name: _free_port() for name in ("port", "grpc", "metrics")}
    environment = os.environ | {name: value.format(**ports) for name, value in server.environment.items()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed server has its bytecode
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [word.format(**ports) for word in server.command],
            cwd=server.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not _ready(ports["port"], server.ready):
                if process.poll() is not None or time.perf_counter() - begin > TIMEOUT:
                    raise RuntimeError(
                        f"{server.name} did not become ready; its output ends:\n{_tail(output.fileno())}"
                    )
                time.sleep(0.002)
            yield Running(process.pid, ports["port"], ports["grpc"], time.perf_counter() - begin)
        finally:
            _end(process)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _ready(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return False  # not listening yet
    finally:
        connection.close()
    return answer.status == http.client.OK and (path != "/health-check" or json.loads(body)["status"] == "READY")


def _tail(output: int) -> str:
    size = os.fstat(output).st_size
    return os.pread(output, 2000, max(0, size - 2000)).decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    family = processes_of(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family[1:]:  # a child that outlives its server would spoil the next measurement
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def resting(servers: Iterable[Running]) -> Iterator[None]:
    """Stop the processes of these servers meanwhile: some ask their queue all the time, even when nothing comes."""
    pids = [pid for server in servers for pid in processes_of(server.pid)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def processes_of(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    family = [pid]
    for member in family:  # grows while it is walked
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{member}/task").iterdir():
                family.extend(int(child) for child in (task / "children").read_text().split())
    return family


def _proportional_set_size(pid: int) -> int:
    return _kilobytes(pid, "smaps_rollup", "Pss")


def _kilobytes(pid: int, file: str, wanted: str) -> int:
    """A line of kilobytes in a file of `/proc/PID`, as bytes."""
    for line in pathlib.Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == wanted:
            return int(rest.split()[0]) * 1024
    raise RuntimeError(f"/proc/{pid}/{file} has no line `{wanted}`")


def _cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, in steps of a clock tick (usually 10 ms); see proc(5)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may hold blanks
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
