"""How many predictions a second, how soon ready, how much memory: geartrain beside coglet, mosec and a floor.

`make bench`, or `python benchmarks/predict.py --help`. The servers of a case run side by side and take turns in rounds,
so a change of the machine's mood hits all of them; what counts is the median of each round's ratios. Prints markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import importlib.metadata
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

import load
from peer_servers import mosec
from report import conditions, output, peers_environment, table, version_of
from servers import HERE, ROOT, Running, Server, coglet, floor, geartrain, running

SERVERS = ("geartrain", "coglet", "mosec", "floor")
WARM_UP = 1  # seconds of load before the first round
_PAUSE = 0.5  # seconds between two looks at the memory of a server that has just become ready
_STILL = 100_000  # bytes that it may have grown by


@dataclasses.dataclass(frozen=True)
class Load(load.Load):
    """Also counts the answers "at capacity". With one connection the percentiles run over good answers alone."""

    busy: int


@dataclasses.dataclass(frozen=True)
class Case:
    """One model under one load."""

    title: str
    model: str
    slots: int
    connections: int

    def servers(self, names: Sequence[str], folder: pathlib.Path) -> list[Server]:
        """Those of these names; what they write goes into `folder`."""
        model = HERE / "models" / self.model
        known: dict[str, Callable[[], Server]] = {
            "geartrain": lambda: geartrain(model, slots=self.slots),
            "coglet": lambda: coglet(model, peers_environment("coglet"), slots=self.slots),
            "mosec": lambda: mosec(folder, script="noop.py"),
            "floor": lambda: floor(slots=self.slots),
        }
        return [known[name]() for name in SERVERS if name in names]


CASES = (
    Case("a plain no-op, 1 slot, 1 connection", "noop", 1, 1),
    Case("an async no-op, 32 slots, 16 connections", "noop_async", 32, 16),
)


def drive(port: int, *, connections: int, seconds: int) -> Load:
    """Send predictions over so many connections, each one after the answer to the one before."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / "predict.lua")]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/predictions", *(["--", "single"] if connections == 1 else [])],
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
    )
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def throughput(case: Case, *, names: Sequence[str], rounds: int, seconds: int) -> str:
    """Measure one case; a markdown table."""
    with contextlib.ExitStack() as stack:
        chosen = case.servers(names, pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())))
        started = {server.name: stack.enter_context(running(server)) for server in chosen}
        loads: dict[str, list[Load]] = {name: [] for name in started}
        for server in started.values():
            drive(server.port, connections=case.connections, seconds=WARM_UP)
        for _ in range(rounds):
            for name, server in started.items():
                loads[name].append(drive(server.port, connections=case.connections, seconds=seconds))
    rows = [_load_row(name, measured, loads.get("geartrain", [])) for name, measured in loads.items()]
    head = ["server", "good/s", "p50 ms", "p99 ms", "409", "other", "geartrain: good/s", "geartrain: p50"]
    return f"### {case.title[0].upper()}{case.title[1:]}\n\n{table(head, rows)}"


def _load_row(name: str, measured: Sequence[Load], ours: Sequence[Load]) -> list[str]:
    def middle(pick: Callable[[Load], float]) -> float:
        return statistics.median(map(pick, measured))

    row = [name, f"{middle(lambda each: each.rate):,.0f}"]
    row += [f"{middle(lambda each: each.p50) * 1000:.3f}", f"{middle(lambda each: each.p99) * 1000:.3f}"]
    row += [str(sum(each.busy for each in measured)), str(sum(each.bad for each in measured))]
    if not ours or measured is ours:
        return [*row, "", ""]
    rates = [mine.rate / theirs.rate for mine, theirs in zip(ours, measured, strict=True) if theirs.rate]
    waits = [mine.p50 / theirs.p50 for mine, theirs in zip(ours, measured, strict=True) if theirs.p50]
    return [*row, *(f"{statistics.median(ratios):.2f} ×" if ratios else "none good" for ratios in (rates, waits))]


def start_up(*, names: Sequence[str], rounds: int) -> str:
    """Measure `examples/hello` from the start of the process to READY, and its memory after one prediction."""
    with tempfile.TemporaryDirectory() as folder:
        text = (ROOT / "examples/hello/run.py").read_text()
        (pathlib.Path(folder) / "run.py").write_text(text.replace("from geartrain import", "from cog import"))
        both = [geartrain(ROOT / "examples/hello"), coglet(pathlib.Path(folder), peers_environment("coglet"))]
        servers = [server for server in both if server.name in names]
        seconds: dict[str, list[float]] = {server.name: [] for server in servers}
        memory: dict[str, list[int]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                with running(server) as started:
                    predict_once(started.port)
                    seconds[server.name].append(started.seconds_to_ready)
                    memory[server.name].append(settled_memory(started))
    rows = [
        [name, f"{statistics.median(seconds[name]):.2f}", f"{statistics.median(memory[name]) / 1e6:.0f}"]
        for name in seconds
    ]
    return f"### Start of `examples/hello`\n\n{table(['server', 'seconds to READY', 'PSS MB'], rows)}"


def settled_memory(started: Running) -> int:
    """Bytes of memory when it grows no more: some of what a server needs is imported beside its first answers."""
    before, now = 0, started.memory()
    while now > before + _STILL:
        time.sleep(_PAUSE)
        before, now = now, started.memory()
    return now


def predict_once(port: int) -> None:
    """Ask for one prediction, so that whatever a server imports late is in its memory."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/predictions", '{"input":{"name":"world"}}', {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if answer.get("output") != "Hello, world!":
        raise RuntimeError(f"the hello model answered {answer}")


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a turn (default: 3)")
    parser.add_argument("--starts", type=int, default=7, help="how often to start each server (default: 7)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS, help="whom to measure (default: all)")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.exit(2, "wrk is not installed; on Debian and Ubuntu: apt install wrk\n")
    wrk = output(["wrk", "-v"]).partition(" [")[0].replace("debian/", "")
    floor_server = f"uvicorn {importlib.metadata.version('uvicorn')} (floor)"
    versions = {
        name: version_of(name, peers_environment(name)) for name in ("coglet", "mosec") if name in options.servers
    }
    print(conditions(versions, floor_server, wrk))
    print(f"{options.rounds} rounds, {options.seconds} s for each server in each; {options.starts} starts of each.\n")
    for case in CASES:
        print(throughput(case, names=options.servers, rounds=options.rounds, seconds=options.seconds), flush=True)
    print(start_up(names=options.servers, rounds=options.starts))


if __name__ == "__main__":
    main()
