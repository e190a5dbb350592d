"""A loop of steps that requests join and leave, beside LitServe's continuous loop: pieces a second, the first piece.

`python benchmarks/steps.py --help`. A step takes 5 ms for all that are there, 32 at most. 32 clients ask for streams of
10 to 200 pieces, one after the other; both servers take turns in rounds, and what counts is the median of the rounds.
Prints markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import NamedTuple

from peer_servers import litserve
from report import machine, table
from servers import HERE, Server, running, serving

CLIENTS = 32
SHORTEST, LONGEST = 10, 200  # pieces
MARK = b"#"  # each piece is one


class Peer(NamedTuple):
    """A server, with the path of its endpoint and the body for so many steps."""

    server: Server
    path: str
    body: str


def peers() -> dict[str, Peer]:
    """Both servers; the first call installs LitServe."""
    own = serving(HERE / "models/steps", "--queue", "1000")
    return {
        "geartrain": Peer(own, "/predictions", '{"input": {"steps": %d}}'),
        "LitServe": Peer(litserve(script="steps.py", batch_timeout=0.0), "/predict", '{"steps": %d}'),
    }


async def ask(port: int, peer: Peer, steps: int) -> float:
    """Read a stream to its end; return the seconds until its first piece. Raises `RuntimeError` for another number."""
    body = (peer.body % steps).encode()
    head = f"POST {peer.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: text/event-stream\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    found, first, data = 0, 0.0, b""
    while b"\r\n\r\n" not in data and (more := await reader.read(65_536)):
        data += more
    data = data.partition(b"\r\n\r\n")[2]
    while True:
        found += data.count(MARK)
        first = first or (time.perf_counter() - begin if found else 0.0)
        data = await reader.read(65_536)
        if not data:
            break
    writer.close()
    if found not in {steps, steps + 1, 2 * steps}:  # the last event may have all of them once more
        raise RuntimeError(f"{found} pieces instead of {steps}")
    return first


async def measure(port: int, peer: Peer, lengths: list[int]) -> tuple[float, list[float]]:
    """Ask for streams of these lengths; return the pieces a second, and the seconds until the first of each stream."""
    rest, firsts = iter(lengths), []

    async def client() -> None:
        firsts.extend([await ask(port, peer, steps) for steps in rest])

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return sum(lengths) / (time.perf_counter() - begin), firsts


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=320, help="streams of a turn (default: 320)")
    given = parser.parse_args()
    chance = random.Random(1)  # noqa: S311 - lengths
    lengths = [chance.randint(SHORTEST, LONGEST) for _ in range(given.streams)]
    found = peers()
    rates: dict[str, list[float]] = {name: [] for name in found}
    firsts: dict[str, list[float]] = {name: [] for name in found}
    for number in range(given.rounds):
        for name in sorted(found, reverse=number % 2 == 1):
            peer = found[name]
            with running(peer.server) as started:
                asyncio.run(measure(started.port, peer, lengths[:CLIENTS]))
                rate, waits = asyncio.run(measure(started.port, peer, lengths))
            rates[name].append(rate)
            firsts[name] += waits
    rows = [
        [
            name,
            f"{statistics.median(rates[name]):.0f}",
            f"{1000 * statistics.median(firsts[name]):.1f}",
            f"{1000 * statistics.quantiles(firsts[name], n=100)[-1]:.1f}",
        ]
        for name in found
    ]
    print(machine())
    print(f"{given.rounds} rounds of {given.streams} streams, {CLIENTS} clients.\n")
    print(table(["loop", "pieces/s", "first piece, p50 ms", "p99 ms"], rows))


if __name__ == "__main__":
    main()
