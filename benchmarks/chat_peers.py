"""CPU of a chunk of a chat as a stream, of all processes of a server: geartrain beside LitServe with its OpenAISpec.

`python benchmarks/chat_peers.py --help`. Both run at once and take turns; the ratio is the median of the rounds.
LitServe has an environment of its own. Ends with 1 if it takes less than `--least` times the CPU of geartrain.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import time

from peer_servers import litserve
from report import conditions, peers_environment, table, version_of
from servers import HERE, Running, geartrain, processes_of, running
from text_streams import Form, cpu, stream

TOKENS = 5000
PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "token"}]
BODY = {"model": "texts", "messages": MESSAGES, "stream": True, "max_tokens": TOKENS}
FORM = Form("chat", PATH, BODY, b" token")


def measure(server: Running) -> tuple[float, float]:
    """Microseconds of CPU, and of the clock, for a chunk."""
    every = processes_of(server.pid)
    before, begin = sum(map(cpu, every)), time.perf_counter()
    stream(server.port, FORM, tokens=TOKENS)
    took = time.perf_counter() - begin
    return (sum(map(cpu, every)) - before) / TOKENS * 1e6, took / TOKENS * 1e6


def main() -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.0, help="times the CPU of geartrain that LitServe has to take")
    given = parser.parse_args()
    seen: dict[str, list[tuple[float, float]]] = {"geartrain": [], "LitServe": []}
    other = dataclasses.replace(litserve(script="chat.py", batch_timeout=0), environment={"PYTHONUNBUFFERED": "1"})
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(running(geartrain(HERE / "models/texts")))
        theirs = stack.enter_context(running(other))
        for turn in range(given.rounds + 1):
            for name, server in (("geartrain", ours), ("LitServe", theirs)):
                taken = measure(server)
                if turn:  # the first one warms up
                    seen[name].append(taken)
    ratio = statistics.median(b[0] / a[0] for a, b in zip(seen["geartrain"], seen["LitServe"], strict=True))
    rows = [
        [
            name,
            f"{statistics.median(each[0] for each in taken):.1f}",
            f"{statistics.median(each[1] for each in taken):.1f}",
        ]
        for name, taken in seen.items()
    ]
    print(conditions({"litserve": version_of("litserve", pathlib.Path(peers_environment("litserve")))}))
    print(f"{given.rounds} rounds of {TOKENS} chunks. LitServe takes {ratio:.0f} × the CPU.\n")
    print(table(["server", "CPU of a chunk, µs", "time of a chunk, µs"], rows))
    return int(ratio < float(given.least))


if __name__ == "__main__":
    sys.exit(main())
