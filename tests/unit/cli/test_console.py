"""What a person sees while a model starts."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from rich.console import Console

from geartrain.cli.activity import Activity
from geartrain.cli.startup import RunObserver, ServeObserver
from geartrain.project.source import ModelSource
from geartrain.server import Progress
from tests.support.terminals import Terminal, show_terminal


def source(name: str = "pets") -> ModelSource:
    return ModelSource(name=name, root=Path("/models") / name, runner="run.py:Runner")


def step(observer: ServeObserver | RunObserver, stage: str, *, url: str = "", slots: int = 0, text: str = "") -> None:
    observer(Progress(stage=stage, model="pets", url=url, slots=slots, text=text))


def test_start_is_shown_from_setup_to_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "listening", url="http://0.0.0.0:5000")
    step(observer, "setup-output", text="loading wei")
    step(observer, "setup-output", text="ghts\nhalf")
    step(observer, "ready", slots=2)
    step(observer, "settled")
    step(observer, "stopping")
    lines = [line.rstrip() for line in terminal.getvalue().splitlines() if line.strip()]
    assert lines[0] == "geartrain 0.1.0  pets  /models/pets/run.py:Runner"
    assert [line for line in lines[1:] if "Setting up" not in line and "after" not in line] == [
        "loading weights",
        "half",
        "  Predict POST http://localhost:5000/predictions",
        "  Page    http://localhost:5000/",
        "  Docs    http://localhost:5000/docs",
        "  Health  http://localhost:5000/health-check",
        "Ctrl-C stops.",
        "Stopping.",
    ]
    assert any(line.startswith("Ready after ") and line.endswith(" s, 2 slots") for line in lines)
    assert not observer.has_failed


def test_a_model_that_is_ready_before_the_server_listens_is_shown_with_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "ready", slots=1)
    assert "Ready" not in terminal.getvalue()
    step(observer, "listening", url="http://127.0.0.1:5000")
    step(observer, "settled")
    assert "  Predict POST http://127.0.0.1:5000/predictions\n" in terminal.getvalue()
    assert terminal.getvalue().count("Ready after") == 1


def test_failed_setup_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "listening", url="http://127.0.0.1:5000")
    step(observer, "setup-failed", text="setup() failed: ValueError: [no] weights")
    shown = terminal.getvalue()
    assert "Setup failed: ValueError: [no] weights\n" in shown
    assert "http://127.0.0.1:5000/health-check keeps the details. Ctrl-C stops.\n" in shown
    assert observer.has_failed


def test_other_ports_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "listening", url="http://127.0.0.1:80")
    step(observer, "listening-admin", url="http://0.0.0.0:81")
    step(observer, "ready", slots=1)
    step(observer, "listening-grpc", url="127.0.0.1:82")
    assert "Ctrl-C" not in terminal.getvalue()
    step(observer, "settled")
    assert "  Admin   http://localhost:81\n" in terminal.getvalue()
    assert "  gRPC    127.0.0.1:82\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("Ctrl-C stops.\n")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://0.0.0.0:80", "http://localhost:80/docs"),
        ("http://[::]:80", "http://localhost:80/docs"),
        ("https://0.0.0.0:80", "https://localhost:80/docs"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80/docs"),
        ("http://[::1]:80", "http://[::1]:80/docs"),
    ],
)
def test_address_can_be_opened(monkeypatch: pytest.MonkeyPatch, url: str, shown: str) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "listening", url=url)
    step(observer, "ready", slots=1)
    step(observer, "settled")
    assert f"  Docs    {shown}\n" in terminal.getvalue()


def test_person_is_shown_and_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "geartrain.server")
    show_terminal(monkeypatch)
    observer = ServeObserver(source(), for_person=True)
    step(observer, "listening", url="http://127.0.0.1:5000")
    step(observer, "setup-failed", text="boom")
    assert observer.has_failed
    assert caplog.messages == []


def test_machine_reads_the_log(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "geartrain.server")
    observer = ServeObserver(source(), for_person=False)
    step(observer, "listening", url="http://0.0.0.0:5000")
    step(observer, "setup-output", text="x\n")
    step(observer, "ready", slots=1)
    step(observer, "settled")
    assert not observer.has_failed
    step(observer, "setup-failed", text="boom")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "listening"),
        ("INFO", "setup-output"),
        ("INFO", "ready"),
        ("ERROR", "setup-failed"),
    ]
    assert vars(caplog.records[0])["url"] == "http://0.0.0.0:5000"
    assert vars(caplog.records[3])["text"] == "boom"
    assert capsys.readouterr() == ("", "")
    assert observer.has_failed


def test_run_shows_setup_as_it_is_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    observer = RunObserver("pets")
    observer.begin()
    step(observer, "setup-output", text="load")
    step(observer, "setup-output", text="ed\n")
    step(observer, "ready", slots=1)
    observer.step("Running the model")
    observer.add_bytes("image", 1, 2)
    observer.add_text("running\n")
    observer.leave_stdout()
    observer.end()
    assert capsys.readouterr() == ("", "loaded\nrunning\n")


def terminal_activity(step: str, *, began: float | None = None) -> tuple[Activity, Terminal]:
    stream = Terminal()
    return Activity(Console(file=stream, force_terminal=True, width=60), step, began=began), stream


def test_run_shows_setup_above_a_spinner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")  # with cursor movements: a spinner
    observer = RunObserver("[pets]")
    observer.begin()
    step(observer, "setup-output", text="loaded")
    observer.end()
    observer.end()
    shown = terminal.getvalue()
    assert "Setting up [pets]" in shown
    assert shown.count("loaded\n") == 1


def test_time_is_that_since_the_beginning() -> None:
    activity, stream = terminal_activity("Waiting", began=time.monotonic() - 42)
    activity.end()
    assert "Waiting \x1b[36m42." in stream.getvalue()


def test_bars_below_each_other_keep_the_spinner_away_until_the_next_step() -> None:
    activity, stream = terminal_activity("Waiting")
    activity.add_text("\r outer\n\r inner\x1b[A")
    before = len(stream.getvalue())
    activity.add_text("\n")
    activity.add_text("\r inner 2\x1b[A\r outer 2\n")
    assert stream.getvalue()[before:] == "\n\r inner 2\x1b[A\r outer 2\n"
    activity.step("Running")
    activity.end()
    assert "Running" in stream.getvalue()[before:]


def test_line_that_is_open_keeps_the_spinner_away_until_it_is_closed() -> None:
    activity, stream = terminal_activity("Waiting")
    activity.add_text("whole\nlines\n")
    activity.add_text("\r 50%")
    before = len(stream.getvalue())
    activity.step("Running")
    activity.add_text("\r100%")
    assert stream.getvalue()[before:] == "\r100%"
    activity.add_text("\n")
    assert "Running" in stream.getvalue()[before:]
    activity.end()
    after = stream.getvalue()
    activity.add_text("later")
    activity.step("never shown")
    assert stream.getvalue() == f"{after}later"


def test_files_are_shown_until_they_are_there() -> None:
    activity, stream = terminal_activity("Fetching")
    activity.add_bytes("image", 0, 3_000_000)
    activity.add_bytes("image", 1_500_000, 3_000_000)
    activity.add_bytes("notes", 250_000, None)
    activity.add_text("open")
    activity.add_bytes("image", 2_000_000, 3_000_000)
    before = len(stream.getvalue())
    activity.add_text(" and shut\n")
    shown = stream.getvalue()[before:]
    for words in ("image", "2.0/3.0 MB", "notes", "0.2 MB"):
        assert words in shown
    activity.add_bytes("image", 3_000_000, 3_000_000)
    activity.add_bytes("image", 3_000_000, 3_000_000)
    activity.add_text("one ")
    before = len(stream.getvalue())
    activity.add_text("left\n")
    shown = stream.getvalue()[before:]
    assert "notes" in shown
    assert "image" not in shown
    activity.end()


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (ModelSource(name="pets", root=Path("/pets"), runner="run.py"), ["Predict"]),
        (ModelSource(name="pets", root=Path("/pets"), runner="run.py", train="train.py"), ["Predict", "Train"]),
        (ModelSource(name="pets", root=Path("/pets"), runner="train.py", mode="train"), ["Train"]),
    ],
)
def test_what_is_served_is_shown(monkeypatch: pytest.MonkeyPatch, model: ModelSource, shown: list[str]) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(model, for_person=True)
    step(observer, "listening", url="http://127.0.0.1:80")
    step(observer, "settled")
    step(observer, "ready", slots=1)
    assert [line.split()[0] for line in terminal.getvalue().splitlines() if " POST " in line] == shown
    assert ("  Train   POST http://127.0.0.1:80/trainings\n" in terminal.getvalue()) == ("Train" in shown)
