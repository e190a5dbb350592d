"""`geartrain bench` of models that stream, with real servers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from geartrain.bench.connection import Connection
from geartrain.bench.streams import FORMS, STREAM_PROTOCOLS
from geartrain.cli.commands import app
from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support.servers import write_model
from tests.support.text_apis import PLAYER, play

FIRST, EACH, TOKENS = 0.06, 0.01, 8  # seconds to the first token and from one to the next, and how many there are
PACED = f"""
    import time
    from geartrain import BaseRunner, ConcatenateIterator, Input, current_scope, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, prompt: str = Input(default="a"), counts: bool = True) -> ConcatenateIterator[str]:
            time.sleep({FIRST})
            for number in range({TOKENS}):
                if number:
                    time.sleep({EACH})
                if counts:
                    current_scope().record_metric("tokens.completion", 2 * number + 2)
                yield 'to"ken '
                if prompt == "fail":
                    raise ValueError("no more")
"""
ONE = """
    def run(number: float = 1.0) -> float:
        return number
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, source in (("paced", PACED), ("player", PLAYER), ("one", ONE)):
        write_model(folder / name, source)
    with serve(folder, queue=64) as server:
        yield server


def bench(server: Server, model: str, protocol: str, *arguments: str) -> Result:
    words = ("bench", server.url, "-m", model, "--protocol", protocol, "--requests", "3", "--warmup", "0", *arguments)
    return CliRunner().invoke(app, [*words, "--concurrency", "1"], prog_name="geartrain")


def level_of(done: Result) -> dict[str, Any]:
    (level,) = json.loads(done.stdout)["levels"]
    found: dict[str, Any] = level
    return found


@pytest.mark.parametrize("protocol", STREAM_PROTOCOLS)
@pytest.mark.parametrize("counts", [True, False])
def test_times_of_tokens(server: Server, protocol: str, counts: bool) -> None:
    done = bench(server, "paced", protocol, "--json", json.dumps({"prompt": "a", "counts": counts}), "--results", "-")
    assert done.exit_code == 0, done.stderr
    level = level_of(done)
    streams = level["streams"]
    are_counted = counts and protocol != "generate"  # whose stream does not tell of the model's metrics
    assert streams["are_counted"] is are_counted
    count = 2 * TOKENS if are_counted else TOKENS
    assert streams["tokens"] == 3 * count
    assert streams["token_rate"] == pytest.approx(3 * count / level["seconds"])
    first, each = streams["first"], streams["per_token"]
    assert FIRST <= first["p50"] <= first["p99"] <= first["max"]
    # A client that has the first token late has the next ones sooner.
    assert EACH * (TOKENS - 1) / (count - 1) / 2 <= each["p50"] <= each["max"]
    assert first["max"] + each["mean"] * (count - 1) == pytest.approx(level["latency"]["max"], rel=0.5)


def test_reasoning_is_a_token_too(server: Server) -> None:
    pieces = play({"reasoning": "hm"}, "a", "b", {"metric": ["tokens.completion", 3]})
    given = {"messages": [{"role": "user", "content": pieces}]}
    done = bench(server, "player", "openai", "--json", json.dumps(given), "--results", "-")
    assert done.exit_code == 0, done.stderr
    streams = level_of(done)["streams"]
    assert (streams["tokens"], streams["are_counted"]) == (9, True)


def test_table_csv_and_page(server: Server, tmp_path: Path) -> None:
    files = ("--csv", str(tmp_path / "a.csv"), "--html", str(tmp_path / "a.html"))
    done = bench(server, "paced", "openai", *files)
    assert done.exit_code == 0, done.stderr
    head = done.stdout.splitlines()[0]
    assert re.search(r"first token p50 +first token p99 +per token p50 +tokens/s$", head)
    (row,) = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert FIRST <= float(row["first_token_p50_s"]) <= float(row["first_token_max_s"])
    assert (float(row["per_token_mean_s"]) > 0, row["tokens"]) == (True, str(3 * 2 * TOKENS))
    page = (tmp_path / "a.html").read_text()
    for title in ("Time to the first token", "Time per token", "Tokens a second"):
        assert f"<figcaption>{title}</figcaption>" in page
    plain = bench(server, "one", "cog", "--html", str(tmp_path / "b.html"))
    assert plain.exit_code == 0, plain.stderr
    assert "token" not in plain.stdout
    assert "first token" not in (tmp_path / "b.html").read_text().lower().partition("<table>")[0]


@pytest.mark.parametrize("protocol", STREAM_PROTOCOLS)
def test_streams_that_fail_are_counted_as_failed(server: Server, protocol: str) -> None:
    done = bench(server, "paced", protocol, "-i", "prompt=fail", "--results", "-")
    assert done.exit_code == 1
    level = level_of(done)
    assert (level["good"], level["streams"]) == (0, None)
    faults = level["faults"]
    # A run that fails before its first piece is sent is answered with a status of its own.
    assert {fault["kind"] for fault in faults} <= {"failed", "HTTP 500"}
    assert sum(fault["count"] for fault in faults) == 3
    assert all("ValueError: no more" in fault["example"] for fault in faults)


@pytest.mark.parametrize(
    ("model", "protocol", "arguments", "said"),
    [
        ("one", "openai", (), "the model has no chat completions"),
        ("one", "sse", (), "the model gives no stream"),
        ("player", "openai", ("--json", "{}"), 'the input "messages" has to be a list'),
        ("paced", "openai", ("-i", "counts=maybe"), "counts"),
    ],
)
def test_what_cannot_be_measured_is_said(
    server: Server, model: str, protocol: str, arguments: tuple[str, ...], said: str
) -> None:
    done = bench(server, model, protocol, *arguments)
    assert done.exit_code == 1
    assert said in done.stderr


class Nobody:
    """Hears of requests and does nothing."""

    def answered(self, connection: Connection, status: int, content: bytes) -> None:
        """Do nothing."""

    def broken(self, connection: Connection, reason: str) -> None:
        """Do nothing."""


PIECES: Final = [
    ("sse", b"event: start\ndata: {}\n\nevent: out", b'put\ndata: {"chunk":"a","index":0}\n\n'),
    ("generate", b"da", b'ta: {"output": "a"}\n\n'),
    ("openai", b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\ndata: {"con', b'tent":"a"}\n\n'),
    ("openai", b'data: {"delta":{"content":""}}\n\n', b'data: {"delta":{"reasoning_content":"a"}}\n\n'),
    ("openai", b'data: {"delta":{"content":""}}\n\n', b'data: {"delta":{"tool_calls":[{}]}}\n\n'),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("protocol", "before", "after"), PIECES)
async def test_first_token_is_found_across_pieces(protocol: str, before: bytes, after: bytes) -> None:
    connection = Connection(Nobody())
    connection.token = FORMS[protocol].stream.token
    connection.on_body(before)
    assert not connection.first
    connection.on_body(after)
    first = connection.first
    assert first
    connection.on_body(after)
    assert connection.first == first
