"""Functions and files of the server that one small request runs, counted with a profiler in the server's process.

python -m tools.count_calls           # of one POST /predictions to a running server with a sync model
python -m tools.count_calls --list    # each function with its file, in the order of the calls
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import pathlib
import signal
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

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
_PACKAGE: Final = str(ROOT / "src" / "geartrain") + os.sep
_MODEL: Final = """
from geartrain import BaseRunner

class Runner(BaseRunner):
    def run(self, text: str) -> str:
        return text
"""
_BODY: Final = b'{"input": {"text": "hi"}}'
_WARM: Final = 20  # requests before the one that is counted: caches are filled
_PATIENCE: Final = 30.0  # seconds


class Call(NamedTuple):
    """A call of a function of the package: its file below the package, and its qualified name."""

    file: str
    name: str


class _Counter:
    """A running server, and a client that has one request of many profiled."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
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
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_PATIENCE)
            for _ in range(_WARM):
                _post(connection)
            self._on_loop(lambda: sys.setprofile(self._on_event))
            _post(connection)
            self._on_loop(lambda: sys.setprofile(None))
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
        if event == "call" and file.startswith(_PACKAGE):
            self.calls.append(Call(file[len(_PACKAGE) :], frame.f_code.co_qualname))


def _post(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/predictions", _BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != http.client.OK:
        msg = f"the server has answered {answer.status}: {text.decode()}"
        raise RuntimeError(msg)


def count() -> list[Call]:
    """Serve a small model, and return the calls of one request, in their order."""
    counter = _Counter()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "run.py").write_text(_MODEL)
        source = find_model(f"{folder}/run.py:Runner", environ={})
        run_server(ServeOptions(source=source, host="127.0.0.1", port=0, on_progress=counter.on_progress))
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
