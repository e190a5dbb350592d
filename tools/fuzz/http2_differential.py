"""Gives sequences of HTTP/2 frames to the codec and to h2, and compares what both make of them.

`python -m tools.fuzz.http2_differential --sequences 50000`. Prints each difference that has no reason in the table of
`http2_verdicts.py`, and how often each reason was needed; ends with 1 if there is a difference without one.
"""

from __future__ import annotations

import argparse
import collections
import random
import time
from typing import Final

from tools.fuzz.http2_sequences import make_sequence
from tools.fuzz.http2_verdicts import compare

SHOWN: Final = 20


def fuzz(sequences: int, seed: int) -> tuple[list[str], collections.Counter[str]]:
    """Return a line for each sequence that differs, and how often each reason explained one."""
    found: list[str] = []
    reasons: collections.Counter[str] = collections.Counter()
    for number in range(sequences):
        pieces = make_sequence(random.Random(f"{seed}-{number}"))  # noqa: S311
        verdict = compare(pieces, random.Random(f"{seed}-{number}-cuts"))  # noqa: S311
        if verdict.reason:
            reasons[verdict.reason] += 1
        if verdict.fault:
            found.append(f"{number}: {verdict.fault}\n    {[piece.data for piece in pieces]!r}")
    return found, reasons


def main() -> None:
    """Run as many sequences as are wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--sequences", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begin = time.perf_counter()
    found, reasons = fuzz(given.sequences, given.seed)
    print("\n".join(found[:SHOWN]))
    for reason, count in reasons.most_common():
        print(f"{count:7} {reason}")
    taken = time.perf_counter() - begin
    print(f"{given.sequences} sequences, seed {given.seed}, {taken:.0f} s: {len(found)} differences without a reason")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
