"""Texts of very different lengths: a batch that requests join and leave at any step, beside closed batches.

`python benchmarks/joint.py --help`. One server runs examples/together, the other one `generate()` for up to 32 texts,
as long as the longest takes; both with a model of 4 layers of 512. 32 clients each ask for 10 to 200 tokens. They take
turns in rounds, and what counts is the median of the rounds. Needs the libraries of the recipes (`make recipes`).
Prints markdown.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from report import machine, table
from servers import HERE, ROOT, Running, load, running, serving

CLIENTS = 32
SHORTEST, LONGEST = 10, 200  # tokens


def models(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Make both models, with the same weights."""
    joint, closed = folder / "joint", folder / "closed"
    shutil.copytree(ROOT / "examples/together", joint, ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    weights = joint / "make_weights.py"
    weights.write_text(weights.read_text().replace("n_embd=96", "n_embd=512").replace("n_layer=2", "n_layer=4"))
    made = "from pathlib import Path; from make_weights import make_weights; make_weights(Path('weights'), steps=1)"
    subprocess.run([sys.executable, "-c", made], cwd=joint, check=True, capture_output=True)
    # The fable ends after some 150 tokens: without an end of the text, each has as many as its client asks for.
    steps = (joint / "run.py").read_text().replace("token == self.tokenizer.eos_token_id", "False")
    (joint / "run.py").write_text(steps)
    shutil.copytree(joint, closed)
    (closed / "steps.py").write_text(steps)
    shutil.copy(HERE / "models/closed/run.py", closed / "run.py")
    return {"joint": joint, "closed": closed}


def ask(started: Running, inputs: pathlib.Path, seconds: int) -> dict[str, float]:
    """Put a server under load; requests a second, and their median time in ms."""
    level = load(started, "--concurrency", str(CLIENTS), "--inputs", str(inputs), seconds=seconds)
    return {"rate": level["rate"], "p50": level["latency"]["p50"] * 1000}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="length of a load in a turn (default: 10)")
    given = parser.parse_args()
    chance = random.Random(1)  # noqa: S311 - lengths
    lengths = [chance.randint(SHORTEST, LONGEST) for _ in range(500)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        inputs = folder / "inputs.jsonl"
        inputs.write_text("".join(json.dumps({"prompt": "The sun", "max_tokens": each}) + "\n" for each in lengths))
        seen: dict[str, list[dict[str, float]]] = {"joint": [], "closed": []}
        found = models(folder)
        for number in range(given.rounds):
            for way in sorted(found, reverse=number % 2 == 1):
                with running(serving(found[way], "--queue", "1000")) as started:
                    ask(started, inputs, 2)
                    seen[way].append(ask(started, inputs, given.seconds))
    mean = statistics.mean(lengths)
    ratio = statistics.median(
        one["rate"] / other["rate"] for one, other in zip(seen["joint"], seen["closed"], strict=True)
    )
    rows = [
        [
            way,
            f"{statistics.median(each['rate'] for each in values) * mean:.0f}",
            f"{statistics.median(each['p50'] for each in values):.0f}",
        ]
        for way, values in seen.items()
    ]
    print(machine())
    print(f"{given.rounds} rounds, {given.seconds} s for each load, {CLIENTS} clients.\n")
    print(table(["batches", "tokens/s", "p50 ms"], rows))
    print(f"\njoint / closed: {ratio:.2f} ×")


if __name__ == "__main__":
    main()
