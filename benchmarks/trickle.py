"""What many slow clients cost those that work: connections that trickle a head or a body, byte by byte, beside 16.

`python benchmarks/trickle.py --help`. The load of the 16 is measured in turns, without and with the slow ones, and so
is the memory of the server. A connection that the server ends, because its time is over, is made anew. Prints
markdown. Needs wrk.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from load import version
from predict import drive
from report import conditions, table
from servers import HERE, Running, geartrain, running

CLIENTS: Final = 16
WARM_UP: Final = 1  # seconds of load before the first round
TURNS: Final = 100  # in which all connections send a byte, one after the other
SPARE: Final = 200  # descriptors beside those of the connections

HEAD: Final = b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 1000
BODY_HEAD: Final = b"POST /predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
BODY: Final = BODY_HEAD + b"Content-Type: application/json\r\n\r\n"


class Slow:
    """One connection that trickles: `begin` at once, then a byte of `rest` each time."""

    def __init__(self, port: int, begin: bytes, rest: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setblocking(False)
        self._rest = rest
        self._at = 0
        if begin:
            self.socket.send(begin)

    def send(self) -> None:
        """Send the next byte; raises `OSError` when the connection has ended."""
        with contextlib.suppress(BlockingIOError):
            self.socket.send(self._rest[self._at : self._at + 1])
            self._at = (self._at + 1) % len(self._rest)


def trickle(port: int, count: int, what: str, pause: float) -> None:
    """Keep so many connections, each of which sends a byte every `pause` seconds; ends with the standard input."""
    begin, rest = (b"", HEAD) if what == "head" else (BODY, b" ")
    poll = select.epoll()
    poll.register(sys.stdin.fileno(), select.EPOLLHUP)
    slow: dict[int, Slow] = {}

    def connect() -> None:
        each = Slow(port, begin, rest)
        slow[each.socket.fileno()] = each
        poll.register(each.socket.fileno(), select.EPOLLRDHUP)

    for _ in range(count):
        connect()
    print("connected", flush=True)
    ended = 0
    for turn in range(sys.maxsize):
        until = time.monotonic() + pause / TURNS
        for descriptor in list(slow)[turn % TURNS :: TURNS]:
            with contextlib.suppress(OSError):
                slow[descriptor].send()
        gone = {descriptor for descriptor, _ in poll.poll(max(0.0, until - time.monotonic()))}
        for descriptor in gone:
            if descriptor == sys.stdin.fileno():
                print(ended, flush=True)
                return
            poll.unregister(descriptor)
            slow.pop(descriptor).socket.close()
            ended += 1
            connect()


@contextlib.contextmanager
def trickling(port: int, given: argparse.Namespace) -> Iterator[None]:
    """Let a process of its own trickle for the time of the block."""
    command = [sys.executable, __file__, "--trickle", str(port), "--connections", str(given.connections)]
    command += ["--what", given.what, "--pause", str(given.pause)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline() != "connected\n":
            raise RuntimeError("the slow connections could not be made")
        yield
        ended = process.communicate("", timeout=20)[0].strip()
        print(f"{ended} slow connections were ended by the server.", file=sys.stderr)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def resident(server: Running) -> int:
    """Bytes of memory of the server's own process, without its workers."""
    for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(server.pid)


def measure(given: argparse.Namespace) -> str:
    """Measure in turns; a markdown table."""
    without, beside, memory = [], [], []
    with running(geartrain(HERE / "models" / "noop_async", slots=32)) as server:
        drive(server.port, connections=CLIENTS, seconds=WARM_UP)
        for _ in range(given.rounds):
            without.append(drive(server.port, connections=CLIENTS, seconds=given.seconds))
            before = resident(server)
            with trickling(server.port, given):
                beside.append(drive(server.port, connections=CLIENTS, seconds=given.seconds))
                memory.append((resident(server) - before) / given.connections / 1024)
    rates = [slow.rate / alone.rate for slow, alone in zip(beside, without, strict=True)]
    rows = [
        [f"{CLIENTS} clients alone", f"{statistics.median(each.rate for each in without):,.0f}", *[""] * 3],
        [
            f"beside {given.connections:,} that trickle a {given.what}",
            f"{statistics.median(each.rate for each in beside):,.0f}",
            f"{statistics.median(rates):.2f} ×",
            f"{max(memory):.1f}",
            str(sum(each.bad + each.busy for each in beside)),
        ],
    ]
    return table(["", "good/s", "of the rate alone", "KiB for each slow one", "other answers"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--what", choices=("head", "body"), default="head")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two bytes of a connection")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trickle", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = given.connections + SPARE
    if hard < wanted:
        parser.exit(2, f"a process may open {hard} descriptors here, and {wanted} are needed: see `ulimit -Hn`\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.trickle:
        trickle(given.trickle, given.connections, given.what, given.pause)
        return
    print(f"{conditions({}, version(parser))}\n\n{measure(given)}")


if __name__ == "__main__":
    main()
