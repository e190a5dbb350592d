"""Fuzzes a reader of bytes: `python -m tools.fuzz.fuzz head --seconds 600`.

With coverage as its guide where atheris is installed (`pip install atheris`), with chance alone otherwise. What raises
is written to `--crashes` and shown with its traceback; it can be run again with `--replay FILE`.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from pathlib import Path

from tools.fuzz.harnesses import HARNESSES, Harness


def mutated(harness: Harness, chance: random.Random) -> bytes:
    """Return a seed with a few changes: bytes, words, and parts of other seeds."""
    data = bytearray(chance.choice(harness.seeds))
    for _ in range(chance.randint(0, 6)):
        at = chance.randint(0, len(data))
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            data[at : at + chance.randint(1, 8)] = b""
        elif kind == 2:  # noqa: PLR2004
            data[at:at] = chance.choice(harness.words)
        elif kind == 3:  # noqa: PLR2004
            other = chance.choice(harness.seeds)
            begin = chance.randrange(len(other))
            data[at:at] = other[begin : begin + chance.randint(1, len(other))]
        elif kind == 4:  # noqa: PLR2004
            data[at:at] = data[at : at + chance.randint(1, 16)] * chance.choice((1, 2, 300))
        else:
            data[:1] = bytes([chance.randrange(256)])  # cut elsewhere
    return bytes(data)


def by_chance(harness: Harness, *, runs: int, seed: int, until: float = float("inf")) -> int:
    """Run so often, or until that time of the monotonic clock; return how often it was."""
    chance = random.Random(seed)  # noqa: S311
    for run in range(runs):
        data = mutated(harness, chance)
        try:
            harness.run(data)
        except BaseException as error:
            error.add_note(f"the bytes were {data!r}")
            raise
        if time.monotonic() > until:
            return run + 1
    return runs


def by_coverage(name: str, seconds: int, crashes: Path) -> None:
    """Hand over to atheris, which ends the process."""
    import atheris

    modules = ["transport.wire.heads", "transport.wire.chunks", "apis.multipart", "outbound.data_urls"]
    modules += ["outbound.remote.archives", "transport.http2.frames", "transport.http2.headers"]
    single = [
        "geartrain.domain.multipart",
        "geartrain.outbound.data_urls",
        "geartrain.outbound.remote.archives",
        "tarfile",
    ]
    packages = ["geartrain.transport.wire", "geartrain.transport.http2", "hpack"]
    with atheris.instrument_imports(include=[*packages, *single]):
        for module in modules:
            if importlib.util.find_spec(f"geartrain.{module}") is not None:
                __import__(f"geartrain.{module}")
    harness = HARNESSES[name]
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in harness.words))
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(harness.seeds):
            (corpus / str(number)).write_bytes(seed)
        crashes.mkdir(parents=True, exist_ok=True)
        given = [f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/", f"-dict={words}", "-max_len=8192"]
        atheris.Setup([sys.argv[0], *given, str(corpus)], harness.run)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main() -> None:
    """Fuzz, or run what was found again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("harness", choices=HARNESSES)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="of chance, without atheris")
    parser.add_argument("--crashes", type=Path, default=Path(".cache/fuzz"))
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay:
        HARNESSES[given.harness].run(given.replay.read_bytes())
    elif importlib.util.find_spec("atheris") is not None:
        by_coverage(given.harness, given.seconds, given.crashes)
    else:
        harness = HARNESSES[given.harness]
        runs = by_chance(harness, runs=sys.maxsize, seed=given.seed, until=time.monotonic() + given.seconds)
        print(f"{runs} runs by chance: atheris is not installed")


if __name__ == "__main__":
    main()
