"""Sends pipelined mixes of requests to a server, and compares its answers with what h11 finds in the same bytes.

`python -m tools.fuzz.differential --mixes 20000`. Starts a server by itself, unless `--url` names one whose model gives
its input `s` back. Prints each difference that has no reason, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tools.fuzz.client import run_mix
from tools.fuzz.mixes import difference, make_mix

MODEL: Final = "async def run(s: str = '') -> str:\n    return s\n"
CLIENTS: Final = 16
SHOWN: Final = 20


async def fuzz(address: tuple[str, int], mixes: int, seed: int) -> list[str]:
    """Return a line for each mix whose answers differ."""
    numbers = iter(range(mixes))
    found: list[str] = []

    async def client() -> None:
        for number in numbers:
            mix = make_mix(random.Random(f"{seed}-{number}"))  # noqa: S311
            answers = await run_mix(address, mix)
            fault = difference(mix, answers) if isinstance(answers, list) else answers
            if fault:
                found.append(f"{number}: {fault}\n    {mix.data!r}\n    cut at {list(mix.cuts)}")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


@contextlib.contextmanager
def server(model: str = MODEL) -> Iterator[str]:
    """Run a server of `model` for the time of the block; yields its URL."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        folder.mkdir()
        (folder / "run.py").write_text(model)
        (folder / "cog.yaml").write_text("concurrency: {max: 64}\n")
        words = [sys.executable, "-m", "geartrain", "serve", str(folder), "--host", "127.0.0.1", "--port", "0"]
        command = [*words, "--grpc-port", "off", "--log-format", "json"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
        try:
            yield _wait(process)
        finally:
            process.terminate()
            process.communicate()


def _wait(process: subprocess.Popen[str]) -> str:
    url = ""
    for line in process.stderr or ():
        found = re.search(r'"url": ?"(http://[^"]+)"', line)
        url = found[1] if found else url
        if '"ready"' in line:
            return url
    raise SystemExit("the server has not become ready")


def main() -> None:
    """Run as many mixes as are wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--mixes", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url")
    given = parser.parse_args()
    with contextlib.nullcontext(given.url) if given.url else server() as url:
        parts = urlsplit(url)
        begin = time.perf_counter()
        found = asyncio.run(fuzz((parts.hostname or "", parts.port or 0), given.mixes, given.seed))
    print("\n".join(found[:SHOWN]))
    print(f"{given.mixes} mixes, seed {given.seed}, {time.perf_counter() - begin:.0f} s: {len(found)} differences")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
