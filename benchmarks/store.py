"""How many predictions a second a store accepts, each safe on disk before its client hears of it.

Beside SQLite stands the bare group commit: sqlite3 alone, with the same rows in the same tables, one transaction for
all who wait, and nothing else. Both run in turns, so that their ratio holds on a machine whose speed changes. Postgres
is measured if `--postgres` names a database, in which the tables of a store are made.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from geartrain.domain.predictions.ledger import Claim, Key, Submission
from geartrain.store import sql
from geartrain.store.sqlite import DIALECT
from geartrain.store.store import open_store

ECHO = b'{"text":"' + b"e" * 189 + b'"}'
REQUEST = b"r" * 200
OWNER = "replica"
LEASE = 3600.0  # seconds

COLUMNS = (
    "model, id, state, status, owner, epoch, nonce, version, created_at, echo, error, size, request, key_id, retry, "
    "most_attempts, attempts, is_cancel_requested"
)
ROW = ("accepted", "starting", OWNER, 1, 1, "1", 0.0, ECHO, "", len(ECHO), REQUEST, "", "always", 3, 1, 0)
INSERT = f"INSERT INTO geartrain_predictions ({COLUMNS}) VALUES ({', '.join('?' * 18)})"  # noqa: S608 - our own text

Accept = Callable[[str], Awaitable[Any]]


class BareGroupCommit:
    """sqlite3 in a thread: all rows that wait are inserted at once, in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[tuple[str, asyncio.Future[None]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    async def accept(self, name: str) -> None:
        """Insert a row; it is safe on disk when this returns."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((name, future))
        await future

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        for statement in sql.CREATE:
            connection.execute(DIALECT.render(statement))
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while True:
                try:
                    following = self._queue.get_nowait()
                except Empty:
                    break
                if following is None:
                    break
                jobs.append(following)
            connection.execute("BEGIN")
            connection.executemany(INSERT, [("model", name, *ROW) for name, _ in jobs])
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_tell, [future for _, future in jobs])
        connection.close()


def _tell(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


async def measure(accept: Accept, *, clients: int, seconds: float, prefix: str) -> tuple[float, float]:
    """Return how many were accepted a second, and the median of the milliseconds that one took."""
    times: list[float] = []
    ends = time.perf_counter() + seconds

    async def client(number: int) -> None:
        begun = time.perf_counter()
        count = 0
        while begun < ends:
            await accept(f"{prefix}-{number}-{count}")
            now = time.perf_counter()
            times.append(now - begun)
            begun = now
            count += 1

    begun = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return len(times) / (time.perf_counter() - begun), statistics.median(times) * 1000


async def bare(path: Path, clients: int, seconds: float) -> tuple[float, float]:
    """Measure the bare group commit."""
    store = BareGroupCommit(path)
    try:
        return await measure(store.accept, clients=clients, seconds=seconds, prefix="p")
    finally:
        store.close()


async def stored(url: str, clients: int, seconds: float) -> tuple[float, float]:
    """Measure a store."""
    store = await open_store(url)
    prefix = os.urandom(4).hex()
    try:
        await store.replicas.renew(OWNER, address="", seconds=LEASE)

        async def accept(name: str) -> None:
            result = await store.ledger.accept(Claim(Key("model", name), OWNER, "1", 0.0, ECHO), Submission(REQUEST))
            if not result.is_granted:
                raise RuntimeError(name)

        return await measure(accept, clients=clients, seconds=seconds, prefix=prefix)
    finally:
        await store.close()


async def run(arguments: argparse.Namespace) -> None:
    """Measure, and print a table."""
    print("| store | clients | accepted/s | p50 ms | of the bare group commit |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for clients in arguments.clients:
        found: dict[str, list[tuple[float, float]]] = {"bare group commit": [], "SQLite": [], "Postgres": []}
        for number in range(arguments.rounds):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                names = ["bare group commit", "SQLite"]
                for name in names if number % 2 else reversed(names):
                    path = Path(folder) / f"{name}.db"
                    work = bare(path, clients, arguments.seconds) if name != "SQLite" else None
                    found[name].append(await (work or stored(f"sqlite:///{path}", clients, arguments.seconds)))
            if arguments.postgres:
                found["Postgres"].append(await stored(arguments.postgres, clients, arguments.seconds))
        for name, rounds in found.items():
            if rounds:
                rate, took = (statistics.median(values) for values in zip(*rounds, strict=True))
                pairs = zip(rounds, found["bare group commit"], strict=True)
                ratio = statistics.median(one[0] / other[0] for one, other in pairs)
                shown = "" if name == "bare group commit" else f"{ratio:.2f}"
                print(f"| {name} | {clients} | {rate:,.0f} | {took:.2f} | {shown} |", flush=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], help="that ask at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--folder", default=".", help="on the disk that is measured")
    parser.add_argument("--postgres", default="", help="the URL of a database")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
