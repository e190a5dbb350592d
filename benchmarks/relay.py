"""What it costs to ask another server for a prediction than the one that runs it.

Two servers share a database; one of them runs a prediction that does not end. Its state is asked for in turns: of the
server that runs it, of the other one, which hands the request over, and through httpx instead, which is what a relay
over httpx would add to each request. The turns are interleaved, so that a machine whose speed changes changes all of
them. The tables of a store are made in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import httpx

from servers import ROOT, Server, geartrain, running

MODEL = """
import asyncio

from geartrain import BaseRunner, concurrent


class Runner(BaseRunner):
    @concurrent(max=8)
    async def run(self) -> str:
        await asyncio.Event().wait()
        return ""
"""

WARM_UP = 50  # requests of each, which open connections

Ask = Callable[[], Awaitable[None]]


class PlainClient:
    """Sends the same GET again and again on one connection."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._request = f"GET /predictions/{name} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def get(self) -> None:
        """Ask, and read the answer to its end."""
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        length = head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
        await self._reader.readexactly(int(length))

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def measure(asks: Mapping[str, Ask], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each took, of each in turns."""
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for number in range(rounds + WARM_UP):
        for name, ask in asks.items():
            began = time.perf_counter()
            await ask()
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - began)
    return taken


async def compare(owner: int, other: int, name: str, *, rounds: int) -> dict[str, list[float]]:
    """Ask both servers for a prediction, which the first runs; `owner` and `other` are ports."""
    direct, relayed = PlainClient(owner, name), PlainClient(other, name)
    await direct.open()
    await relayed.open()
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{owner}/predictions/{name}"

        async def through_httpx() -> None:
            (await client.get(url)).raise_for_status()

        asks = {"owner": direct.get, "relayed": relayed.get, "owner, by httpx": through_httpx}
        try:
            return await measure(asks, rounds=rounds)
        finally:
            direct.close()
            relayed.close()


def begin(port: int, name: str) -> None:
    """Have a server accept a prediction."""
    headers = {"content-type": "application/json", "prefer": "respond-async"}
    url = f"http://127.0.0.1:{port}/predictions/{name}"
    request = urllib.request.Request(url, b'{"input":{}}', headers, method="PUT")
    with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
        json.load(response)


def clustered(model: Path, store: str, token: Path) -> Server:
    """A server that shares a store."""
    alone = geartrain(model)
    options = ("--store", store, "--advertise", "127.0.0.1", "--cluster-token-file", str(token))
    quiet = ("--access-log", "off", "--grpc-port", "off", "--shutdown-grace", "1ms")
    return Server(name="geartrain", command=(*alone.command, *options, *quiet), folder=ROOT)


def main() -> None:
    """Measure, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, metavar="URL", help="postgres://USER@HOST/DATABASE")
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, token = Path(folder) / "model", Path(folder) / "token"
        model.mkdir()
        (model / "run.py").write_text(MODEL)
        token.write_text(secrets.token_urlsafe(32))
        server = clustered(model, given.store, token)
        with running(server) as owner, running(server) as other:
            name = f"bench-{secrets.token_hex(8)}"
            begin(owner.port, name)
            taken = asyncio.run(compare(owner.port, other.port, name, rounds=given.rounds))
    base = statistics.median(taken["owner"])
    print("| asked | p50 ms | p99 ms | p50 over the owner's, ms |")
    print("|---|---|---|---|")
    for name, seconds in taken.items():
        p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
        print(f"| {name} | {1e3 * p50:.2f} | {1e3 * p99:.2f} | {1e3 * (p50 - base):.2f} |")


if __name__ == "__main__":
    main()
