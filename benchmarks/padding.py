"""Padding of texts that are sorted among those on their way, as `geartrain batch` sorts them, without a model.

`python benchmarks/padding.py`. The texts of `costs.py` go through the queue of the scheduler, one call after the other.
Prints markdown: computed tokens to real ones, where each text of a call is padded to the longest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from costs import LIBRARY_SIZES, texts
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.service.scheduling.cutting import Size
from geartrain.service.scheduling.queue import BatchQueue
from report import table

TEXTS = 20_000
WINDOWS = (512, 1024, 2048, 4096)  # rows on their way
CALLS = {  # rows, characters
    "calls of 2,500 characters": (256, 2500),
    "calls of 8 texts": (8, 0),
    "calls of 32 texts": (32, 0),
    "calls of 64 texts": (64, 0),
}


def calls(given: Sequence[str], window: int, max_size: int, max_cost: int) -> Iterator[list[int]]:
    """Yield the calls of a worker: rows are added when a quarter of the window is free."""
    policy = BatchPolicy(
        max_size=max_size, cost="text", max_cost=max_cost, padded=True, sort=sys.maxsize, learn_delay=False
    )
    queue: BatchQueue[int] = BatchQueue(policy)
    begun = running = 0
    while True:
        room = min(window - running - len(queue), len(given) - begun)
        if room >= window // 4 or not begun or room == len(given) - begun:
            queue.add_all([(row, (), Size(1, len(given[row]))) for row in range(begun, begun + room)], now=0.0)
            begun += room
        if not len(queue):
            return
        call = queue.take(0.0)
        running = len(call)
        yield call


def padded(lengths: Sequence[int], made: Iterable[Sequence[int]]) -> float:
    """Return the computed tokens to the real ones."""
    return sum(len(call) * max(lengths[row] for row in call) for call in made) / sum(lengths)


def main() -> None:
    """Count, and print."""
    every = texts(TEXTS)
    lengths = [len(text.split()) + 2 for text in every]
    order = sorted(range(TEXTS), key=lambda row: -len(every[row]))
    for size in LIBRARY_SIZES:
        share = padded(lengths, (order[start : start + size] for start in range(0, TEXTS, size)))
        print(f"The library, which sorts all {TEXTS:,}, in batches of {size}: {share:.3f}")
    rows = [
        [name, *(f"{padded(lengths, calls(every, window, *call)):.3f}" for window in WINDOWS)]
        for name, call in CALLS.items()
    ]
    print(table(["rows on their way", *map(str, WINDOWS)], rows))


if __name__ == "__main__":
    main()
