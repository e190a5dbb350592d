"""Loses nodes of a cluster of Ray under load, and counts what clients and webhooks see of it.

    python -m tools.try_ray_nodes            (as root, with `geartrain[ray,postgres]`, iproute2 and Postgres)

Three network namespaces are three nodes, each with a replica. It replaces the replicas by a deployment, cuts a node off
for a while, and kills all processes of it at once, whichever is named, each time with requests, streams and accepted
predictions under way, and prints what came of it. It takes some five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.ray_serve import REPLICA

NODES: Final = 3
BRIDGE: Final = "gtray"
HOST: Final = "10.77.0.1"
RUNS: Final = 8  # accepted predictions
STREAMS: Final = 4
CLIENTS: Final = 8
LEASE: Final = 5.0  # seconds
PATIENCE: Final = 120.0
MODEL: Final = """
import asyncio
from collections.abc import AsyncIterator
from geartrain import streaming
@streaming
async def run(seconds: float) -> AsyncIterator[str]:
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        yield "."
"""
ENVIRONMENT: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


def run(*words: str, check: bool = True) -> None:
    """Run a command of the system."""
    subprocess.run(words, check=check, stdout=subprocess.DEVNULL)  # noqa: S603 - all of them are written here


def address(node: int) -> str:
    """Return the address of a node."""
    return f"10.77.0.{10 + node}"


def node_of(url: str) -> str:
    """Name the node that a request goes to."""
    return f"node {int(url.rpartition('.')[2].partition(':')[0]) - 10}"


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Namespaces on a bridge, for the time of the block; what runs in them is killed at its end."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    try:
        for node in range(NODES):
            name = f"{BRIDGE}{node}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}v", "master", BRIDGE, "up")
            run("ip", "-n", name, "address", "add", f"{address(node)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", link, "up")
        yield
    finally:
        for node in range(NODES):
            kill(node)
            run("ip", "link", "del", f"{BRIDGE}{node}v", check=False)  # the namespace goes with its last process
            run("ip", "netns", "del", f"{BRIDGE}{node}", check=False)
        run("ip", "link", "del", BRIDGE, check=False)


def kill(node: int) -> None:
    """Kill every process of a node."""
    command = ["ip", "netns", "pids", f"{BRIDGE}{node}"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - as above
    for pid in map(int, found.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(node: int) -> None:
    """Start a node; the first one is the head."""
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", address(node), "--num-cpus", "2"]
    role = (
        ["--head", "--port", "6379", "--dashboard-host", address(0)]
        if node == 0
        else ["--address", f"{address(0)}:6379"]
    )
    run("ip", "netns", "exec", f"{BRIDGE}{node}", *ray, *role, "--disable-usage-stats")


def deploy(models: Path, store: str, *options: str) -> None:
    """Deploy three replicas, with a store or without, and wait for them."""
    words = ["deploy", "ray", str(models), "--name", "nodes", "--replicas", str(NODES), "--cpus", "1"]
    words += ["--address", f"http://{address(0)}:8265", "--option", "allow_private_urls=true", *options]
    words += ["--store", store, "--option", f"lease={LEASE}"] if store else []
    subprocess.run([sys.executable, "-m", "geartrain", *words], check=True)  # noqa: S603 - as above


class Receiver:
    """Counts the webhooks of ends, by prediction."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        told = json.loads(await reader.readexactly(size))
        self.ends[told["id"]] += 1
        self.statuses[told["status"]] += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def joined(unix: str) -> AsyncIterator[int]:
    """The socket of Postgres as a port of the bridge, which nodes that are cut off do not reach."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(unix)
        with contextlib.suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    async with await asyncio.start_server(join, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]


class Load:
    """What clients do while something is lost."""

    def __init__(self, hook: str) -> None:
        self._hook = hook
        self._urls = [f"http://{address(node)}:8000" for node in (0, 1)]
        self.good = self.cut = 0
        self.bad: Counter[str] = Counter()  # by what came instead of an answer
        self.accepted: list[str] = []
        self._is_over = False

    async def _ask(self, client: httpx.AsyncClient, url: str) -> None:
        while not self._is_over:
            try:
                answer = await client.post(f"{url}/predictions", json={"input": {"seconds": 0.05}})
                if answer.status_code == 200 and answer.json()["status"] == "succeeded":  # noqa: PLR2004
                    self.good += 1
                else:
                    self.bad[f"{answer.status_code} of {node_of(url)}: {answer.text[:60]}"] += 1
            except httpx.HTTPError as error:
                self.bad[f"{type(error).__name__} of {node_of(url)}"] += 1

    async def _stream(self, client: httpx.AsyncClient, url: str) -> None:
        try:
            headers = {"accept": "text/event-stream"}
            answer = await client.post(f"{url}/predictions", json={"input": {"seconds": 8}}, headers=headers)
            self.cut += "event: completed" not in answer.text
        except httpx.HTTPError:
            self.cut += 1

    async def accept(self, client: httpx.AsyncClient, seconds: float) -> None:
        """Have a prediction accepted that runs so long."""
        body = {"input": {"seconds": seconds}, "webhook": self._hook, "webhook_events_filter": ["completed"]}
        answer = await client.post(f"{self._urls[0]}/predictions", json=body, headers={"prefer": "respond-async"})
        assert answer.status_code == 202, answer.text  # noqa: S101, PLR2004 - a script
        self.accepted.append(answer.json()["id"])

    async def run_again(self, client: httpx.AsyncClient) -> int:
        """Return how many of the accepted ones were begun more than once, as the store has it."""
        answer = await client.get(f"{self._urls[0]}/predictions", params={"limit": 100})
        if answer.status_code != 200:  # noqa: PLR2004 - there is no store
            return 0
        return sum(each["id"] in self.accepted and each.get("attempts", 1) > 1 for each in answer.json()["results"])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[httpx.AsyncClient]:
        """Requests, streams and accepted predictions, from a moment before the block to its end."""
        async with httpx.AsyncClient(timeout=30.0) as client:
            asking = [asyncio.create_task(self._ask(client, self._urls[each % 2])) for each in range(CLIENTS)]
            await asyncio.sleep(2)
            streams = [asyncio.create_task(self._stream(client, self._urls[each % 2])) for each in range(STREAMS)]
            for _ in range(RUNS):
                await self.accept(client, 8.0)
            await asyncio.sleep(2)
            yield client
            await asyncio.gather(*streams)
            self._is_over = True
            await asyncio.gather(*asking)


async def replicas(client: httpx.AsyncClient, wanted: int, besides: set[str], node: int = 0) -> set[str]:
    """Ask a node until so many replicas have answered that are not those; return them."""
    seen: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < wanted:
            with contextlib.suppress(httpx.HTTPError):
                text = (await client.get(f"http://{address(node)}:8000/metrics", headers={"connection": "close"})).text
                seen |= set(REPLICA.findall(text)) - besides
            await asyncio.sleep(0.1)
    return seen


async def measure(what: str, models: Path, store: str) -> dict[str, Any]:
    """Lose something, and return what came of it."""
    receiver = Receiver()
    async with (
        await asyncio.start_server(receiver.take, HOST, 0) as hooks,
        httpx.AsyncClient(timeout=10.0) as looking,
    ):
        load = Load(f"http://{HOST}:{hooks.sockets[0].getsockname()[1]}/")
        for node in (0, 1):  # each has a HAProxy of its own, which starts by itself
            await replicas(looking, 1, set(), node)
        before = await replicas(looking, NODES, set())
        back = 0.0
        async with load.running():
            began = time.monotonic()
            if what == "kill":
                kill(2)
                await replicas(looking, 1, before)
                back = time.monotonic() - began
            elif what == "partition":
                run("ip", "link", "set", f"{BRIDGE}2v", "down")
                await asyncio.sleep(20)
                run("ip", "link", "set", f"{BRIDGE}2v", "up")
            else:
                await asyncio.to_thread(deploy, models, store, "--option", f"keep={time.time():.0f}")
                back = time.monotonic() - began
        until = time.monotonic() + 60
        while len(receiver.ends) < len(load.accepted) and time.monotonic() < until:  # noqa: ASYNC110 - a script
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)  # for ends that are told once more
        again = await load.run_again(looking)
    return {
        "what": what,
        "store": bool(store),
        "requests": load.good + load.bad.total(),
        "bad": dict(load.bad),
        "streams cut": f"{load.cut} of {STREAMS}",
        "accepted": len(load.accepted),
        "lost": len(set(load.accepted) - set(receiver.ends)),
        "run again": again,
        "told twice": sum(count > 1 for count in receiver.ends.values()),
        "ends": dict(receiver.statuses),
        "seconds": round(back, 1),
    }


async def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-store", action="store_true", help="keep no predictions: what was accepted is lost")
    parser.add_argument("what", nargs="*", default=["redeploy", "kill"], help="of redeploy, partition, kill")
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (work / "wait").mkdir()
        (work / "wait/run.py").write_text(MODEL)
        (work / "wait/cog.yaml").write_text("concurrency: {max: 100}\n")
        stack.enter_context(network())
        store = ""
        async with contextlib.AsyncExitStack() as later:
            if not arguments.without_store:
                from tests.support.postgres import running_postgres  # late: the losses of rows need no psycopg

                postgres = stack.enter_context(running_postgres())
                folder = postgres.url.partition("host=")[2]
                port = await later.enter_async_context(joined(f"{folder}/.s.PGSQL.5432"))
                store = f"postgres://geartrain@{HOST}:{port}/postgres"
            for node in range(NODES):
                await asyncio.to_thread(start, node)
            await asyncio.to_thread(deploy, work / "wait", store)
            for what in arguments.what:
                print(json.dumps(await measure(what, work / "wait", store)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
