"""Which copies a request of 600 kB takes, over REST and over gRPC: how often, how many bytes, and the CPU time of each.

`python benchmarks/copies.py --help`. Runs the server of this work tree with `copies.c` loaded, which counts copies in
memory and the reads and writes of sockets, and asks it over one connection. Needs a C compiler (`cc`), wrk and h2load.
Prints markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

import open_inference
from report import machine, table
from servers import HERE, TIMEOUT, Running, Server, processes_of, running

_LEAST = 0.1  # of a request's bytes: places that copy less are left out
CASES = {"REST": open_inference.large_binary, "gRPC": open_inference.large_grpc}


@dataclasses.dataclass(frozen=True)
class Place:
    """Something that copies: per request, so many times, so many bytes and microseconds of CPU."""

    process: str
    kind: str
    times: float
    size: float
    microseconds: float
    callers: str


def serve(folder: pathlib.Path, *, clients: open_inference.Clients) -> Server:
    """Return the server with the library that counts."""
    library = folder / "copies.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "copies.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=TIMEOUT)
    environment = {"LD_PRELOAD": str(library), "COPIES_FILE": str(folder / "copies")}
    return dataclasses.replace(open_inference.geartrain(folder, clients=clients), environment=environment)


def count(case: str, *, connections: int, seconds: int) -> list[Place]:
    """Return what a request of a case copies."""
    request, clients = CASES[case](), open_inference.Clients(connections)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        body = folder / "body"
        body.write_bytes(request.body)
        with running(serve(folder, clients=clients)) as server:
            open_inference.drive(server, request, body, clients=clients, seconds=1)
            _tell(server, folder)
            load = open_inference.drive(server, request, body, clients=clients, seconds=seconds)
            return [
                place for place in _places(_tell(server, folder), load.good) if place.size >= _LEAST * len(request.body)
            ]


def _tell(server: Running, folder: pathlib.Path) -> dict[str, str]:
    """Have the processes write what they have copied since the last time, and return it."""
    told = {}
    for name, pid in zip(("server", "worker"), processes_of(server.pid), strict=False):
        file = folder / f"copies.{pid}"
        file.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        end = time.monotonic() + TIMEOUT
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.01)
        told[name] = file.read_text()
    return told


def _places(told: dict[str, str], requests: int) -> Iterator[Place]:
    for process, text in told.items():
        for line in text.splitlines():
            kind, times, size, microseconds, callers = line.split(" ", 4)
            each = [float(number) / requests for number in (times, size, microseconds)]
            yield Place(process, kind, each[0], each[1], each[2], callers.replace(" ", ", "))


def _row(each: Place) -> list[str]:
    numbers = f"{each.times:.1f}", f"{each.size / 1000:.0f}", f"{each.microseconds:.0f}"
    return [f"{each.process}: {each.kind}", *numbers, each.callers]


def main() -> None:
    """Parse the command line, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1, help="that ask at once (default: 1)")
    parser.add_argument("--seconds", type=int, default=4, help="of load (default: 4)")
    options = parser.parse_args()
    print(f"{machine()}.\n")
    for case in CASES:
        places = count(case, connections=options.connections, seconds=options.seconds)
        places.sort(key=lambda each: (each.process, each.kind, -each.size))
        rows = [_row(each) for each in places]
        print(f"### {case}\n\n{table(['what', 'times', 'kB', 'µs of CPU', 'asked for by'], rows)}", flush=True)


if __name__ == "__main__":
    main()
