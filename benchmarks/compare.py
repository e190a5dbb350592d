"""Whether NEW is faster or slower than OLD: two states of geartrain in turns, on the same models.

`make compare OLD=main NEW=.`, or `python benchmarks/compare.py --help`. OLD and NEW are commits, in any
way git takes, or paths of work trees. Each has an environment of its own with its own pins, which the first call makes
and later ones find. Each measure starts its server anew in every turn, and no other server runs meanwhile. What counts
is the median of each round's ratios. Needs wrk. Prints markdown. Ends with 1 if a measure could not be made, with 2 if
OLD or NEW cannot be installed or wrk is missing, and with 3 if NEW is worse than `--fail-below` allows.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import batching
import checkouts
import load
import open_inference
import predict
import ratios
import streams
from grpc_call import wait_until_live
from ratios import Quantity, Series, Side
from report import machine, table
from servers import HERE, ROOT, TIMEOUT, Running, Server, running

STARTS = 3  # of each server in a round; their median counts
WARM_UP = 1  # seconds of load before what is measured
MODEL_NAME = "echo"  # of every model: the one that `open_inference` asks for
PROBLEMS = (RuntimeError, OSError, ValueError, subprocess.SubprocessError, http.client.HTTPException)  # of a server


@dataclasses.dataclass(frozen=True)
class Work:
    """What a load came to: so many answers (of a stream: tokens) in so many seconds."""

    count: int
    seconds: float


Values = dict[Quantity, float]
Loading = Callable[[Running, int], Work]  # puts a server under load for so many seconds


# loads


def predictions(connections: int) -> Loading:
    """Cog's API, a string there and back."""

    def drive(server: Running, seconds: int) -> Work:
        seen = predict.drive(server.port, connections=connections, seconds=seconds)
        return _good(seen, seen.busy)

    return drive


def inference(connections: int) -> Loading:
    """The Open Inference Protocol, four numbers there and back as JSON."""
    request = open_inference.small_json()

    def drive(server: Running, seconds: int) -> Work:
        open_inference.check("the server", server, request)
        with tempfile.NamedTemporaryFile() as body:
            body.write(request.body)
            body.flush()
            path = pathlib.Path(body.name)
            return _good(
                open_inference.drive(
                    server, request, path, clients=open_inference.Clients(connections), seconds=seconds
                )
            )

    return drive


def batches(connections: int) -> Loading:
    """Cog's API, a number there and another one back, each checked."""
    return lambda server, seconds: _good(batching.load(server, batching.COG, connections=connections, seconds=seconds))


def tokens(server: Running, seconds: int) -> Work:
    """One stream of server-sent events after the other, each read to its end and checked."""
    count, spent = 0, 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        seen = streams.flow(server.port, streams=1, tokens=streams.TOKENS)
        if not seen.good:
            raise RuntimeError("a stream did not end as it must")
        count, spent = count + seen.events, spent + seen.seconds
    return Work(count, spent)


def _good(seen: load.Load, refused: int = 0) -> Work:
    bad = seen.bad + refused
    if bad or not seen.good:
        raise RuntimeError(f"{bad} of {bad + seen.good} answers were not as they must be")
    return Work(seen.good, seen.seconds)


# measures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """Something to measure on a server that is started for it, and ended afterwards."""

    name: str
    about: str
    model: str
    slots: int = 1
    take: Callable[[Measure, Server, int], Values]
    loading: Loading
    unit: str = "answers/s"
    uses_wrk: bool = True
    grpc: bool = False  # whether the server has the port of gRPC too


def take_load(measure: Measure, server: Server, seconds: int) -> Values:
    """The rate, and what the processes of the server spend for each answer."""
    with running(server) as started:
        measure.loading(started, WARM_UP)
        before = started.cpu_seconds()
        work = measure.loading(started, seconds)
        after = started.cpu_seconds()
    values = {Quantity(name=measure.name, unit=measure.unit, kind="rate"): work.count / work.seconds}
    for process, first, last in zip(("parent", "worker"), before, after, strict=True):
        if last <= first:
            raise RuntimeError(f"the {process} took no CPU that its clock would show; a longer --seconds may help")
        per = measure.unit.removesuffix("s/s")
        quantity = Quantity(name=f"{measure.name}, CPU of the {process}", unit=f"µs/{per}", kind="detail")
        values[quantity] = (last - first) / work.count * 1e6
    return values


def take_start(measure: Measure, server: Server, seconds: int) -> Values:  # noqa: ARG001 - as of the others
    """The time from the start of the process to READY."""
    times = []
    for _ in range(STARTS):
        with running(server) as started:
            times.append(started.seconds_to_ready)
    return {Quantity(name=measure.name, unit="s", kind="cost"): statistics.median(times)}


def take_memory(measure: Measure, server: Server, seconds: int) -> Values:
    """The resident memory of parent and worker after a load."""
    with running(server) as started:
        measure.loading(started, seconds)
        return {Quantity(name=measure.name, unit="MiB", kind="cost"): started.resident() / 2**20}


def take_grpc(measure: Measure, server: Server, seconds: int) -> Values:  # noqa: ARG001 - as of the others
    """The time from the start of the process to READY and an answer over gRPC behind it, and the memory then."""
    times, memory = [], []
    for _ in range(STARTS):
        with running(server) as started:
            begin = time.perf_counter()
            wait_until_live(started.grpc_port, TIMEOUT)
            times.append(started.seconds_to_ready + time.perf_counter() - begin)
            memory.append(started.memory() / 2**20)
    return {
        Quantity(name=measure.name, unit="s", kind="cost"): statistics.median(times),
        Quantity(name=f"{measure.name}, memory", unit="MiB", kind="cost"): statistics.median(memory),
    }


MEASURES = (
    Measure(
        name="cog-1",
        about="predictions of a plain no-op, 1 connection",
        model="noop",
        take=take_load,
        loading=predictions(1),
    ),
    Measure(
        name="cog-16",
        about="predictions of an async no-op, 16 connections",
        model="noop_async",
        slots=32,
        take=take_load,
        loading=predictions(16),
    ),
    Measure(
        name="infer-1",
        about="infer with 4 numbers as JSON, 1 connection",
        model="tensor",
        take=take_load,
        loading=inference(1),
    ),
    Measure(
        name="infer-16",
        about="the same with an async model, 16 connections",
        model="tensor_async",
        slots=16,  # its own number: the variable would override it
        take=take_load,
        loading=inference(16),
    ),
    Measure(
        name="batch-16",
        about="predictions of a @batched model that takes 5 ms for a batch of 32 at most, 16 connections",
        model="batched",
        take=take_load,
        loading=batches(16),
    ),
    Measure(
        name="batch-64",
        about="the same, 64 connections",
        model="batched",
        take=take_load,
        loading=batches(64),
    ),
    Measure(
        name="sse",
        about=f"one stream of {streams.TOKENS:,} tokens after the other as server-sent events",
        model="tokens",
        take=take_load,
        loading=tokens,
        unit="tokens/s",
        uses_wrk=False,
    ),
    Measure(
        name="start",
        about=f"from the start of the process to READY, the median of {STARTS} starts",
        model="noop",
        take=take_start,
        loading=predictions(1),
        uses_wrk=False,
    ),
    Measure(
        name="memory",
        about="resident memory of parent and worker after the load of cog-1",
        model="noop",
        take=take_memory,
        loading=predictions(1),
    ),
    Measure(
        name="grpc-start",
        about=f"from the start of examples/hello to an answer over gRPC, and its memory (PSS), of {STARTS} starts",
        model="hello",
        take=take_grpc,
        loading=predictions(1),
        uses_wrk=False,
        grpc=True,
    ),
)


# rounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """OLD and NEW, the models that both serve, and what is known of them so far.

    `failed` has the reason for each measure that could not be made, by its name.
    """

    sides: dict[Side, checkouts.Checkout]
    models: pathlib.Path
    measured: dict[Quantity, Series] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def round(self, number: int, measures: Sequence[Measure], *, seconds: int) -> None:
        """Let both take their turns in each measure, one soon after the other."""
        for measure in measures:
            if measure.name not in self.failed:
                self._measure(number, measure, seconds)

    def series(self, measures: Sequence[Measure]) -> list[Series]:
        """What was measured, the quantities of each measure together, without the measures that failed."""
        names = [measure.name for measure in measures if measure.name not in self.failed]
        return [series for series in self.measured.values() if series.quantity.name.partition(",")[0] in names]

    def _measure(self, number: int, measure: Measure, seconds: int) -> None:
        seen: dict[Side, Values] = {}
        for side in ratios.order(number):
            model = self.models / measure.model / MODEL_NAME
            server = self.sides[side].serve(model, slots=measure.slots, grpc=measure.grpc)
            try:
                seen[side] = measure.take(measure, server, seconds)
            except PROBLEMS as error:
                self.failed[measure.name] = f"{side.upper()}, round {number + 1}: {error}"
                return
        for quantity, old in seen["old"].items():
            series = self.measured.setdefault(quantity, Series(quantity))
            series.old.append(old)
            series.new.append(seen["new"][quantity])


def copy_models(measures: Sequence[Measure], folder: pathlib.Path) -> None:
    """Copy the models of this work tree, so that both sides serve the same files under the same name."""
    for name in {measure.model for measure in measures}:
        ignored = shutil.ignore_patterns("__pycache__")
        source = HERE / "models" / name
        source = source if source.exists() else ROOT / "examples" / name
        shutil.copytree(source, folder / name / MODEL_NAME, ignore=ignored)


def compare(
    sides: dict[Side, checkouts.Checkout], measures: Sequence[Measure], *, rounds: int, seconds: int
) -> Contest:
    """Measure two prepared checkouts against each other."""
    with tempfile.TemporaryDirectory() as folder:
        copy_models(measures, pathlib.Path(folder))
        contest = Contest(sides=sides, models=pathlib.Path(folder))
        for number in range(rounds):
            print(f"Round {number + 1} of {rounds} …", file=sys.stderr)
            contest.round(number, measures, seconds=seconds)
    return contest


# the command line


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Describe the command line and read it."""
    names = [measure.name for measure in MEASURES]
    parser.add_argument("old", metavar="OLD", help="a commit (a branch, a tag, HEAD~3 …) or the path of a work tree")
    parser.add_argument("new", metavar="NEW", help="the same for the other side; `.` for this work tree as it lies")
    parser.add_argument("--rounds", type=_positive, default=7, help="turns that each side takes (default: 7)")
    parser.add_argument("--seconds", type=_positive, default=3, help="length of a load in a turn (default: 3)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="see below (all)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write every value of every round")
    parser.add_argument(
        "--fail-below",
        type=_ratio,
        metavar="RATIO",
        help="end with 3 if the mean of the rates is below it, or a rate, the start or the memory in every round",
    )
    width = max(map(len, names))
    lines = (f"  {measure.name:<{width}}  {measure.about}" for measure in MEASURES)
    parser.epilog = "measures:\n" + "\n".join(lines)
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _ratio(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0; 0.97 allows NEW to be 3 % worse")
    return number


def present(contest: Contest, measures: Sequence[Measure], options: argparse.Namespace) -> int:
    """Print the table and what is wrong, write the file, and return the exit status."""
    series = contest.series(measures)
    if series:
        print(table(ratios.HEAD, ratios.rows(series)))
    for name, reason in contest.failed.items():
        print(f"{name} could not be measured. {reason}")
    short = ratios.shortfalls(series, options.fail_below) if options.fail_below and series else []
    print("\n".join(short), end="\n" if short else "")
    if options.json:
        about = {f"{side}": dataclasses.asdict(checkout) for side, checkout in contest.sides.items()}
        data = {**about, "rounds": options.rounds, "seconds": options.seconds, "machine": machine()}
        data |= {**ratios.as_json(series), "failed": contest.failed}
        options.json.write_text(json.dumps(data, indent=2, default=str, ensure_ascii=False) + "\n")
    if contest.failed:
        return 1
    return 3 if short else 0


def main() -> int:
    """Parse the command line, make the environments, measure, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = parse(parser)
    measures = [measure for measure in MEASURES if measure.name in options.only]
    tool = f"; {load.version(parser)}" if any(measure.uses_wrk for measure in measures) else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with the servers ended, as after Ctrl-C
    try:
        sides: dict[Side, checkouts.Checkout] = {
            "old": checkouts.find(options.old),
            "new": checkouts.find(options.new),
        }
        sides = {side: checkouts.prepare(checkout) for side, checkout in sides.items()}
    except (LookupError, OSError, subprocess.SubprocessError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{machine()}{tool}. Load average at the beginning: {os.getloadavg()[0]:.1f}.")
    print(f"{options.rounds} rounds, {options.seconds} s for each load.\n")
    print(
        "".join(f"- {side.upper()}: {checkout.name}, {checkout.about}\n" for side, checkout in sides.items()),
        flush=True,
    )
    return present(compare(sides, measures, rounds=options.rounds, seconds=options.seconds), measures, options)


if __name__ == "__main__":
    sys.exit(main())
