"""Log records on stderr, for machines and for people."""

from __future__ import annotations

import datetime
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from geartrain.cli import logs

Capture = pytest.CaptureFixture[str]
LOGGER = logging.getLogger("geartrain.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, package = logging.getLogger(), logging.getLogger("geartrain")
    handlers, levels = root.handlers[:], (root.level, package.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    package.setLevel(levels[1])
    logging.captureWarnings(capture=False)


def configure(*arguments: str | None, **environ: str) -> None:
    logs.configure(*arguments, environ=environ)


def lines(capsys: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_line_has_time_level_logger_message_and_fields(capsys: Capture) -> None:
    configure()
    before = datetime.datetime.now(datetime.UTC)
    LOGGER.info("answered %s", "p1", extra={"prediction_id": "p1", "seconds": 0.5, "when": datetime.date(2026, 1, 2)})
    (line,) = lines(capsys)
    assert before <= datetime.datetime.fromisoformat(line.pop("timestamp")) <= datetime.datetime.now(datetime.UTC)
    assert line == {
        "level": "info",
        "logger": "geartrain.test",
        "message": "answered p1",
        "prediction_id": "p1",
        "seconds": 0.5,
        "when": "2026-01-02",
    }


def test_json_line_carries_the_traceback(capsys: Capture) -> None:
    configure()
    try:
        raise ValueError("boom")
    except ValueError:
        LOGGER.exception("failed", stack_info=True)
    (line,) = lines(capsys)
    assert line["exception"].endswith("ValueError: boom")
    assert line["stack"].startswith("Stack (most recent call last)")


class Unprintable:
    def __str__(self) -> str:
        return "a \udcff b"


@pytest.mark.parametrize("value", ["a \udcff b", Unprintable(), {1: {2: "\udcff"}}])
def test_json_line_survives_any_field(capsys: Capture, value: object) -> None:
    configure()
    LOGGER.info("odd", extra={"value": value})
    (line,) = lines(capsys)
    assert "\\udcff" in line["value"]


def test_field_does_not_hide_the_message(capsys: Capture) -> None:
    configure()
    LOGGER.info("said", extra={"level": "x", "timestamp": "y"})
    (line,) = lines(capsys)
    assert (line["level"], line["message"]) == ("info", "said")


@pytest.mark.parametrize(
    ("arguments", "environ", "shown"),
    [
        ((), {}, ["info", "warning", "error"]),
        ((), {"COG_LOG_LEVEL": "DEBUG"}, ["debug", "info", "warning", "error"]),
        ((), {"COG_LOG_LEVEL": "warn"}, ["warning", "error"]),
        ((), {"COG_LOG_LEVEL": "off"}, []),
        (("error",), {"COG_LOG_LEVEL": "debug"}, ["error"]),
        ((), {"RUST_LOG": "warn"}, ["warning", "error"]),
        ((), {"RUST_LOG": "warn", "COG_LOG_LEVEL": "debug"}, ["warning", "error"]),
        ((), {"RUST_LOG": "", "COG_LOG_LEVEL": "error"}, ["error"]),
        (("error",), {"RUST_LOG": "debug"}, ["error"]),
        ((), {"RUST_LOG": "warn, coglet=DEBUG"}, ["debug", "info", "warning", "error"]),
        ((), {"RUST_LOG": "coglet=debug,geartrain=error,warn"}, ["error"]),
        ((), {"RUST_LOG": "coglet"}, ["debug", "info", "warning", "error"]),
        ((), {"RUST_LOG": "hyper=debug", "COG_LOG_LEVEL": "error"}, ["info", "warning", "error"]),
    ],
)
def test_level_comes_from_the_option_then_the_environment(
    capsys: Capture, arguments: tuple[str, ...], environ: dict[str, str], shown: list[str]
) -> None:
    configure(*arguments, **environ)
    for level in ("debug", "info", "warning", "error"):
        getattr(LOGGER, level)("x")
    assert [line["level"] for line in lines(capsys)] == shown


def test_other_libraries_are_quiet_below_warnings(capsys: Capture) -> None:
    configure("debug")
    logging.getLogger("someone").info("chatter")
    logging.getLogger("someone").warning("trouble")
    assert [line["message"] for line in lines(capsys)] == ["trouble"]


def test_python_warnings_are_records(capsys: Capture) -> None:
    configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)  # pytest has put its own recorder in between
        logs.configure(environ={})
        warnings.warn("old", stacklevel=1)
    assert [line["logger"] for line in lines(capsys)] == ["py.warnings"]


def test_unknown_level_and_format_are_warned_of(capsys: Capture) -> None:
    configure("loud", "xml")
    assert [line["message"] for line in lines(capsys)] == [
        "unknown log level 'loud', using info; there are trace, debug, info, warn, warning, error, critical, off",
        "unknown log format 'xml'; there are json and console",
    ]


def test_console_line_is_for_people(capsys: Capture) -> None:
    assert logs.configure(None, None, environ={"LOG_FORMAT": "console"}) == "console"
    LOGGER.warning("slow %s", "start", extra={"seconds": 2})
    text = capsys.readouterr().err
    assert text.endswith("[warning  ] slow start seconds=2\n")
    assert "\x1b" not in text


def test_console_line_is_followed_by_the_traceback(capsys: Capture) -> None:
    configure(None, "console")
    try:
        raise ValueError("boom")
    except ValueError:
        LOGGER.exception("failed")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith("[error    ] failed")
    assert last == "ValueError: boom"


@pytest.mark.parametrize(
    ("arguments", "environ", "form"),
    [
        ((), {}, "console"),
        ((), {"LOG_FORMAT": "json"}, "json"),
        ((None, "json"), {"LOG_FORMAT": "console"}, "json"),
        ((), {"LOG_FORMAT": "xml"}, "console"),
    ],
)
def test_terminal_gets_the_console_form(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str | None, ...], environ: dict[str, str], form: str
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert logs.configure(*arguments, environ=environ) == form


@pytest.mark.parametrize(("environ", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_terminal_gets_colors_unless_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], *, colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    configure()
    LOGGER.info("hello")
    assert ("\x1b[" in stream.getvalue()) is colored


def test_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not logs.is_terminal(stream)
    assert not logs.is_terminal(None)


def test_json_lines_need_no_structlog() -> None:
    script = (
        "import logging, sys; from geartrain.cli import logs; logs.configure(form='json');"
        "logging.getLogger('geartrain').error('x'); print('structlog' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
