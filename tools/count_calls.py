"""Functions and files of the server that one small request runs, counted with a profiler in the server's process.

python -m tools.count_calls           # of one POST /predictions to a running server with a sync model
python -m tools.count_calls --list    # each function with its file, in the order of the calls
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from geartrain.project.source import find_model
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.running import run_server
from geartrain.transport.grpc.options import GrpcOptions

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
_PACKAGE: Final = str(ROOT / "src" / "geartrain") + os.sep
_MODEL: Final = """
from geartrain import BaseRunner

class Runner(BaseRunner):
    def run(self, text: str) -> str:
        return text
"""
_BODY: Final = b'{"input": {"text": "hi"}}'
_REQUEST: Final = (
    b"POST /predictions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)  # in one piece: a client that sends head and body apart has the server wait in between
_WARM: Final = 20  # requests before those that are counted: caches are filled
_COUNTED: Final = 10  # requests, of which the one with the fewest calls is shown: a timer may strike in others
_TIMER: Final = "RequestCounts._on_interval"  # counts many requests: it belongs to none of them
_PATIENCE: Final = 30.0  # seconds


class Call(NamedTuple):
    """A call of a function of the package: its file below the package, and its qualified name."""

    file: str
    name: str


class _Counter:
    """A running server, and a client that has one request of many profiled."""

    def __init__(self) -> None:
        self.calls: list[Call] = []  # the fewest of one request
        self._calls: list[Call] = []
        self._client: threading.Thread | None = None
        self._url = ""
        self._loop: asyncio.AbstractEventLoop

    def on_progress(self, progress: Progress) -> None:
        """Start the client when the server is ready."""
        if progress.stage == "listening":
            self._url = progress.url
            self._loop = asyncio.get_running_loop()
        elif progress.stage == "settled" and self._client is None:
            self._client = threading.Thread(target=self._ask, daemon=True)
            self._client.start()

    def _ask(self) -> None:
        try:
            place = urllib.parse.urlsplit(self._url)
            connection = socket.create_connection((place.hostname or "", place.port or 0), _PATIENCE)
            for _ in range(_WARM):
                _post(connection)
            for _ in range(_COUNTED):
                self._calls = []
                self._on_loop(lambda: sys.setprofile(self._on_event))
                _post(connection)
                self._on_loop(lambda: sys.setprofile(None))
                if not self.calls or len(self._calls) < len(self.calls):
                    self.calls = self._calls
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_loop(self, work: Any) -> None:
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        if not done.wait(_PATIENCE):
            msg = "the loop of the server does not go on"
            raise TimeoutError(msg)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE) and not _is_of_timer(frame):
            self._calls.append(Call(file[len(_PACKAGE) :], frame.f_code.co_qualname))


def _is_of_timer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_qualname == _TIMER:
            return True
        frame = frame.f_back
    return False


def _post(connection: socket.socket) -> None:
    connection.sendall(_REQUEST)
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65_536)
        if not part:
            msg = f"the server has closed the connection after {answer!r}"
            raise RuntimeError(msg)
        answer += part
    if not answer.startswith(b"HTTP/1.1 200 "):
        msg = f"the server has answered {answer.decode()}"
        raise RuntimeError(msg)


def count() -> list[Call]:
    """Serve a small model, and return the calls of one request, in their order."""
    counter = _Counter()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "run.py").write_text(_MODEL)
        source = find_model(f"{folder}/run.py:Runner", environ={})
        run_server(
            ServeOptions(
                source=source,
                host="127.0.0.1",
                port=0,
                grpc=GrpcOptions(port=None),
                wakeup="blocking",  # the functions of an adaptive server depend on what else the machine does
                on_progress=counter.on_progress,
            )
        )
    return counter.calls


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each call")
    given = parser.parse_args(arguments)
    calls = count()
    if given.list:
        for call in calls:
            print(f"{call.file}: {call.name}")
    files = {call.file for call in calls}
    print(f"functions {len(set(calls))}, calls {len(calls)}, files {len(files)}")
    return 0 if calls else 1


if __name__ == "__main__":
    sys.exit(main())
