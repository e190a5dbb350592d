"""wrk: one request after the other over each of its connections."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import subprocess
from argparse import ArgumentParser
from collections.abc import Sequence

from report import output
from servers import HERE, Running


@dataclasses.dataclass(frozen=True)
class Load:
    """What one run of wrk saw. Times in seconds; the percentiles run over all answers."""

    good: int
    bad: int
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Good answers per second."""
        return self.good / self.seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The medians of several runs, and all the bad answers together."""

    rate: float
    p50: float
    p99: float
    bad: int


def drive(server: Running, path: str, script: str, arguments: Sequence[str], *, connections: int, seconds: int) -> Load:
    """Put a server under load for so many seconds, with a script of this folder and its arguments."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / script)]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}{path}", "--", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
    )
    if done.returncode:
        raise RuntimeError(f"wrk said:\n{done.stdout}{done.stderr}")
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def summary(loads: Sequence[Load]) -> Summary:
    """What several runs saw, one of them at least."""
    return Summary(
        rate=statistics.median(load.rate for load in loads),
        p50=statistics.median(load.p50 for load in loads),
        p99=statistics.median(load.p99 for load in loads),
        bad=sum(load.bad for load in loads),
    )


def version(parser: ArgumentParser) -> str:
    """Name and version of wrk; ends the program if it is not there."""
    if shutil.which("wrk") is None:
        parser.exit(2, "wrk is not installed; on Debian and Ubuntu: apt install wrk\n")
    return output(["wrk", "-v"]).partition(" [")[0].replace("debian/", "")


def connections_text(connections: int) -> str:
    """So many connections, in words."""
    return "1 connection" if connections == 1 else f"{connections} connections"
