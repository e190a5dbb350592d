"""Values of the command line: a command gets those that Typer alone would give it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from geartrain.cli.options import parse_duration
from geartrain.cli.typer_app import CommandApp


def got(app: typer.Typer, words: list[str]) -> list[tuple[type, Any]] | None:
    """Return the values that a command gets, with their types; None if the command line is refused."""
    found: list[tuple[type, Any]] = []

    def command(
        words: Annotated[list[str] | None, typer.Argument()] = None,
        name: Annotated[str, typer.Option()] = "x",
        other: Annotated[str | None, typer.Option(envvar="OTHER")] = None,
        count: Annotated[int, typer.Option(min=0)] = 5,
        ratio: Annotated[float, typer.Option()] = 0.5,
        whole: Annotated[float, typer.Option()] = 2,
        on: Annotated[bool, typer.Option("--on/--off")] = False,
        kind: Annotated[Literal["one", "two"], typer.Option()] = "one",
        time: Annotated[float, typer.Option(parser=parse_duration)] = 1.5,
        limit: Annotated[str, typer.Option(parser=parse_duration)] = "2m",
        several: Annotated[list[str], typer.Option()] = ["a"],  # noqa: B006 - as commands have it
    ) -> None:
        values = (words, name, other, count, ratio, whole, on, kind, time, limit, several)
        found.extend((type(value), value) for value in values)

    app.command()(command)
    result = CliRunner(env={"OTHER": "there"} if "env" in words else {}).invoke(app, words)
    assert (result.exit_code == 0) == bool(found), result.output
    return found or None


@pytest.mark.parametrize(
    ("line", "is_accepted"),
    [
        ("", True),
        ("a b", True),
        ("env", True),
        ("--name y --other z --count 7 --ratio 1 --whole 3.5 --on", True),
        ("--kind two --time 5m --limit 1h --off", True),
        ("--several b --several c", True),
        ("--name=", True),
        ("--count x", False),
        ("--count -1", False),
        ("--ratio x", False),
        ("--kind three", False),
        ("--time x", False),
        ("--limit x", False),
        ("--unknown", False),
    ],
)
def test_values_are_those_of_typer(line: str, *, is_accepted: bool) -> None:
    values = got(CommandApp(), line.split())
    assert values == got(typer.Typer(), line.split())
    assert (values is not None) is is_accepted
