"""The help of each command: on one screen, without broken words, and with examples."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from geartrain.cli.commands import app

COLUMNS = 80
SCREEN = 60  # lines


def help_of(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}).invoke(app, words, prog_name="geartrain")
    assert result.exit_code == 0, result.output
    return result.output


def commands() -> Iterator[tuple[str, ...]]:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context = typer.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from ((name, inner) for inner in command.list_commands(context))
        yield (name,)


@pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
def test_help_fits_on_a_screen_and_breaks_no_word(words: tuple[str, ...]) -> None:
    text, whole = help_of(*words, "--help"), help_of(*words, "--help-all")
    assert len(text.splitlines()) <= SCREEN
    options = [line for line in whole.splitlines() if line.startswith("  -")]
    assert len(options) == len(set(options))
    for line in (*text.splitlines(), *whole.splitlines()):
        assert len(line) <= COLUMNS or " " not in line.strip(), line
        assert "<bool>" not in line
        assert not re.search(r"--[\w-]+…", line)
        assert "\\[" not in line


GROUPS = {("keys",), ("predictions",), ("deploy",)}


@pytest.mark.parametrize("words", sorted({*commands()} - GROUPS), ids=" ".join)
def test_help_has_examples(words: tuple[str, ...]) -> None:
    assert re.search(rf"^Examples:\n  geartrain {' '.join(words)} ", help_of(*words, "--help"), re.MULTILINE)


def test_daily_options_are_shown_and_the_others_with_help_all() -> None:
    text, whole = help_of("serve", "--help"), help_of("serve", "--help-all")
    assert len(re.findall(r"^  -", text, re.MULTILINE)) <= 13
    assert "--max-connections-per-client" not in text
    assert "  --max-connections-per-client N  " in whole
    assert "Connections:\n  --host ADDRESS" in whole
    assert re.search(r"--help-all +Show all \d+ options and exit\.", text)


def test_words_that_an_option_takes_are_named_whole() -> None:
    assert "One of text, image, stream, batch, tensor, train, generate," in " ".join(help_of("init", "--help").split())
    assert "--restart never|on-crash" in help_of("serve", "--help")
    assert "[default: 5000; env: PORT]" in help_of("serve", "--help")


def test_input_that_is_called_so_is_no_option() -> None:
    assert "no such option" in CliRunner().invoke(app, ["run", "m", "--text", "x"]).output
