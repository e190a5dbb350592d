"""Models that call models: a nested call beside a single one, and beside Triton's BLS.

`python benchmarks/calls.py --help`. The models give their tensor back; one of them as another one gives it. Loads of a
group take turns in rounds, under wrk; the ratio of a row is the median of its rounds. The model `batched` takes 5 ms
for a batch. The floor has the same processes and messages, and no work (`calls_floor.py`). Prints markdown.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile

import peer_servers
from load import Load, connections_text, drive, version
from report import conditions, peers_environment, table, version_of
from servers import HERE, Running, Server, running, serving

OURS = HERE / "models/calls"
THEIRS = HERE / "peers/triton"
WARM_UP = 1  # seconds
SMALL, LARGE = 4, 2**20  # columns


@dataclasses.dataclass(frozen=True)
class Case:
    """A model under load: `server` is a name of those that run."""

    server: str
    model: str
    columns: int
    connections: int

    def __str__(self) -> str:
        """In words."""
        size = "four floats" if self.columns == SMALL else f"{4 * self.columns // 2**20} MiB"
        return f"`{self.model}` of {self.server}, {size}, {connections_text(self.connections)}"


GROUPS = (
    (Case("geartrain", "caller", SMALL, 1), Case("geartrain", "echo", SMALL, 1)),
    (Case("the floor", "caller", SMALL, 1), Case("the floor", "echo", SMALL, 1)),
    (Case("geartrain", "caller", LARGE, 1), Case("geartrain", "echo", LARGE, 1)),
    (Case("geartrain", "async_caller", SMALL, 16), Case("geartrain", "batched", SMALL, 16)),
    (Case("Triton's models in geartrain", "bls", SMALL, 1), Case("Triton", "bls", SMALL, 1)),
    (Case("Triton's models in geartrain", "bls", SMALL, 16), Case("Triton", "bls", SMALL, 16)),
)


def body(columns: int) -> tuple[bytes, int]:
    """Make a request with a binary tensor of one row, for a binary output; return it and the size of its JSON."""
    data = array.array("f", [1.0] * columns).tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, columns], "parameters": {"binary_data_size": len(data)}}
    asked = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    text = json.dumps(asked).encode()
    return text + data, len(text)


def measure(server: Running, load: Case, folder: pathlib.Path, seconds: int) -> Load:
    """Put a model under load."""
    content, size = body(load.columns)
    file = folder / f"{load.columns}.body"
    file.write_bytes(content)
    arguments = (str(file), "application/octet-stream", str(size))
    path = f"/v2/models/{load.model}/infer"
    return drive(server, path, "infer.lua", arguments, connections=load.connections, seconds=seconds)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=3, help="length of a load (default: 3)")
    parser.add_argument("--no-peer", action="store_true", help="leave Triton out")
    given = parser.parse_args()
    tool = version(parser)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        floor = Server(name="floor", command=(sys.executable, str(HERE / "calls_floor.py"), "{port}"), ready="/")
        servers = {"geartrain": serving(OURS, "--queue", "100"), "the floor": floor}
        peers = {}
        if not given.no_peer:
            servers["Triton"] = peer_servers.triton(folder, model="bls", calls="echo")
            servers["Triton's models in geartrain"] = serving(folder / "models", "--queue", "100")
            peers["nvidia-pytriton"] = version_of("nvidia-pytriton", peers_environment("triton"))
        started = {name: stack.enter_context(running(server)) for name, server in servers.items()}
        rows = []
        for group in GROUPS:
            if any(each.server not in started for each in group):
                continue
            seen: dict[Case, list[Load]] = {each: [] for each in group}
            for number in range(given.rounds + 1):
                for each in sorted(group, key=group.index, reverse=number % 2 == 1):
                    load = measure(started[each.server], each, folder, given.seconds if number else WARM_UP)
                    if number:
                        seen[each].append(load)
            first, second = group
            pairs = list(zip(seen[first], seen[second], strict=True))
            rows.append(
                [
                    str(first),
                    str(second),
                    *(f"{statistics.median(load.rate for load in seen[each]):,.0f}" for each in group),
                    *(f"{1000 * statistics.median(load.p50 for load in seen[each]):.2f}" for each in group),
                    f"{statistics.median(one.rate / two.rate for one, two in pairs):.2f} ×",
                    f"{statistics.median(one.p50 / two.p50 for one, two in pairs):.2f} ×",
                    str(sum(load.bad for one in seen.values() for load in one)),
                ]
            )
    print(conditions(peers, tool))
    print(f"{given.rounds} rounds, {given.seconds} s for each load.\n")
    head = ["load", "beside", "requests/s", "beside", "p50 ms", "beside", "rate", "latency", "bad"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
