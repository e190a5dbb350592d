"""The options that help an author, and a command that is silent while a debugger has the terminal."""

from __future__ import annotations

import importlib.util
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from geartrain.cli import debugging, logs
from geartrain.cli.background_logs import in_background, settle
from geartrain.cli.startup import RunObserver, ServeObserver
from geartrain.server import Progress
from tests.support.terminals import show_terminal


@pytest.mark.parametrize(
    ("aids", "package", "option"),
    [
        (debugging.Aids(debugpy=5678), "debugpy", "--debugpy"),
        (debugging.Aids(profile=Path("profiles")), "pyinstrument", "--profile"),
    ],
)
def test_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], aids: debugging.Aids, package: str, option: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else "there")
    with pytest.raises(typer.Exit):
        aids.check()
    assert capsys.readouterr().err == (f'error: {option} needs the package {package}: pip install "geartrain[debug]"\n')


def test_waiting_for_an_editor_needs_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        debugging.Aids(debugpy_wait=True).check()
    assert capsys.readouterr().err == "error: --debugpy-wait needs --debugpy PORT\n"


def test_port_that_is_free_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        port = trial.getsockname()[1]
    debugging.Aids(debugpy=port).check()


def test_log_waits_while_a_debugger_has_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = show_terminal(monkeypatch)
    logs.configure(form="json")
    with in_background():
        logging.getLogger("geartrain.a").info("before")
        settle()
        logs.hold()
        logging.getLogger("geartrain.a").info("meanwhile")
        settle()
        logs.write_lines("a line\n")
        assert "before" in stderr.getvalue()
        assert "meanwhile" not in stderr.getvalue()
        logs.release()
    assert stderr.getvalue().index("meanwhile") < stderr.getvalue().index("a line")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = show_terminal(monkeypatch)
    logs.hold()
    for number in range(20_000):
        logs.write_lines(f"{number}\n")
    logs.release()
    lines = stderr.getvalue().split()
    assert len(lines) == 16_384
    assert lines[-1] == "19999"


def test_run_shows_what_was_printed_behind_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = show_terminal(monkeypatch)
    observer = RunObserver("model")
    observer.begin()
    observer.hold()
    observer.add_text("meanwhile\n")
    assert "meanwhile" not in stderr.getvalue()
    observer.release()
    observer.add_text("later\n")
    observer.end()
    assert stderr.getvalue().split() == ["meanwhile", "later"]


def test_server_shows_its_steps_behind_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class View:
        withdrawn = 0

        def __call__(self, progress: Progress) -> None:
            shown.append(progress.stage)

        def withdraw(self) -> None:
            View.withdrawn += 1

    source: Any = None
    urls: list[str] = []
    observer = ServeObserver(source, for_person=True, on_listening=urls.append)
    monkeypatch.setattr(observer, "_new_view", View)
    observer(Progress(stage="listening", url="http://127.0.0.1:1"))
    observer.hold()
    observer(Progress(stage="ready", slots=1))
    assert (shown, View.withdrawn, urls) == (["listening"], 1, ["http://127.0.0.1:1"])
    observer.release()
    observer.settle()
    assert shown == ["listening", "ready"]
