"""What `geartrain bench` refuses before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from geartrain.bench.load import Level
from geartrain.cli.bench import parse_concurrency, parse_rates
from geartrain.cli.commands import app

URL = "http://127.0.0.1:1"


def test_levels_are_read() -> None:
    assert parse_concurrency("1,8").all == (Level("concurrency", 1), Level("concurrency", 8))
    assert parse_rates("0.5, 1e3").all == (Level("rate", 0.5), Level("rate", 1000.0))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((URL, "--concurrency", "0"), 2, "'0': write numbers from 1 to 4096"),
        ((URL, "--concurrency", "1;2"), 2, "'1;2': write numbers"),
        ((URL, "--rate", "inf"), 2, "'inf': write requests a second"),
        ((URL, "--rate", "0"), 2, "'0': write requests a second"),
        ((URL, "--protocol", "grpc"), 2, "--protocol"),
        ((URL, "--concurrency", "1", "--rate", "1"), 1, "--rate is in place of --concurrency"),
        ((URL, "--duration", "0"), 1, "--duration is how long each level takes"),
        ((URL, "--inputs", "a.jsonl", "-i", "a=1"), 1, "--inputs are whole inputs"),
        ((URL, "--csv", "-", "--results", "-"), 1, "cannot both go to stdout"),
        ((URL, "--html", "gone/a.html"), 1, "there is no folder gone"),
        ((URL, "--cacert", "gone.pem"), 1, "there is no file gone.pem"),
        ((URL, "--", "--replicas", "2"), 1, "--replicas 2: options of `geartrain serve` are for a MODEL"),
        (("model", "other"), 1, "'other' is one argument too many"),
        (("gone",), 1, "gone"),
        ((URL,), 1, "cannot be reached"),
    ],
)
def test_what_cannot_be_is_said(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", *arguments], prog_name="geartrain", terminal_width=200)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr
