"""The log of `geartrain dev` for a person."""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from geartrain.cli import dev, dev_lines
from geartrain.cli.dev_lines import DevFormatter, line_of
from geartrain.service.scheduling.failures import ENDED

ID = "pred_18e9f1fadb24d1f0"


def record(name: str, message: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "levelno": logging.INFO, "levelname": "INFO", "msg": message, **fields})


def shown(text: str, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(dev_lines.pretty(text, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def raised(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception:  # noqa: BLE001 - whatever it is
        return traceback.format_exc()
    raise AssertionError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of an author's."""
    (tmp_path / "authors_model.py").write_text(
        "import json\n\n\ndef think():\n    wish = '{'\n    return json.loads(wish)\n\n\n"
        "def talk():\n    try:\n        think()\n    except ValueError as error:\n"
        "        raise KeyError('no answer') from error\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import authors_model  # type: ignore[import-not-found]

    yield authors_model
    del sys.modules["authors_model"]


def test_print_has_its_prediction() -> None:
    line = DevFormatter().format(record("geartrain.model", "%s", args=("hello",), prediction_id=ID))
    assert line.endswith(f"{ID} hello")


def test_commands_to_the_terminal_are_not_passed_on() -> None:
    text = "a\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07 b\x9bc\x00"
    line = DevFormatter().format(record("geartrain.model", "%s", args=(text,), prediction_id=ID))
    assert not {"\x1b", "\x9b", "\x07", "\x00"} & set(line)
    failed = DevFormatter().format(record("geartrain.runs", "a run failed", prediction_id=ID, error=text))
    assert not {"\x1b", "\x9b", "\x07", "\x00"} & set(failed)


def test_record_of_the_server_has_reason_and_hint_below() -> None:
    reason = "killed\x1b[2J\nby SIGKILL"
    fields = {"model": "m", "version": "1", "reason": reason, "hint": "start it again", "delay": 0.5}
    text = DevFormatter().format(record("geartrain.service", "the worker is gone", levelname="ERROR", **fields))
    assert [line[9:] for line in text.splitlines()] == [
        "error: m: the worker is gone delay=0.5",
        "killed\N{REPLACEMENT CHARACTER}[2J",
        "by SIGKILL",
        "start it again",
    ]
    advice = record("geartrain.transport", "%s", args=("no input",), prediction_id=ID, request_id="ab", trace_id="cd")
    assert DevFormatter().format(advice)[9:] == f"{ID} no input"


def test_records_of_libraries_and_of_bugs_look_as_usual() -> None:
    assert "[info" in DevFormatter().format(record("asyncio", "slow callback"))
    try:
        raise ValueError("a bug")
    except ValueError:
        bug = record("geartrain.store", "it has failed", exc_info=sys.exc_info())
    assert "ValueError: a bug" in DevFormatter().format(bug)


def test_failed_run_shows_the_authors_code(module: Any) -> None:
    fields = {"prediction_id": ID, "error": "KeyError: 'no answer'", "exception": raised(module.talk)}
    text = DevFormatter().format(record("geartrain.runs", "a run failed", **fields))
    assert text.splitlines()[0].endswith(f"{ID} failed: KeyError: 'no answer'")
    assert "raise KeyError('no answer') from error" in text
    assert "The above exception was the direct cause of the following exception" in text


def test_authors_frames_have_code_and_those_of_libraries_a_place(module: Any) -> None:
    text = shown(raised(module.think))
    assert "return json.loads(wish)" in text
    assert "wish = '{'" in text, "the lines around it"
    assert "in raw_decode" in text
    assert "raise JSONDecodeError" not in text, "code of the standard library"


def test_exceptions_stand_in_their_order(module: Any) -> None:
    text = shown(raised(module.talk))
    assert text.index("JSONDecodeError:") < text.index("direct cause") < text.index("KeyError:")


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: without frames\n",
        "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: two (2 sub-exceptions)\n",
        'Traceback (most recent call last):\n  File "run.py", line 3, in run\n    x\nnot the form: of [an error\n',
        "",
    ],
)
def test_other_forms_are_shown_as_they_are(text: str) -> None:
    assert shown(text).strip() == text.strip()


FIELDS = {"method": "POST", "path": "/predictions", "status": 200, "outcome": "succeeded", "total_ms": 12.345}


def test_request_is_one_line() -> None:
    assert line_of({**FIELDS, "prediction_id": ID}, 0.0).plain[9:] == (
        f"POST /predictions 200 succeeded in 12.3 ms {ID}"
    )
    slow = {**FIELDS, "total_ms": 2345.6, "key": "ada", "path": "/a\x1b[2J"}
    assert line_of(slow, 0.0).plain[9:] == r"POST '/a\x1b[2J' 200 succeeded in 2.35 s key=ada"


@pytest.mark.parametrize(
    ("terminal", "display", "url", "opens"),
    [
        (True, ":0", "http://127.0.0.1:5000", True),
        (True, "", "http://127.0.0.1:5000", False),
        (False, ":0", "http://127.0.0.1:5000", False),
        (True, ":0", "unix:/run/geartrain", False),
    ],
)
def test_page_is_opened_for_a_person_with_a_display(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, display: str, url: str, opens: bool
) -> None:
    opened: list[tuple[Any, ...]] = []

    class Thread:
        def __init__(self, *, args: tuple[Any, ...], **_: Any) -> None:
            opened.append(args)

        def start(self) -> None:
            pass

    monkeypatch.setattr("geartrain.cli.dev.sys.platform", "linux")
    monkeypatch.setattr("geartrain.cli.dev.threading.Thread", Thread)
    monkeypatch.setattr("geartrain.cli.dev.logs.is_terminal", lambda _: terminal)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    dev.open_page(url)
    assert opened == ([(url,)] if opens else [])


def styles_of(fields: dict[str, Any]) -> set[str]:
    return {str(span.style) for span in line_of(fields, 0.0).spans}


def test_refusal_has_its_reason_on_one_line() -> None:
    line = line_of({**FIELDS, "status": 422, "outcome": "refused", "error": "times: 20\n is\x1b[2J too much"}, 0.0)
    assert line.plain.endswith("422 refused in 12.3 ms: times: 20 is\N{REPLACEMENT CHARACTER}[2J too much")


def test_failed_run_is_red_whatever_its_status() -> None:
    assert "green" in styles_of(FIELDS)
    styles = styles_of({**FIELDS, "outcome": "failed"})
    assert "bold red" in styles
    assert "green" not in styles


@pytest.mark.parametrize(("path", "prediction_id"), [("/predictions/job1", "job1"), ("/predictions/a%20b", "a b")])
def test_id_that_stands_in_the_path_is_not_repeated(path: str, prediction_id: str) -> None:
    line = line_of({**FIELDS, "method": "PUT", "path": path, "prediction_id": prediction_id}, 0.0)
    assert line.plain[9:] == f"PUT {path} 200 succeeded in 12.3 ms"


def test_accepted_prediction_has_a_line_at_its_end() -> None:
    fields = {"prediction_id": ID, "outcome": "succeeded", "total_ms": 122_000.0}
    assert DevFormatter().format(record("geartrain.runs", ENDED, **fields)).endswith(f"{ID} succeeded after 122.00 s")
