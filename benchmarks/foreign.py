"""Files for other servers, unchanged, beside a class of our own that does the same, and the servers of three of them.

`python benchmarks/foreign.py --help`. Each answers `{"input": 3}` with `{"output": 4}`; MLServer's file has the same as
tensors, and so has the class that it is compared with. TorchServe's own server needs Java. They take turns in rounds,
under wrk with 1 and 16 connections; the rate of a row is the median of its rounds, and its ratio that to our class in
the same round. Prints markdown.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import zipfile

from load import Load, drive, version
from peer_servers import mlserver, torchserve
from report import machine, peers_environment, table
from servers import HERE, Server, running

FOLDER = HERE / "models/foreign"
SCRIPT = pathlib.Path(sys.executable).with_name("geartrain")
CONNECTIONS = (1, 16)
OWN, OWN_TENSORS = "own class", "own class of tensors"
PATHS = {
    OWN: ("own", "/invoke"),
    OWN_TENSORS: ("tensors", "/v2/models/tensors/infer"),
    "the same with `async def run`": ("tensors_async", "/v2/models/tensors_async/infer"),
    "LitServe's file": ("litserve", "/predict"),
    "TorchServe's handler": ("torchserve", "/predictions/torchserve"),
    "SageMaker's script": ("sagemaker", "/invocations"),
    "Truss": ("truss", "/predict"),
    "MLServer's file": ("mlserver", "/v2/models/mlserver/infer"),
}
PEERS = ("litserve", "torchserve", "mlserver")
BODY = {"input": 3}
TENSOR = {"inputs": [{"name": "input", "shape": [1], "datatype": "INT64", "data": [3]}]}


def ours(folder: str) -> Server:
    """Serve a model with geartrain."""
    address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "off", "--access-log", "off")
    return Server(name=folder, command=(str(SCRIPT), "serve", str(FOLDER / folder), *address, "--queue", "100"))


def litserve() -> Server:
    """Serve the file with LitServe."""
    python = peers_environment("litserve") / "bin/python"
    return Server(name="litserve", command=(str(python), str(FOLDER / "litserve/server.py"), "{port}"), ready="/health")


def archived(folder: pathlib.Path) -> Server:
    """Serve the handler with TorchServe, in an archive."""
    manifest = {
        "runtime": "python",
        "model": {"modelName": "torchserve", "handler": "handler.py", "modelVersion": "1.0"},
        "archiverVersion": "0.12.0",
    }
    with zipfile.ZipFile(folder / "torchserve.mar", "w") as archive:
        archive.write(FOLDER / "torchserve/handler.py", "handler.py")
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return torchserve(folder, "torchserve")


def of(name: str, folder: pathlib.Path) -> tuple[Server, str]:
    """Return a server of another project, and the path of its model."""
    if name == "litserve":
        return litserve(), "/predict"
    if name == "torchserve":
        return archived(folder), "/predictions/torchserve"
    return mlserver(FOLDER / "mlserver", model="mlserver"), PATHS["MLServer's file"][1]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="length of a load (default: 4)")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, help="servers beside geartrain (default: all)"
    )
    parser.add_argument("--only", nargs="*", choices=PATHS, default=tuple(PATHS), help="some of the files")
    given = parser.parse_args()
    tool = version(parser)
    contenders = {
        name: (ours(folder), path) for name, (folder, path) in PATHS.items() if name in {OWN, OWN_TENSORS, *given.only}
    }
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        contenders |= {f"{name}'s own server": of(name, folder) for name in given.peers}
        seen = measure(contenders, folder, rounds=given.rounds, seconds=given.seconds)
    print(f"{machine()}; {tool}. {given.rounds} rounds, {given.seconds} s for each load.\n")
    for count in CONNECTIONS:
        rows = []
        for name in contenders:
            loads = seen[name, count]
            own = seen[OWN_TENSORS if contenders[name][1].startswith("/v2") else OWN, count]
            ratio = statistics.median(one.rate / other.rate for one, other in zip(loads, own, strict=True))
            p50 = statistics.median(load.p50 for load in loads) * 1000
            rate = statistics.median(load.rate for load in loads)
            rows.append([name, f"{rate:,.0f}", f"{ratio:.2f}", f"{p50:.2f}", str(sum(load.bad for load in loads))])
        print(f"#### {count} connection{'s' if count > 1 else ''}\n")
        print(table(["served", "requests/s", "of the own class", "p50 ms", "bad"], rows))


def measure(
    contenders: dict[str, tuple[Server, str]], folder: pathlib.Path, *, rounds: int, seconds: int
) -> dict[tuple[str, int], list[Load]]:
    """Load each with each number of connections, in rounds."""
    seen: dict[tuple[str, int], list[Load]] = {(name, count): [] for name in contenders for count in CONNECTIONS}
    body, tensor = folder / "body.json", folder / "tensor.json"
    body.write_text(json.dumps(BODY))
    tensor.write_text(json.dumps(TENSOR))
    for number in range(rounds):
        for name in sorted(contenders, reverse=number % 2 == 1):
            server, path = contenders[name]
            arguments = (str(tensor if path.startswith("/v2") else body), "application/json")
            with running(server) as started:
                drive(started, path, "infer.lua", arguments, connections=16, seconds=1)
                for count in CONNECTIONS:
                    seen[name, count].append(
                        drive(started, path, "infer.lua", arguments, connections=count, seconds=seconds)
                    )
    return seen


if __name__ == "__main__":
    main()
