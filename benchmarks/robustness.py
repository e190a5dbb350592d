"""Whether the server keeps serving: many clients for one slot, clients that disconnect, one client that never pauses.

`python benchmarks/robustness.py --help`. Prints what was counted, and memory, descriptors and threads before and after,
as markdown. Ends with 1 if an answer was not as it must be, if one did not come, or if something was not given back.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from http import HTTPStatus

from report import table
from servers import HERE, Running, Server, geartrain, processes_of, running

TIMEOUT = 10.0  # seconds that a client waits for an answer
SOON = 5.0  # seconds within which a prediction whose client has gone is over
WAVE = 100  # clients that disconnect together
PAUSE = 0.5  # seconds between two looks at what a server uses
POOL = min(32, (os.cpu_count() or 1) + 4)  # threads of the loop's pool: they come with work, and stay
STILL = 100_000  # bytes that its memory may have grown by in them
WARM_UP = 1.0  # seconds of load before the first look at the memory
GROWTH = 8 * 1024**2  # bytes by which memory may grow, for what allocators keep


class Violation(Exception):  # noqa: N818 - it is no error of this program
    """Something that must not happen."""


class Client:
    """One connection that asks, and reads answers with a length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, method: str, path: str, body: object = None) -> None:
        """Ask."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
        head += f"\r\ncontent-length: {len(data)}"
        self._writer.write(f"{head}\r\n\r\n".encode() + data)

    async def answer(self) -> tuple[int, dict[str, object]]:
        """Read status and body; raises `Violation` if they do not come."""
        try:
            async with asyncio.timeout(TIMEOUT):
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body: dict[str, object] = json.loads(await self._reader.readexactly(length))
        except TimeoutError:
            raise Violation(f"no answer within {TIMEOUT:g} s") from None
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise Violation(f"the server disconnected: {error}") from None
        return int(head.split(b" ", 2)[1]), body

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        """Ask and read the answer."""
        self.send(method, path, body)
        return await self.answer()

    def hang_up(self, *, rudely: bool) -> None:
        """Close; rudely means with a reset."""
        if rudely:
            self._writer.transport.abort()
        else:
            self._writer.close()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """Connect, and disconnect at the end."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        client.hang_up(rudely=False)


@dataclasses.dataclass(frozen=True)
class Use:
    """What a server uses, in all its processes."""

    memory: int  # bytes
    descriptors: int
    threads: int

    @classmethod
    def of(cls, server: Running) -> Use:
        """Look now."""
        processes = [pathlib.Path(f"/proc/{pid}") for pid in processes_of(server.pid)]
        return cls(
            server.memory(),
            sum(len(list((process / "fd").iterdir())) for process in processes),
            sum(len(list((process / "task").iterdir())) for process in processes),
        )


@dataclasses.dataclass
class Result:
    """What one trial has counted."""

    title: str
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    longest: float = 0.0  # seconds that an answer, or the end of a prediction, took
    violations: list[str] = dataclasses.field(default_factory=list)


# the trials


async def crowd(port: int, clients: int, seconds: float) -> Result:
    """So many clients for one slot: each is answered 200 with its own text, or 409."""
    result = Result(f"{clients} clients, 1 slot, {seconds:g} s")
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        async with connected(port) as client:
            while time.perf_counter() < end:
                began = time.perf_counter()
                text = f"client {number} at {began}"
                body = {"input": {"text": text, "seconds": 0.002}}
                status, answer = await client.ask("POST", "/predictions", body)
                result.longest = max(result.longest, time.perf_counter() - began)
                result.counts[str(status)] += 1
                is_good = status == HTTPStatus.OK and (answer["status"], answer["output"]) == ("succeeded", text)
                if not is_good and status != HTTPStatus.CONFLICT:
                    raise Violation(f"answered {status} {answer}")

    await gather(result, [one(number) for number in range(clients)])
    if not result.counts["200"] or not result.counts["409"]:
        result.violations.append(f"no crowd: {dict(result.counts)}")
    return result


async def sequence(port: int, predictions: int) -> Result:
    """One client on one connection, each prediction right after the answer to the one before (D1)."""
    result = Result(f"{predictions} predictions in a row, 1 slot")

    async def one() -> None:
        async with connected(port) as client:
            for number in range(predictions):
                began = time.perf_counter()
                status, answer = await client.ask("POST", "/predictions", {"input": {"text": str(number)}})
                result.longest = max(result.longest, time.perf_counter() - began)
                result.counts[str(status)] += 1
                if status != HTTPStatus.OK or answer["output"] != str(number):
                    raise Violation(f"answered {status} {answer}")

    await gather(result, [one()])
    return result


async def disconnects(port: int, clients: int, *, done: int = 0) -> Result:
    """Clients that disconnect while their prediction runs; the last wave shows that every slot has come back.

    `done`: how many such clients there have been before.
    """
    result = Result(f"{clients} clients that disconnect, {WAVE} at a time")

    async def all_waves() -> None:
        async with connected(port) as watcher:
            for begun in range(done + WAVE, done + clients + WAVE + 1, WAVE):
                wave = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(WAVE)]
                for number, client in enumerate(wave):
                    # The two ways to a prediction: plain, and by an id of the client's.
                    method, path = ("POST", "") if number % 2 else ("PUT", f"/{begun}-{number}")
                    client.send(method, f"/predictions{path}", {"input": {"what": "wait"}})
                await until(watcher, "begun", begun)
                began = time.perf_counter()
                for number, client in enumerate(wave):
                    client.hang_up(rudely=number % 3 == 0)
                await until(watcher, "canceled", begun)
                result.longest = max(result.longest, time.perf_counter() - began)
                result.counts["canceled"] += WAVE

    await gather(result, [all_waves()])
    return result


async def early_hang_ups(port: int, clients: int) -> Result:
    """Clients that disconnect as soon as they have asked; some of their predictions never begin."""
    result = Result(f"{clients} clients that disconnect at once")

    async def one(number: int) -> None:
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        client.send("POST", "/predictions", {"input": {"text": "x", "seconds": 600}})
        client.hang_up(rudely=number % 2 == 0)
        result.counts["disconnected"] += 1

    async def all_clients() -> None:
        for number in range(clients):
            await one(number)
        began = time.perf_counter()
        async with connected(port) as client:
            while (await client.ask("POST", "/predictions", {"input": {"text": "free"}}))[0] != HTTPStatus.OK:
                if time.perf_counter() - began > SOON:
                    raise Violation("the slot has not come back")
        result.longest = time.perf_counter() - began

    await gather(result, [all_clients()])
    return result


async def until(watcher: Client, name: str, expected: int) -> None:
    """Ask the counting model until a count is as expected."""
    deadline = time.perf_counter() + SOON
    while True:
        status, answer = await watcher.ask("POST", "/predictions", {"input": {}})
        counts = answer.get("output")
        if status == HTTPStatus.OK and isinstance(counts, dict) and counts[name] == expected:
            return
        if time.perf_counter() > deadline:
            raise Violation(f"after {SOON:g} s: {name} is not {expected}: {status} {answer}")


async def gather(result: Result, clients: list[Coroutine[None, None, None]]) -> None:
    """Run clients together, and keep what they complain of."""
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(ended, Violation | OSError):
            result.violations.append(f"{type(ended).__name__}: {ended}")
        elif ended is not None:
            raise ended


async def is_ready(port: int) -> bool:
    """Whether the server says so."""
    async with connected(port) as client:
        return (await client.ask("GET", "/health-check"))[1]["status"] == "READY"


# the servers


@contextlib.contextmanager
def served(model: str, slots: int, violations: list[str]) -> Iterator[tuple[Running, pathlib.Path]]:
    """Serve a model, with a directory for temporary files of its own; none may be left."""
    with tempfile.TemporaryDirectory() as folder:
        server: Server = geartrain(HERE / "models" / model, slots=slots)
        # gRPC opens some time after the server is ready: what it takes then would look like a leak.
        command = (*server.command, "--grpc-port", "off")
        server = dataclasses.replace(server, command=command, environment={**server.environment, "TMPDIR": folder})
        with running(server) as process:
            yield process, pathlib.Path(folder)
        left = [path.name for path in pathlib.Path(folder).iterdir()]
    if left:
        violations.append(f"{model}: the server has left {left}")


async def steady(server: Running) -> Use:
    """What a server uses when its memory grows no more: some of what it needs is imported after it is ready."""
    use = Use.of(server)
    while True:
        await asyncio.sleep(PAUSE)
        before, use = use, Use.of(server)
        if use.memory - before.memory <= STILL and use.threads == before.threads:
            return use


async def rested(server: Running, before: Use) -> Use:
    """What a server uses once it has closed the connections of clients that have gone."""
    deadline = time.perf_counter() + SOON
    while True:
        use = Use.of(server)
        if use.descriptors <= before.descriptors or time.perf_counter() > deadline:
            return use
        await asyncio.sleep(0.1)


def files(folder: pathlib.Path) -> int:
    """How many temporary files there are."""
    return sum(path.is_file() for path in folder.rglob("*"))


def compared(title: str, before: Use, after: Use) -> tuple[list[str], list[str]]:
    """A line of the second table, and what is wrong with it."""
    wrong = []
    if after.memory - before.memory > GROWTH:
        wrong.append(f"{title}: memory has grown by {(after.memory - before.memory) / 1e6:.1f} MB")
    if after.descriptors > before.descriptors:
        wrong.append(f"{title}: {after.descriptors - before.descriptors} descriptors were not given back")
    if after.threads > before.threads + POOL:
        wrong.append(f"{title}: {after.threads - before.threads} threads have stayed")
    memory = f"{before.memory / 1e6:.1f} → {after.memory / 1e6:.1f}"
    line = [title, memory, f"{before.descriptors} → {after.descriptors}", f"{before.threads} → {after.threads}"]
    return line, wrong


async def main(arguments: argparse.Namespace) -> int:
    """Run everything; return the exit code."""
    results: list[Result] = []
    uses: list[list[str]] = []
    violations: list[str] = []

    async def settle(title: str, server: Running, folder: pathlib.Path, *, before: Use) -> None:
        if not await is_ready(server.port):
            violations.append(f"{title}: not READY afterwards")
        after = await rested(server, before)
        line, wrong = compared(title, before, after)
        uses.append(line)
        violations.extend(wrong)
        if files(folder):
            violations.append(f"{title}: {files(folder)} temporary files are left")

    with served("echo", 1, violations) as (server, folder):
        await crowd(server.port, arguments.clients, WARM_UP)
        before = await steady(server)
        results.append(await crowd(server.port, arguments.clients, arguments.seconds))
        results.append(await sequence(server.port, arguments.sequence))
        results.append(await early_hang_ups(server.port, arguments.disconnects))
        await settle("echo, 1 slot", server, folder, before=before)
    with served("counting", WAVE + 1, violations) as (server, folder):
        warmed_up = await disconnects(server.port, WAVE)
        before = await steady(server)
        done = warmed_up.counts["canceled"]
        results.append(await disconnects(server.port, arguments.disconnects, done=done))
        await settle(f"counting, {WAVE + 1} slots", server, folder, before=before)

    rows = []
    for result in results:
        counts = ", ".join(f"{count} × {name}" for name, count in sorted(result.counts.items()))
        rows.append([result.title, counts, f"{result.longest * 1000:.0f}", str(len(result.violations))])
        violations += [f"{result.title}: {violation}" for violation in result.violations]
    print(table(["trial", "counted", "longest, ms", "violations"], rows))
    print(table(["server", "PSS, MB", "descriptors", "threads"], uses))
    for violation in violations[:20]:
        print(f"VIOLATION: {violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200, help="in the crowd")
    parser.add_argument("--seconds", type=float, default=20, help="that the crowd stays")
    parser.add_argument("--sequence", type=int, default=2000, help="predictions in a row")
    parser.add_argument("--disconnects", type=int, default=1000, help="clients that disconnect")
    sys.exit(asyncio.run(main(parser.parse_args())))
