"""`geartrain tune` beside an exhaustive grid: the rate of what it finds, as a part of the best.

`python benchmarks/tuned.py --help`. Three models, each with batches: short runs, long runs that leave the processor
alone, and runs that are bound by memory, which is too small for large batches. Each is tuned from batches of 4 on. Then
every setting of the grid takes turns with what was found, at the number of requests at once that suits it best, and the
best of them once more. Prints markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from geartrain.bench.prepared import Prepared, Way, prepare
from geartrain.bench.search import Settings
from geartrain.bench.trials import Trials
from geartrain.bench.tuning import tune_async
from geartrain.domain.signature.types import Signature
from report import machine, table

MODELS = {
    "short": """
import time
from geartrain import batched

@batched(max_size=4)
def run(x: list[float]) -> list[float]:
    until = time.perf_counter() + 200e-6 + 10e-6 * len(x)
    while time.perf_counter() < until:
        pass
    return [each + 1 for each in x]
""",
    "long": """
import time
from geartrain import batched

@batched(max_size=4)
def run(x: list[float]) -> list[float]:
    time.sleep(0.03 + 0.001 * max(len(x), 16))
    return [each + 1 for each in x]
""",
    "memory": """
import time
import numpy as np
from geartrain import batched

@batched(max_size=4)
def run(x: list[float]) -> list[float]:
    if len(x) > 40:
        raise MemoryError(f"no room for {len(x)} rows")
    time.sleep(0.01)
    rows = np.zeros((len(x), 2**17), np.float32)
    rows += 1
    return [each + 1 for each in x]
""",
}
SIZES = (4, 16, 32, 64, 128)
REPLICAS = (1, 2)
MEASURED = (0.3, 1.0)  # seconds of each measurement of the grid, at least and at most


def prepared(url: str) -> Prepared:
    """Make the requests for a server, which all bring the same number."""

    def choose(_document: Mapping[str, Any], _signature: Signature) -> list[dict[str, Any]]:
        return [{"x": 1.0}]

    return prepare(url, choose, Way())


async def measure(model: pathlib.Path, seconds: float) -> list[str]:
    """Tune a model, measure the grid, compare; the cells of a row."""
    begin = time.monotonic()
    found = await tune_async(model, prepared, seconds=seconds)
    took = time.monotonic() - begin
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(model, pathlib.Path(folder), prepared, p99=None, measured=MEASURED)
        try:
            rate = (await trials.measure(found.best)).rate
            grid = [
                {**found.start, "batching.max_size": size, "replicas": replicas}
                for size, replicas in itertools.product(SIZES, REPLICAS)
            ]
            gains = [await trials.gain(found.best, settings) for settings in grid if settings != found.best]
            others = [settings for settings in grid if settings != found.best]
            best = others[gains.index(max(gains))]
            again = await trials.gain(found.best, best)  # the highest of many is the luckiest too
        finally:
            await trials.close()
    return [
        model.name,
        f"{took:.0f}",
        str(len(found.tried)),
        _text(found.best),
        f"{rate:.0f}",
        _text(best),
        f"{1 / again:.2f}",
    ]


def _text(settings: Settings) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in settings.items() if value is not None)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", type=float, default=300, dest="seconds", help="seconds of a search (default: 300)")
    parser.add_argument("--times", type=int, default=3, help="how often each model is tuned (default: 3)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which models (all)")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind in options.models:
            model = pathlib.Path(name) / kind
            model.mkdir()
            (model / "run.py").write_text(MODELS[kind])
            rows += [asyncio.run(measure(model, options.seconds)) for _ in range(options.times)]
    print(f"{machine()}. {options.seconds:g} s for a search at most.\n")
    head = ["model", "seconds", "tried", "found", "requests/s", "best other of the grid", "found to it"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
