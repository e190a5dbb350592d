"""How long predictions wait: many clients before one slot, and arrivals at random before a batched model.

`python benchmarks/arrivals.py --help`. The load is `geartrain bench`. The first part has 64 clients, each of which
waits for its answer, and one slot that takes 2 ms: at most 500 good answers a second, and nobody should wait much
longer than the others. The second part asks a model that takes 5 ms for a batch at random moments (a Poisson process),
once as it is, once with `learn_delay: false`, so that a free worker never waits: there is nothing to gain by waiting,
so the first should be no slower. The two take turns in rounds. Prints markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from report import machine, table
from servers import HERE, Running, load, running, serving

CLIENTS = 64
QUEUE = 100  # predictions that may wait
SLOT_SECONDS = 0.002
RATES = (20, 60, 120, 180, 400)  # requests a second, of a model that runs 200 batches in one
EAGER = "batching:\n  learn_delay: false\n"


def bench(started: Running, *options: str, seconds: int) -> dict[str, Any]:
    """Put a server under load; the figures of the only level. Raises RuntimeError if a request has failed."""
    return load(started, "-i", "x=1", *options, seconds=seconds)


def one_slot(*, rounds: int, seconds: int) -> str:
    """Measure many clients before one slot; a markdown table."""
    with running(serving(HERE / "models/two_ms", "--queue", str(QUEUE))) as started:
        levels = [bench(started, "--concurrency", str(CLIENTS), seconds=seconds) for _ in range(rounds)]
    rows = [
        [
            str(number),
            f"{level['rate']:.0f}",
            f"{level['rate'] * SLOT_SECONDS:.0%}",
            *(f"{level['latency'][name] * 1000:.1f}" for name in ("mean", "p50", "p99", "max")),
            f"{level['latency']['p99'] / level['latency']['mean']:.2f}",
        ]
        for number, level in enumerate(levels, 1)
    ]
    head = ["round", "good/s", "of the limit", "mean ms", "p50 ms", "p99 ms", "longest ms", "p99 / mean"]
    return f"#### {CLIENTS} clients, one slot of {SLOT_SECONDS * 1000:g} ms\n\n{table(head, rows)}"


def poisson(*, rounds: int, seconds: int) -> str:
    """Measure random arrivals before a batched model; a markdown table."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        eager = folder / "eager"
        shutil.copytree(HERE / "models/batched", eager)
        (eager / "geartrain.yaml").write_text(EAGER)
        servers = {
            "learning": stack.enter_context(running(serving(HERE / "models/batched"))),
            "eager": stack.enter_context(running(serving(eager))),
        }
        rows = [_row(rate, servers, rounds=rounds, seconds=seconds) for rate in RATES]
    head = ["arrivals/s", "p50 ms", "p50, eager", "ratio", "p99 ms", "p99, eager", "ratio"]
    return f"#### Random arrivals, a batch takes 5 ms\n\n{table(head, rows)}"


def _row(rate: int, servers: Mapping[str, Running], *, rounds: int, seconds: int) -> list[str]:
    seen: dict[str, list[Mapping[str, float]]] = {name: [] for name in servers}
    for number in range(rounds):
        for name in sorted(servers, reverse=number % 2 == 1):
            seen[name].append(bench(servers[name], "--rate", str(rate), seconds=seconds)["latency"])
    row = [str(rate)]
    for percentile in ("p50", "p99"):
        ours, theirs = (_middle(seen[name], percentile) for name in ("learning", "eager"))
        row += [f"{ours * 1000:.2f}", f"{theirs * 1000:.2f}", f"{ours / theirs:.2f}"]
    return row


def _middle(latencies: Sequence[Mapping[str, float]], percentile: str) -> float:
    return statistics.median(latency[percentile] for latency in latencies)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--seconds", type=int, default=5, help="length of a turn (default: 5)")
    options = parser.parse_args()
    print(f"{machine()}. {options.rounds} rounds of {options.seconds} s.\n")
    print(one_slot(rounds=options.rounds, seconds=options.seconds), flush=True)
    print(poisson(rounds=options.rounds, seconds=options.seconds), flush=True)


if __name__ == "__main__":
    main()
