"""Kept answers: a hit beside a run that does nothing, the cost of a miss, and many equal requests at once.

`python benchmarks/cached.py --help`. One server has the same model twice, with a cache and without one. Blocks of
requests to both take turns, over so many connections that each carry one request at a time; what counts is the median
of the blocks. The last figure is the number of runs for 1000 equal requests that come at once. Prints markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence

from report import machine, table
from servers import running, serving

MODEL = """
import time

count = 0

def run(text: str, seconds: float = 0.0) -> str:
    global count
    count += 1
    if seconds:
        time.sleep(seconds)
    return f"{text} {count}"
"""
AT_ONCE = 1000


class Connections:
    """Connections to a server that are kept."""

    def __init__(self, port: int, number: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]

    def close(self) -> None:
        """Close all of them."""
        for each in self._sockets:
            each.close()

    def ask(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send a request on each connection, as long as there are some; return the responses."""
        found = []
        number = len(self._sockets)
        for start in range(0, len(requests), number):
            group = requests[start : start + number]
            for each, request in zip(self._sockets, group, strict=False):
                each.sendall(request)
            found += [_response(each) for each, _ in zip(self._sockets, group, strict=False)]
        return found


def _response(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    while data and len(data) < _length(data):
        more = connection.recv(65_536)
        if not more:
            break
        data += more
    if not data.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server answered {data[:300]!r}")
    return data


def _length(data: bytes) -> int:
    """Return the bytes of the response that begins with `data`; more than there are while its head is not whole."""
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end:
        return len(data) + 1
    (length,) = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + len(end) + int(length)


def request(model: str, **inputs: object) -> bytes:
    """Make a request for a prediction."""
    body = json.dumps({"input": inputs}).encode()
    head = f"POST /models/{model}/predictions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def block(connections: Connections, requests: list[bytes], cache: bytes) -> float:
    """Return the seconds that a request takes; `cache` is what `X-Cache` says of each of them, empty for nothing."""
    began = time.perf_counter()
    answers = connections.ask(requests)
    seconds = (time.perf_counter() - began) / len(requests)
    wrong = [each for each in answers if (b"x-cache: " + cache in each if cache else b"x-cache" not in each) is False]
    if wrong:
        raise RuntimeError(f"not {cache!r}: {wrong[0][:300]!r}")
    return seconds


def measure(port: int, connections: int, *, blocks: int, size: int) -> dict[str, list[float]]:
    """Return the seconds of a request in each block."""
    numbers = itertools.count()
    clients = Connections(port, connections)
    clients.ask([request("kept", text="same")])
    seen: dict[str, list[float]] = {"run": [], "hit": [], "miss": []}
    for turn in range(blocks + 1):
        texts = [f"{connections} {next(numbers)}" for _ in range(size)]
        ways = {
            "run": ([request("plain", text=each) for each in texts], b""),
            "hit": ([request("kept", text="same")] * size, b"hit"),
            "miss": ([request("kept", text=each) for each in texts], b"miss"),
        }
        for way in sorted(ways, reverse=turn % 2 == 1):
            seconds = block(clients, *ways[way])
            if turn:  # the first one warms up
                seen[way].append(seconds)
    clients.close()
    return seen


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--size", type=int, default=512, help="requests of a block (default: 512)")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model, cache in (("kept", "cache: {max_bytes: 64MiB}\n"), ("plain", "")):
            folder = pathlib.Path(name) / model
            folder.mkdir()
            (folder / "run.py").write_text(MODEL)
            (folder / "geartrain.yaml").write_text(cache)
        with running(serving(name, "--queue", "1000")) as started:
            for number in (1, 16):
                seen = measure(started.port, number, blocks=given.blocks, size=given.size)
                run, hit, miss = (statistics.median(seen[way]) for way in ("run", "hit", "miss"))
                ratio = statistics.median(a / b for a, b in zip(seen["run"], seen["hit"], strict=True))
                more = statistics.median(a - b for a, b in zip(seen["miss"], seen["run"], strict=True))
                figures = (f"{1e6 * each:.0f}" for each in (run, hit, miss))
                rows.append([str(number), *figures, f"{ratio:.2f} ×", f"{1e6 * more:.0f}"])
            many = Connections(started.port, AT_ONCE)
            answers = many.ask([request("kept", text="many", seconds=1.0)] * AT_ONCE)
            many.close()
    outputs = {json.loads(each.partition(b"\r\n\r\n")[2])["output"] for each in answers}
    print(machine())
    print(f"{given.blocks} blocks of {given.size} requests; µs for a request.\n")
    print(table(["connections", "run", "hit", "miss", "hits / runs", "a miss more than a run"], rows))
    print(f"\n{AT_ONCE} equal requests at once: {len(outputs)} run(s)")


if __name__ == "__main__":
    main()
