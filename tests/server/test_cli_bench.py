"""`geartrain bench` with real servers."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from geartrain.cli.commands import app
from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support.certificates import make_party
from tests.support.servers import PATIENCE
from tests.support.terminal import on_terminal

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
QUICK: Final = ("--warmup", "0", "--results", "-")

ODD: Final = """
def run(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number
"""
ROWS: Final = """
import numpy as np
from geartrain import batched
from jaxtyping import Float32

@batched(max_size=4)
def run(x: Float32[np.ndarray, "batch 2"]) -> Float32[np.ndarray, "batch"]:
    return x.sum(axis=1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "hello").symlink_to(EXAMPLES / "hello")
    for name, code in (("odd", ODD), ("rows", ROWS)):
        (folder / name).mkdir()
        (folder / name / "run.py").write_text(code)
    with serve(folder, queue=64) as server:
        yield server


def bench(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "geartrain", "bench", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80"},
    )


def bench_here(*arguments: str) -> Result:
    """As `bench`, in the test's own process, which is faster."""
    return CliRunner().invoke(app, ["bench", *arguments], prog_name="geartrain")


def results(done: Result) -> dict[str, Any]:
    """What was written to stdout."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_model_is_served_and_measured(tmp_path: Path) -> None:
    files = ("--html", "a.html", "--csv", "a.csv", "--results", "a.json")
    levels = ("--concurrency", "1,3", "--requests", "30", "--warmup", "0.05")
    done = bench(str(EXAMPLES / "hello"), *levels, *files, "--", "--replicas", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 at once" in done.stdout
    assert "p99" in done.stdout
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["model"], found["protocol"], found["slots"], found["silence"]) == ("hello", "cog", 2, "")
    for level, value in zip(found["levels"], (1, 3), strict=True):
        assert (level["value"], level["sent"], level["good"], level["faults"]) == (value, 30, 30, [])
        assert 0 < level["latency"]["p50"] <= level["latency"]["p99"] <= level["latency"]["max"]
        assert level["rate"] == pytest.approx(30 / level["seconds"])
        assert 0 < level["server"]["run"]["count"] <= 30
        assert level["server"]["run"]["mean"] < level["latency"]["mean"]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["succeeded"] for row in rows] == ["30", "30"]
    assert "<svg" in (tmp_path / "a.html").read_text()
    address = urlsplit(found["url"])
    with pytest.raises(ConnectionRefusedError):  # the server has ended with the measurement
        socket.create_connection((address.hostname or "", address.port or 0)).close()


def test_inputs_of_a_file_are_sent_in_turn_and_failures_counted(server: Server, tmp_path: Path) -> None:
    (tmp_path / "inputs.jsonl").write_text('{"number": 1}\n{"number": 2}\n{"number": 3}\n')
    done = bench_here(
        server.url,
        "-m",
        "odd",
        "--inputs",
        str(tmp_path / "inputs.jsonl"),
        "--requests",
        "30",
        "--concurrency",
        "2",
        *QUICK,
    )
    assert done.exit_code == 1
    (level,) = results(done)["levels"]
    assert (level["good"], level["faults"]) == (
        20,
        [{"kind": "failed", "count": 10, "example": "ValueError: 2 is even"}],
    )
    assert "10 × failed: ValueError: 2 is even" in done.stderr
    assert "10 of 30 requests failed" in done.stderr


@pytest.mark.parametrize("protocol", ["v2", "v2-binary"])
def test_tensors_and_batches(server: Server, protocol: str) -> None:
    arguments = ("-m", "rows", "--json", '{"x": [[1, 2]]}', "--concurrency", "4", "--requests", "40")
    done = bench_here(server.url, *arguments, "--protocol", protocol, *QUICK)
    assert done.exit_code == 0, done.stderr
    (level,) = results(done)["levels"]
    assert level["good"] == 40
    assert 1 <= level["server"]["batch"]["mean"] <= 4


def test_arrivals_at_a_rate(server: Server) -> None:
    done = bench_here(server.url, "-m", "hello", "--rate", "500,1000", "--requests", "20", *QUICK)
    assert done.exit_code == 0, done.stderr
    assert [(level["kind"], level["value"], level["good"]) for level in results(done)["levels"]] == [
        ("rate", 500, 20),
        ("rate", 1000, 20),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "odd"], "the model has no default for number; give -i number=…"),
        (["-m", "odd", "--json", '{"number": "x"}'], "the server refuses the requests with HTTP 422: input.number"),
        (["-m", "helo"], "did you mean hello?"),
        ([], "name one with --model"),
    ],
)
def test_what_is_wrong_is_one_sentence(server: Server, arguments: list[str], words: str) -> None:
    done = bench_here(server.url, *arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert words in done.stderr


def test_interrupt_shows_what_there_is(server: Server, tmp_path: Path) -> None:
    levels = ("--concurrency", "2,4", "--duration", "1h", "--warmup", "0")
    page = tmp_path / "page.html"
    with on_terminal("bench", server.url, "-m", "hello", *levels, "--html", str(page), stdout=None) as terminal:
        terminal.read_until(" answers")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read_to_end()
        assert terminal.process.wait(PATIENCE) == 130
    assert "Measuring 2 at once" in shown
    assert "2 at once, interrupted" in shown
    assert "4 at once" not in shown
    assert "interrupted" in page.read_text()


def test_tls_with_a_key_that_may_not_read_metrics(tmp_path: Path) -> None:
    cert, key = make_party("server").write(tmp_path, "server")
    keys = tmp_path / "keys"
    scopes = ("--scope", "predict", "--scope", "read", "--model", "hello")
    made = CliRunner().invoke(app, ["keys", "new", "ada", "--keys", str(keys), *scopes], prog_name="geartrain")
    with serve(EXAMPLES / "hello", tls_cert=cert, tls_key=key, keys=keys) as server:
        access = ("--key", made.stdout.strip(), "--cacert", str(cert))
        done = bench_here(server.url, *access, "-m", "hello", "--concurrency", "1", "--requests", "10", *QUICK)
    assert done.exit_code == 0, done.stderr
    found = results(done)
    assert (found["levels"][0]["good"], found["silence"]) == (10, "GET /metrics is answered with 403")
    names = ("queue", "run", "first_output", "batch", "memory_rows")
    assert found["levels"][0]["server"] == dict.fromkeys(names)


def test_model_that_cannot_be_set_up(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "class Runner:\n    def setup(self): raise ValueError('no weights')\n    def run(self) -> int: return 1\n"
    )
    done = bench(str(tmp_path))
    assert done.returncode == 1
    assert "no weights" in done.stderr
    assert done.stderr.endswith("cannot be served\n")


def test_runs_that_outlast_the_timeout_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import time\nfrom geartrain import BaseRunner, concurrent\n"
        "class Runner(BaseRunner):\n    @concurrent(max=2)\n"
        "    async def run(self, seconds: int) -> int:\n        time.sleep(seconds)\n        return seconds\n"
    )
    (tmp_path / "inputs.jsonl").write_text('{"seconds": 0}\n{"seconds": 100}\n')
    load = ("--concurrency", "2", "--requests", "4", "--timeout", "1s", "--inputs", str(tmp_path / "inputs.jsonl"))
    began = time.monotonic()
    done = bench(str(tmp_path), *load, *QUICK)
    assert time.monotonic() - began < 20  # with a start and an end of a server; its usual grace alone is 30 s
    assert done.returncode == 1, done.stderr
    (level,) = json.loads(done.stdout)["levels"]
    assert {fault["example"] for fault in level["faults"]} == {"no answer within 1 s"}
