"""Requests a second over the Open Inference Protocol: geartrain beside Triton, MLServer and KServe.

`python benchmarks/open_inference.py --help`. Each serves a model that gives its FP32 tensor back, run by its own Python
backend. They run side by side and take turns in rounds; what counts is the median of each round's ratios. Needs wrk and
h2load. Prints markdown.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import dataclasses
import http.client
import json
import math
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import peer_servers
from load import Load, connections_text
from load import drive as drive_by_wrk
from report import conditions, output, peers_environment, table, version_of
from servers import HERE, Running, Server, running

WARM_UP = 1  # seconds of load before the first round
PEERS = {"triton": "nvidia-pytriton", "mlserver": "mlserver", "kserve": "kserve"}
BATCHED = ("geartrain, batched", "triton, batched")
AT_ONCE = ("geartrain, sync", *BATCHED)  # where several clients ask at once
SERVERS = ("geartrain", *PEERS, "floor", *AT_ONCE)
PATH = "/v2/models/echo/infer"
GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
_PREFIX = 5  # bytes in front of a message of gRPC
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_MANY = 150_000  # elements: 600 kB of FP32, and as JSON the 1.5 MB of numbers with some digits


@dataclasses.dataclass(frozen=True)
class Request:
    """A body as it is sent; `header` is the length of the JSON in front of binary tensors."""

    body: bytes
    content_type: str = "application/json"
    header: int | None = None

    @property
    def is_grpc(self) -> bool:
        """Whether it goes to the other port."""
        return self.content_type == "application/grpc"


@dataclasses.dataclass(frozen=True)
class Clients:
    """How many ask at once: so many connections, with so many calls of gRPC on each."""

    connections: int
    streams: int = 1

    @property
    def count(self) -> int:
        """Requests that are under way at once."""
        return self.connections * self.streams

    def __str__(self) -> str:
        """In words."""
        text = connections_text(self.connections)
        return text if self.streams == 1 else f"{text} with {self.streams} streams"


@dataclasses.dataclass(frozen=True)
class Case:
    """One request under several loads, and whom it is measured against."""

    title: str
    request: Callable[[], Request]
    loads: tuple[Clients, ...]
    servers: tuple[str, ...]


# requests


def small_json() -> Request:
    """Four numbers."""
    return _json([1, 2, 3, 4], (2, 2))


def large_json() -> Request:
    """One and a half megabytes of numbers."""
    return _json([round(index * 0.37 % 1000, 5) for index in range(_MANY)], (300, _MANY // 300))


def _json(values: Sequence[float], shape: tuple[int, ...]) -> Request:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": values}
    return Request(json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode())


def large_binary() -> Request:
    """600 kB, and the same back."""
    data = _floats()
    tensor = {"name": "x", "shape": [300, _MANY // 300], "datatype": "FP32"}
    head = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    header = json.dumps(head).encode()
    return Request(header + data, "application/octet-stream", len(header))


def small_grpc() -> Request:
    """Four numbers, raw."""
    return _grpc(array.array("f", [1, 2, 3, 4]).tobytes(), (2, 2))


def large_grpc() -> Request:
    """600 kB, raw."""
    return _grpc(_floats(), (300, _MANY // 300))


def _floats() -> bytes:
    return array.array("f", [index * 0.37 % 1000 for index in range(_MANY)]).tobytes()


def _grpc(data: bytes, shape: Sequence[int]) -> Request:
    """Write a `ModelInferRequest` and its frame by hand: field numbers as in the document."""
    packed = b"".join(map(_varint, shape))
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, packed)
    message = _field(1, b"echo") + _field(5, tensor) + _field(7, data)
    return Request(b"\0" + struct.pack(">I", len(message)) + message, "application/grpc")


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = b""
    while number >> 7:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


_EVERY = ("geartrain", "triton", "mlserver")
_ONE, _MANY_CLIENTS, _STREAMS = Clients(1), Clients(16), Clients(1, streams=16)
CASES = (
    Case("JSON, 4 numbers", small_json, (_ONE, _MANY_CLIENTS), (*_EVERY, "kserve", *AT_ONCE)),
    Case("JSON, 150,000 numbers (1.3 MB)", large_json, (_ONE,), _EVERY),
    # MLServer 1.7.1 answers a binary request with 500: today's FastAPI takes the body for text.
    Case("binary tensor, 600 kB both ways", large_binary, (_ONE, _MANY_CLIENTS), ("geartrain", "triton")),
    Case("gRPC, 4 numbers", small_grpc, (_ONE, _MANY_CLIENTS, _STREAMS), (*_EVERY, "floor", *AT_ONCE)),
    Case("gRPC, 600 kB both ways", large_grpc, (_ONE, _MANY_CLIENTS), (*_EVERY, "floor")),
)


# servers


def geartrain(folder: pathlib.Path, *, clients: Clients) -> Server:
    """The server of this work tree: a plain `run()` for one client, an async one for many."""
    return _geartrain(folder, "tensor" if clients.count == 1 else "tensor_async")


def geartrain_sync(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """The plain `run()` for many clients, which wait in the queue."""
    return _geartrain(folder, "tensor", "--queue", "1000")


def geartrain_batched(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """The same with a `@batched` model."""
    return _geartrain(folder, "tensor_batched")


def _geartrain(folder: pathlib.Path, name: str, *options: str) -> Server:
    model = folder / "echo"
    shutil.copytree(HERE / "models" / name, model)
    script = pathlib.Path(sys.executable).with_name("geartrain")
    address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "{grpc}")
    return Server(name="geartrain", command=(str(script), "serve", str(model), *address, *options))


def triton(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """The binary of the PyTriton package, with its Python backend."""
    return peer_servers.triton(folder, model="echo")


def triton_batched(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """The same with its dynamic batcher, which does not wait."""

    def settle(config: str) -> str:
        return f"{config.replace('[-1,-1]', '[-1]').replace('size: 0', 'size: 64')}dynamic_batching {{ }}\n"

    return peer_servers.triton(folder, model="echo", settle=settle)


def mlserver(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """With its own defaults: one process for HTTP and gRPC, one for the model."""
    return peer_servers.mlserver(HERE / "peers/mlserver", model="echo")


def kserve(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """Its Python server, which runs the model in the process that serves."""
    python = peers_environment("kserve") / "bin/python"
    return Server(
        name="kserve",
        command=(str(python), str(HERE / "peers/kserve/echo.py"), "{port}", "{grpc}"),
        ready="/v2/models/echo/ready",
    )


def grpc_floor(folder: pathlib.Path, *, clients: Clients) -> Server:  # noqa: ARG001 - as of geartrain
    """The bare wire: it gives the bytes it gets."""
    return Server(name="floor", command=(sys.executable, str(HERE / "grpc_floor.py"), "{port}", "{grpc}"), ready="/")


MAKERS = {
    "geartrain": geartrain,
    "triton": triton,
    "mlserver": mlserver,
    "kserve": kserve,
    "floor": grpc_floor,
    "geartrain, sync": geartrain_sync,
    "geartrain, batched": geartrain_batched,
    "triton, batched": triton_batched,
}


# load


def drive(server: Running, request: Request, body: pathlib.Path, *, clients: Clients, seconds: int) -> Load:
    """Send one request after the other, on each connection or stream."""
    if request.is_grpc:
        return _h2load(server.grpc_port, body, clients=clients, seconds=seconds)
    arguments = [str(body), request.content_type, *([] if request.header is None else [str(request.header)])]
    return drive_by_wrk(server, PATH, "infer.lua", arguments, connections=clients.connections, seconds=seconds)


def _h2load(port: int, body: pathlib.Path, *, clients: Clients, seconds: int) -> Load:
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    load = [f"-c{clients.connections}", f"-m{clients.streams}", f"-D{seconds}"]
    command = ["h2load", *load, "-t1", "-w24", "-W24", "-d", str(body), *headers]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{GRPC_PATH}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
    )
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", done.stdout)
    mean = re.search(r"time for request:\s+\S+\s+\S+\s+(\S+?)(us|ms|s)\s", done.stdout)
    data = re.search(r"\((\d+)\) data", done.stdout)
    if counts is None or mean is None or data is None:
        raise RuntimeError(f"h2load said:\n{done.stdout}")
    # A refused call is a success to HTTP, but without a body.
    if int(data[1]) < int(counts[1]) * (body.stat().st_size // 2):
        raise RuntimeError("the answers are too small to be tensors")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[mean[2]]
    return Load(int(counts[1]), int(counts[2]) + int(counts[3]), seconds, p50=float(mean[1]) * unit, p99=math.nan)


def check(name: str, server: Running, request: Request) -> None:
    """Ask once, and raise RuntimeError if the answer is not the tensor that was sent."""
    answered, is_good = (_ask_by_grpc if request.is_grpc else _ask_by_http)(server, request)
    if not is_good:
        raise RuntimeError(f"{name} answered {answered}")


def _ask_by_grpc(server: Running, request: Request) -> tuple[str, bool]:
    """Return what was answered, and whether it is the tensor."""
    import grpc  # `compare.py` runs without it

    from geartrain.transport.grpc.open_inference_pb2 import ModelInferResponse

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=_UNLIMITED) as channel:
        ask: Any = channel.unary_unary(GRPC_PATH, response_deserializer=ModelInferResponse.FromString)
        response = ask(request.body[_PREFIX:], timeout=10)
    [tensor] = response.outputs
    raw = b"".join(response.raw_output_contents) or array.array("f", tensor.contents.fp32_contents).tobytes()
    return f"{tensor.name} {tensor.shape} {raw[:32]!r}", tensor.name == "y" and request.body.endswith(raw)


def _ask_by_http(server: Running, request: Request) -> tuple[str, bool]:
    """Return what was answered, and whether it is the tensor."""
    headers = {"Content-Type": request.content_type}
    if request.header is not None:
        headers["Inference-Header-Content-Length"] = str(request.header)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", PATH, request.body, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if request.header is not None:
        is_good = body.endswith(request.body[request.header :])
    else:
        values = array.array("f", json.loads(request.body)["inputs"][0]["data"]).tolist()
        is_good = answer.status == http.client.OK and _flat(json.loads(body)["outputs"][0]["data"]) == values
    return f"{answer.status} {body[:100]!r}", is_good


def _flat(data: list[float]) -> list[float]:
    """The numbers as FP32 has them, whether or not the server widened what it wrote."""
    return array.array("f", data).tolist()


def measure(case: Case, *, names: Sequence[str], rounds: int, seconds: int) -> str:
    """Measure one case; a markdown table for each load."""
    request = case.request()
    tables = []
    for clients in case.loads:
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            body = folder / "body"
            body.write_bytes(request.body)
            started: dict[str, Running] = {}
            for name in case.servers:
                if name in names and (clients.count > 1 or name not in AT_ONCE):
                    own = folder / name.replace(", ", "-")  # Triton takes no blank in a path
                    own.mkdir()
                    started[name] = stack.enter_context(running(MAKERS[name](own, clients=clients)))
            tables.append(_turns(case, request, body, started=started, clients=clients, turns=(rounds, seconds)))
    return "\n".join(tables)


def _turns(
    case: Case,
    request: Request,
    body: pathlib.Path,
    *,
    started: dict[str, Running],
    clients: Clients,
    turns: tuple[int, int],
) -> str:
    """Measure in rounds. `turns`: their number, and seconds for each server in each."""
    rounds, seconds = turns
    loads: dict[str, list[Load]] = {name: [] for name in started}
    for server in started.values():
        drive(server, request, body, clients=clients, seconds=WARM_UP)
    for _ in range(rounds):
        for name, server in started.items():
            if name != "floor":  # it gives back what is no answer
                check(name, server, request)
            loads[name].append(drive(server, request, body, clients=clients, seconds=seconds))
    ours = [name for name in loads if name.startswith("geartrain")]
    rows = [_row(name, measured, [loads[own] for own in ours]) for name, measured in loads.items()]
    # h2load tells the mean where wrk tells the median.
    times = "mean ms" if request.is_grpc else "p50 ms"
    head = ["server", "good/s", times, "bad", *[f"{own}: good/s" for own in ours]]
    return f"### {case.title}, {clients}\n\n{table(head, rows)}"


def _row(name: str, measured: Sequence[Load], ours: Sequence[Sequence[Load]]) -> list[str]:
    rate = statistics.median(load.rate for load in measured)
    time = statistics.median(load.p50 for load in measured)
    row = [name, f"{rate:,.0f}", f"{time * 1000:.3f}", str(sum(load.bad for load in measured))]
    return [*row, *["" if own is measured else _ratio(own, measured) for own in ours]]


def _ratio(ours: Sequence[Load], theirs: Sequence[Load]) -> str:
    ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True) if other.rate]
    return f"{statistics.median(ratios):.2f} ×"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a turn (default: 2)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS, help="whom to measure (default: all)")
    parser.add_argument("--cases", nargs="+", type=int, choices=range(len(CASES)), default=range(len(CASES)))
    options = parser.parse_args()
    for tool, package in (("wrk", "wrk"), ("h2load", "nghttp2-client")):
        if shutil.which(tool) is None:
            parser.exit(2, f"{tool} is not installed; on Debian and Ubuntu: apt install {package}\n")
    versions = {name: version_of(PEERS[name], peers_environment(name)) for name in PEERS if name in options.servers}
    wrk = output(["wrk", "-v"]).partition(" [")[0].replace("debian/", "")
    print(conditions(versions, wrk, output(["h2load", "--version"])))
    print(f"{options.rounds} rounds, {options.seconds} s for each server in each.\n")
    for number in options.cases:
        print(measure(CASES[number], names=options.servers, rounds=options.rounds, seconds=options.seconds), flush=True)


if __name__ == "__main__":
    main()
