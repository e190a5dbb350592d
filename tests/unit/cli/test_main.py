"""A command line that is read without Typer means what Typer reads; whatever is not plain is left to Typer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from geartrain.cli import main, serve_command
from geartrain.cli.failure import UnclearError
from geartrain.cli.serve import BareSwitchCommand, with_options
from geartrain.cli.typer_app import CommandApp
from geartrain.server.option_table import DEFAULTS


def called(model: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    return {**given, "model": model}


APP: Final = CommandApp(add_completion=False)
APP.command(cls=BareSwitchCommand)(with_options(called))
COMMAND: Final = typer.main.get_command(APP)
NAMES: Final = {name: each for each in COMMAND.params for name in each.opts if name.startswith("--")}
NOT_QUICK: Final = {"--await-explicit-shutdown", "--version"}  # each has a callback
# A value for each option: by its name, else by what stands for its value in the help.
VALUES: Final = {
    "--api": "kserve",
    "--access-log": "sampled:10",
    "--devices": "cuda:0,cuda:1",
    "--host": "0.0.0.0",  # noqa: S104 - nobody listens
    "--latency-buckets": "1ms,10ms,1s",
    "--load": "one,two",
    "--log-format": "json",
    "--log-level": "debug",
    "--mirror-prints": "on",
    "--restart": "on-crash",
    "--size-buckets": "1kB,1MB",
    "--wakeup": "blocking",
    "--x-mode": "train",
}
BY_METAVAR: Final = {
    "ADDRESS": "::1",
    "FILE": "somewhere/file.pem",
    "FOLDER": "/tmp",  # noqa: S108 - it is there, and is not touched
    "HOST:PORT": "here:5000",
    "N": "3",
    "NAME": "some-name",
    "ORIGIN": "https://app.example.com",
    "PORT": "5001",
    "SECONDS": "2.5",
    "SIZE": "50MB",
    "TIME": "90s",
    "URL": "https://example.com",
    "URL|FILE": "keys.json",
}


def value_of(name: str) -> list[str]:
    """The words after an option."""
    option: Any = NAMES[name]
    if option.is_flag:
        return []
    return [VALUES.get(name) or BY_METAVAR.get(option.metavar) or "3"]


def read_by_typer(words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = COMMAND.main(list(words), standalone_mode=False)
    return values


def read_quickly(words: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What the command is called with, its own defaults included."""
    model, given = serve_command.read(words, environ)
    return {**DEFAULTS, **given, "model": model}


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(name, raising=False)


def assert_same(words: list[str], environ: Mapping[str, str] | None = None) -> None:
    quickly, by_typer = read_quickly(words, environ or {}), read_by_typer(words)
    assert quickly == by_typer
    assert {name: type(value) for name, value in quickly.items()} == {k: type(v) for k, v in by_typer.items()}


@pytest.mark.parametrize("name", sorted(NAMES.keys() - NOT_QUICK))
def test_each_option_means_what_typer_reads(name: str) -> None:
    words = [name, *value_of(name)]
    assert_same(words)
    assert_same([*words, "some/model"])
    if len(words) > 1:
        assert_same(["some/model", "=".join(words)])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model"],
        ["examples/hello", "--host", "0.0.0.0", "--port", "0", "--grpc-port", "off"],  # noqa: S104 - nobody listens
        ["--cors-origin", "https://one", "--cors-origin=https://two"],
        ["--port", "007"],
        ["hf://org/name", "--reload", "--health-body", "--keep=0"],
        ["--devices", "cpu", "a=b"],
    ],
)
def test_a_plain_line_means_what_typer_reads(words: list[str]) -> None:
    assert_same(words)


@pytest.mark.parametrize("environ", [{"PORT": "7000", "HOST": "::1"}, {"PORT": "", "HOST": ""}, {"PORT": "0"}])
@pytest.mark.parametrize("words", [[], ["--port", "1"], ["--host", "localhost"]])
def test_variables_count_as_for_typer(
    words: list[str], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert_same(words, environ)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["-v"],
        ["--no-such-option"],
        ["--port"],
        ["--port", ""],
        ["--port="],
        ["--port", "-1"],
        ["--port", "65536"],
        ["--port", "1_000"],
        ["--port", "٣"],
        ["--port", "9" * 40],
        ["--port", "1", "--port", "2"],
        ["--replicas", "0"],
        ["--keep", "soon"],
        ["--restart", "always"],
        ["--reload=true"],
        ["--no-reload"],
        ["--await-explicit-shutdown"],
        ["--await-explicit-shutdown", "false"],
        ["--threads", "x"],
        ["one", "two"],
        ["--", "model"],
        ["-"],
        [""],
    ],
)
def test_what_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    with pytest.raises(UnclearError):
        serve_command.read(words, {})


@pytest.mark.parametrize("port", ["no", "-1", "70000"])
def test_a_variable_that_does_not_fit_is_left_to_typer(port: str) -> None:
    with pytest.raises(UnclearError):
        serve_command.read([], {"PORT": port})


def test_a_file_that_cannot_be_read_is_left_to_typer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key.pem"
    file.touch()
    assert_same(["--tls-key", str(file)])
    monkeypatch.setattr("os.access", lambda *_: False)  # root reads everything
    with pytest.raises(UnclearError):
        serve_command.read(["--tls-key", str(file)], {})


@pytest.mark.parametrize("words", [[], ["run", "model"], ["--version"], ["servex"]])
def test_other_commands_are_left_to_typer(words: list[str]) -> None:
    with pytest.raises(UnclearError):
        main.run_server(words, {})


def test_completion_is_left_to_typer() -> None:
    with pytest.raises(UnclearError):
        main.run_server(["serve"], {"_GEARTRAIN_COMPLETE": "complete_bash"})
