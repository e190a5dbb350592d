"""What `Client.predict` costs over a bare POST of httpx, in turns, against a server whose model does nothing.

    python benchmarks/client.py [--rounds 20] [--calls 300]

Each round measures each way once, in an order that changes. The ratios are the medians of the rounds' own ratios, so
that what else the machine does falls on both sides; those of the processor time that the client takes depend on it
least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from geartrain import Client
from geartrain.testing import serve

MODEL = Path(__file__).parents[1] / "examples/hello"


def measure(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the seconds that a call takes, and those of them that this process computes."""
    began, computed = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls, (time.process_time() - computed) / calls


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    with (
        serve(MODEL, access_log="off") as server,
        httpx.Client() as bare,
        Client(server.url) as client,
        Client(server.url, retries=0) as once,
    ):
        url = f"{server.url}/predictions"
        ways: dict[str, Callable[[], object]] = {
            "httpx, POST": lambda: bare.post(url, json={"input": {"name": "Ada"}}).json()["output"],
            "httpx, PUT": lambda: bare.put(f"{url}/{time.time_ns()}", json={"input": {"name": "Ada"}}).json()["output"],
            "Client, retries=0": lambda: once.predict(name="Ada"),
            "Client": lambda: client.predict(name="Ada"),
        }
        for way in ways.values():
            measure(way, options.calls)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(options.rounds):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds[name].append(measure(ways[name], options.calls))
    base = seconds["httpx, POST"]
    print(f"{'':20}{'µs a call':>12}{'of httpx, POST':>18}{'µs computed':>15}{'of httpx, POST':>18}")
    for name, each in seconds.items():
        columns = []
        for kind, width in enumerate((12, 15)):
            ratio = statistics.median(own[kind] / bare[kind] for own, bare in zip(each, base, strict=True))
            columns.append(f"{statistics.median(own[kind] for own in each) * 1e6:{width}.0f}{ratio:18.2f}")
        print(f"{name:20}{''.join(columns)}")


if __name__ == "__main__":
    main()
