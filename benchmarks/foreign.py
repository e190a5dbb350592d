"""Files for other servers, unchanged, beside a class of our own that does the same, and LitServe's own server.

`python benchmarks/foreign.py --help`. Each answers `{"input": 3}` with `{"output": 4}`. They take turns in rounds,
under wrk with 1 and 16 connections; the rate of a row is the median of its rounds, and its ratio that to our class in
the same round. Prints markdown.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile

from load import Load, drive, version
from report import machine, peers_environment, table
from servers import HERE, Server, running

FOLDER = HERE / "models/foreign"
SCRIPT = pathlib.Path(sys.executable).with_name("geartrain")
CONNECTIONS = (1, 16)
PATHS = {
    "own class": ("own", "/invoke"),
    "LitServe's file": ("litserve", "/predict"),
    "TorchServe's handler": ("torchserve", "/predictions/torchserve"),
    "SageMaker's script": ("sagemaker", "/invocations"),
    "Truss": ("truss", "/predict"),
}
LITSERVE = "LitServe's own server"


def ours(folder: str) -> Server:
    """Serve a model with geartrain."""
    address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "off", "--access-log", "off")
    return Server(name=folder, command=(str(SCRIPT), "serve", str(FOLDER / folder), *address, "--queue", "100"))


def litserve() -> Server:
    """Serve the file with LitServe."""
    python = peers_environment("litserve") / "bin/python"
    return Server(name=LITSERVE, command=(str(python), str(FOLDER / "litserve/server.py"), "{port}"), ready="/health")


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="length of a load (default: 4)")
    parser.add_argument("--no-peer", action="store_true", help="leave LitServe's own server out")
    given = parser.parse_args()
    tool = version(parser)
    contenders = {name: (ours(folder), path) for name, (folder, path) in PATHS.items()}
    if not given.no_peer:
        contenders[LITSERVE] = (litserve(), "/predict")
    seen: dict[tuple[str, int], list[Load]] = {(name, count): [] for name in contenders for count in CONNECTIONS}
    with tempfile.NamedTemporaryFile(suffix=".json") as body:
        body.write(b'{"input": 3}')
        body.flush()
        arguments = (body.name, "application/json")
        for number in range(given.rounds):
            for name in sorted(contenders, reverse=number % 2 == 1):
                server, path = contenders[name]
                with running(server) as started:
                    drive(started, path, "infer.lua", arguments, connections=16, seconds=1)
                    for count in CONNECTIONS:
                        load = drive(started, path, "infer.lua", arguments, connections=count, seconds=given.seconds)
                        seen[name, count].append(load)
    print(f"{machine()}; {tool}. {given.rounds} rounds, {given.seconds} s for each load.\n")
    for count in CONNECTIONS:
        own = seen["own class", count]
        rows = []
        for name in contenders:
            loads = seen[name, count]
            ratio = statistics.median(one.rate / other.rate for one, other in zip(loads, own, strict=True))
            p50 = statistics.median(load.p50 for load in loads) * 1000
            rate = statistics.median(load.rate for load in loads)
            rows.append([name, f"{rate:,.0f}", f"{ratio:.2f}", f"{p50:.2f}", str(sum(load.bad for load in loads))])
        print(f"#### {count} connection{'s' if count > 1 else ''}\n")
        print(table(["served", "requests/s", "of the own class", "p50 ms", "bad"], rows))


if __name__ == "__main__":
    main()
