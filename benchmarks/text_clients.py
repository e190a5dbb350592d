"""Tokens a second of a tiny language model of `transformers`: one client, and 16, whose texts share the steps.

`python benchmarks/text_clients.py --help`. The model has two layers and is made in some seconds; it computes on one
thread. Each client asks for a completion of 100 tokens and waits for it, again and again. One client and 16 take turns.
Needs the libraries of `make recipes`. Prints markdown; ends with 1 below `--least`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from report import machine, table
from servers import running, serving
from tests.text_models.tiny import make_model

TOKENS = 100  # of a completion
BODY = {
    "model": "tiny",
    "prompt": "<|user|>count<|end|><|assistant|>",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
}


async def rate(port: int, clients: int, seconds: float) -> float:
    """Tokens a second of so many clients."""
    data, end, count = json.dumps(BODY).encode(), time.monotonic() + seconds, 0

    async def client() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(data), data))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            answer = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            count += json.loads(answer)["usage"]["completion_tokens"]
        writer.close()

    begin = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return count / (time.monotonic() - begin)


def main() -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a load (default: 6)")
    parser.add_argument("--clients", type=int, default=16, help="clients beside one (default: 16)")
    parser.add_argument("--least", type=float, default=0.0, help="end with 1 if the ratio is below")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the server
    rates: dict[int, list[float]] = {1: [], given.clients: []}
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(pathlib.Path(name) / "tiny")
        (folder / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
        with running(serving(folder)) as started:
            asyncio.run(rate(started.port, 2, 2.0))
            for _ in range(given.rounds):
                for clients, found in rates.items():
                    found.append(asyncio.run(rate(started.port, clients, given.seconds)))
    one, many = rates.values()
    ratio = statistics.median(more / alone for alone, more in zip(one, many, strict=True))
    rows = [["1", f"{statistics.median(one):,.0f}", "1.00 ×"]]
    rows.append([str(given.clients), f"{statistics.median(many):,.0f}", f"{ratio:.2f} ×"])
    print(machine())
    print(f"{given.rounds} rounds, {given.seconds:.0f} s for each load, completions of {TOKENS} tokens, one thread.\n")
    print(table(["clients", "tokens/s", "to one client"], rows))
    return int(ratio < given.least)


if __name__ == "__main__":
    sys.exit(main())
