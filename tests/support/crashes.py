"""Kills a server with a store, its worker, or both, at random moments, and looks for what was lost.

In other rounds the server dies at a random line of what writes predictions down (see `dying_server`), so that no step
of the store is left out, however short it is. `python -m tests.support.crashes --rounds 500` does it as often as one
likes, and with `--store postgres` on a database of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import msgspec
import psutil

from geartrain.domain.predictions.ledger import RowFilter
from geartrain.domain.predictions.lifecycle import Status
from geartrain.store.store import open_store
from tests.support.postgres import running_postgres

PATIENCE: Final = 60.0  # seconds
TERMINAL: Final = frozenset({"succeeded", "failed", "canceled"})
_MODEL: Final = """
import time
from collections.abc import Iterator

class Runner:
    def run(self, pause: float) -> Iterator[int]:
        for number in range(3):
            print("at", number)
            yield number
            time.sleep(pause)
"""

_MOST_LINES: Final = 20_000  # of the store, after which a server dies that is to die at one: more than a round has

Victims = Literal["server", "worker", "both", "step"]
VICTIMS: Final[tuple[Victims, ...]] = ("server", "worker", "both", "step")


class _Hooks(ThreadingHTTPServer):
    """Takes webhooks, and remembers of which predictions they tell the end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.told: dict[str, list[bytes]] = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the server that has sent it was killed."""


class _Hook(BaseHTTPRequestHandler):
    server: _Hooks

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        prediction = msgspec.json.decode(body)
        if prediction["status"] in TERMINAL:
            with self.server.lock:
                self.server.told.setdefault(prediction["id"], []).append(body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


class Crashes:
    """One store, and one server after the other on it."""

    def __init__(self, url: str, folder: Path, *, seed: int, clients: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.py").write_text(_MODEL)
        self.accepted: list[str] = []
        self.kills = 0
        self.steps = 0  # servers that have died at a line of the store
        self._ends: dict[str, bytes] = {}  # as they were first told
        self._faults: list[str] = []
        self._url = url
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._clients = clients
        self._hooks = _Hooks()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._port = 0

    def close(self) -> None:
        """End what is left."""
        for server in self._servers:
            _kill([*_family(server.pid), server.pid])
            server.wait()
        self._hooks.shutdown()
        self._hooks.server_close()

    def round(self, victims: Victims) -> None:
        """Have clients ask for predictions, and kill something meanwhile."""
        # As many early lines as late ones: the start of a server has few.
        line = int(math.exp(self._random.uniform(0, math.log(_MOST_LINES)))) if victims == "step" else 0
        with self._serving(line) as server:
            stop = threading.Event()
            asking = [threading.Thread(target=self._ask, args=(stop,)) for _ in range(self._clients)]
            for thread in asking:
                thread.start()
            if line:
                self._join(asking)
                self._look(self._random.sample(self.accepted, min(3, len(self.accepted))))
                self.steps += server.poll() is not None
            else:
                time.sleep(self._random.uniform(0.02, 0.3))
                self._look(self._random.sample(self.accepted, min(3, len(self.accepted))))
            workers = _family(server.pid)
            _kill([*(workers if victims != "server" else []), *([server.pid] if victims != "worker" else [])])
            self.kills += 1
            stop.set()
            self._join(asking)
            if victims == "worker":
                _kill([*_family(server.pid), server.pid])  # without a worker it takes nothing any more
            server.wait()
            _kill(workers)

    def _join(self, asking: list[threading.Thread]) -> None:
        for thread in asking:
            thread.join(PATIENCE)
            if thread.is_alive():
                self._faults.append("a client has got no answer")

    def settle(self) -> None:
        """Serve until everything has ended, and every webhook has come."""
        with self._serving() as server:
            until = time.monotonic() + PATIENCE  # from the last progress on
            waiting = list(self.accepted)
            while waiting and time.monotonic() < until:
                self._look(waiting)
                left = [name for name in waiting if name not in self._ends or name not in self._hooks.told]
                if len(left) < len(waiting):
                    until = time.monotonic() + PATIENCE
                waiting = left
                time.sleep(0.02)
            server.terminate()
            server.wait()

    def faults(self) -> list[str]:
        """Return what was lost, or has ended twice. Nothing serves any more."""
        found = [*self._faults, *asyncio.run(self._open_ends())]
        for name in self.accepted:
            if name not in self._ends:
                found.append(f"{name} has not ended")
            told = self._hooks.told.get(name, [])
            if not told:
                found.append(f"nobody was told of the end of {name}")
            found += [f"{name} was told to have ended as {body!r}" for body in told if body != self._ends.get(name)]
        return found

    async def _open_ends(self) -> list[str]:
        """Return what the store says has not ended, or has not been told."""
        store = await open_store(self._url)
        try:
            page = await store.ledger.list_rows(
                RowFilter(statuses=frozenset({Status.STARTING, Status.PROCESSING})), limit=100
            )
            found = [f"the row of {row.ownership.key.id} is {row.state}" for row in page.rows]
            for owner in ("", *(replica.owner for replica in await store.replicas.alive())):
                entries = await store.outbox.lease(owner, limit=100, seconds=1)
                found += [f"the webhook of {entry.key.id} is still in the outbox" for entry in entries]
            return found
        finally:
            await store.close()

    @contextlib.contextmanager
    def _serving(self, line: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """Run a server; it dies at a line of the store, unless that is 0."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        arguments = ["--port", str(self._port), "--store", self._url, "--queue", "10000", "--attempts", "1000"]
        rest = ["--grpc-port", "off", "--lease", "6s", "--allow-private-urls", "--access-log", "off"]
        with (self._folder / "log").open("ab") as log:
            program = ["tests.support.dying_server", str(line)] if line else ["geartrain"]
            server = subprocess.Popen(
                [sys.executable, "-m", *program, "serve", str(self._folder), *arguments, *rest],
                stderr=log,
                env={**os.environ, "LOG_FORMAT": "json"},
            )
        self._servers.append(server)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and server.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{self._port}/readyz").status_code == 200:
                    break
            time.sleep(0.02)
        yield server
        self._servers.remove(server)

    def _ask(self, stop: threading.Event) -> None:
        url = f"http://127.0.0.1:{self._port}"
        hook = f"http://127.0.0.1:{self._hooks.server_address[1]}/"
        with httpx.Client(base_url=url, timeout=PATIENCE) as client, contextlib.suppress(httpx.HTTPError):
            for _ in range(12):  # so that a round is soon over
                if stop.is_set():
                    return
                name = os.urandom(8).hex()
                body = {"input": {"pause": 0.002}, "webhook": hook, "webhook_events_filter": ["completed"]}
                answer = client.put(f"/predictions/{name}", json=body, headers={"prefer": "respond-async"})
                if answer.status_code == 202:
                    self.accepted.append(name)
                    if self._random.random() < 0.1:
                        client.post(f"/predictions/{name}/cancel")

    def _look(self, names: list[str]) -> None:
        """Ask how some stand; an end may be told once only."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=PATIENCE) as client:
            for name in names:
                try:
                    answer = client.get(f"/predictions/{name}")
                except httpx.HTTPError:
                    return
                if answer.status_code == 404:
                    self._faults.append(f"{name} is gone")
                has_ended = answer.status_code == 200 and answer.json()["status"] in TERMINAL
                if has_ended and self._ends.setdefault(name, answer.content) != answer.content:
                    self._faults.append(f"{name} has ended twice: {answer.text}")


def _family(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def main() -> None:
    """Do it many times, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--store", default="", help="sqlite:///… by default, or `postgres` for a server of its own")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = options.store or f"sqlite:///{folder}/store.db"
        if url == "postgres":
            url = stack.enter_context(running_postgres()).emptied()
        crashes = stack.enter_context(contextlib.closing(Crashes(url, Path(folder) / "model", seed=options.seed)))
        chosen = random.Random(options.seed)  # noqa: S311 - no secret
        for _ in range(options.rounds):
            crashes.round(chosen.choice(VICTIMS))
        crashes.settle()
        faults = crashes.faults()
    sys.stdout.write(f"{crashes.kills} kills, {crashes.steps} of them at a line of the store, ")
    sys.stdout.write(f"{len(crashes.accepted)} accepted, {len(faults)} faults\n")
    sys.stdout.writelines(f"{fault}\n" for fault in faults[:20])
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
