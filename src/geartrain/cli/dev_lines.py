"""Log for a person: prints with their prediction, tracebacks with code, one line per request."""

from __future__ import annotations

import io
import linecache
import logging
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rich.console import Console, RenderableType
from rich.text import Text
from rich.traceback import Frame, Stack, Trace, Traceback

from geartrain.cli import background_logs, logs
from geartrain.cli.background_logs import Lines
from geartrain.cli.logs import printable
from geartrain.service.scheduling.failures import ENDED
from geartrain.transport.access_log import RequestWriter, fields_of
from geartrain.transport.access_log import line_of as access_line_of
from geartrain.transport.records import RequestRecord

_HEADING: Final = "Traceback (most recent call last):\n"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)')
_LAST: Final = re.compile(r"(?P<type>[\w.]+)(?:: (?P<text>.*))?", re.DOTALL)
_BETWEEN: Final = re.compile(
    r"\n(?P<cause>The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
_EXTRA_LINES: Final = 2  # before and after the author's line
_MOST: Final = 20  # frames of an exception


def pretty(text: str, *, width: int) -> RenderableType:
    """Return a traceback, as Python prints it, to be shown by rich; as it is if it has another form."""
    stacks = _read(text)
    if not stacks:
        return Text(text)
    linecache.checkcache()  # the author may have changed the file since the last one
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return Traceback(
        Trace(stacks),
        width=width,
        code_width=None,
        extra_lines=_EXTRA_LINES,
        suppress=[*libraries, sys.prefix],
        max_frames=_MOST,
        word_wrap=True,
    )


def _read(text: str) -> list[Stack]:
    """Return the exceptions, the last one first; none if the text has another form."""
    parts = _BETWEEN.split(text.rstrip("\n"))
    stacks: list[Stack] = []
    for part, follows in zip(parts[::2], [*parts[1::2], ""], strict=True):
        stack = _read_one(part)
        if stack is None:
            return []
        stack.is_cause = "direct cause" in follows
        stacks.insert(0, stack)
    return stacks


def _read_one(text: str) -> Stack | None:
    if not text.startswith(_HEADING):
        return None
    lines = text.removeprefix(_HEADING).split("\n")
    frames = []
    while lines and lines[0].startswith("  "):
        match = _FRAME.fullmatch(lines.pop(0))
        if match is not None:
            frames.append(Frame(match["file"], int(match["line"]), match["name"]))
    last = _LAST.fullmatch("\n".join(lines))
    if last is None or not frames:
        return None
    return Stack(last["type"], last["text"] or "", frames=frames)


_OWN: Final = "geartrain."
_PRINTED: Final = "geartrain.model"
_FAILED: Final = "geartrain.runs"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # leftovers when the colours have been read
_STYLES: Final = {2: "green", 3: "cyan", 4: "yellow", 5: "bold red"}  # of statuses, by their first digit
_OUTCOME_STYLES: Final = {"failed": "bold red", "canceled": "yellow"}  # whatever the status
_ID: Final = "magenta"
_SHOWN: Final = ("key", "grpc_status", "requests", "failures")  # fields of a request that are worth a place
_LEVEL_STYLES: Final = {"ERROR": "bold red", "WARNING": "yellow"}
_REASONS: Final = ("reason", "error", "hint")  # fields that have lines of their own
# Fields that other lines have, or that are of use to a machine alone.
_UNSHOWN: Final = frozenset((*_REASONS, "model", "prediction_id", "version", "request_id", "trace_id", "protocol"))
_MIN_WIDTH: Final = 40


class DevFormatter(logs.ConsoleFormatter):
    """Log records for a person. Those of other libraries, and those with a traceback of geartrain, look as usual."""

    def __init__(self) -> None:
        super().__init__()
        self._paper = _Paper()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line or more, without the end of the last."""
        fields = record.__dict__
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        if record.name == _PRINTED and fields.get("prediction_id"):
            return self._paper.print(_beginning(moment, fields), _plain(record.getMessage()))
        if record.name == _FAILED:
            if record.msg == ENDED:
                return self._paper.print(_end_of(_beginning(moment, fields), fields))
            return self._format_failure(_beginning(moment, fields), fields)
        if record.name.startswith(_OWN) and not record.exc_info:
            return self._paper.print(_lines_of(moment, record))
        return super().format(record)

    def _format_failure(self, beginning: Text, fields: Mapping[str, Any]) -> str:
        error = _harmless(str(fields.get("error", "")))
        line = self._paper.print(beginning, Text.assemble(("failed: ", "bold red"), error))
        traceback = fields.get("exception")
        if not traceback:
            return line
        clean = _harmless(str(traceback))
        return f"{line}\n{self._paper.print(pretty(clean, width=self._paper.width))}"


class PersonWriter(RequestWriter[Sequence[RequestRecord]]):
    """Writes one short line per request, all of it in the thread."""

    def __init__(self) -> None:
        self._paper = _Paper()

    def prepare(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Return the requests themselves."""
        return requests

    def write(self, prepared: Sequence[Sequence[RequestRecord]]) -> None:
        """Make the lines and write them."""
        background_logs.write([self._line(request) for requests in prepared for request in requests])

    def _line(self, request: RequestRecord) -> Lines:
        line = line_of(fields_of(access_line_of(request)), request.ended)
        return Lines((request.ended,), f"{self._paper.print(line)}\n")


def line_of(fields: Mapping[str, Any], moment: float) -> Text:
    """Return the line of a request that ended at a moment, in seconds since the epoch."""
    status, outcome, path = int(fields["status"]), str(fields["outcome"]), str(fields["path"])
    style = _OUTCOME_STYLES.get(outcome, _STYLES.get(status // 100, ""))
    line = Text.assemble(
        (time.strftime("%H:%M:%S", time.localtime(moment)), "dim"),
        " ",
        (f"{fields['method']} {printable(path)}", "bold"),
        " ",
        (f"{status} {outcome}", style),
        f" in {_duration(float(fields['total_ms']))}",
    )
    if "prediction_id" in fields and quote(str(fields["prediction_id"]), safe="") not in path.split("/"):
        line.append(f" {printable(str(fields['prediction_id']))}", _ID)
    if "error" in fields:
        line.append(": " + _harmless(" ".join(str(fields["error"]).split())), "yellow")
    for name in _SHOWN:
        if name in fields:
            line.append(f" {name}={printable(str(fields[name]))}", "dim")
    return line


class _Paper:
    """Makes text of what rich shows, as wide as the terminal is now."""

    def __init__(self) -> None:
        self._has_colors = logs.is_terminal(sys.stderr) and not os.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        """Columns."""
        return max(_MIN_WIDTH, shutil.get_terminal_size().columns)

    def print(self, *parts: RenderableType) -> str:
        """Return the displayed text, without the end of the last line."""
        console = Console(
            file=io.StringIO(),
            force_terminal=self._has_colors,
            color_system="256" if self._has_colors else None,
            width=self.width,
            highlight=False,
        )
        console.print(*parts, soft_wrap=all(isinstance(part, Text) for part in parts))
        file = console.file
        return file.getvalue().rstrip("\n") if isinstance(file, io.StringIO) else ""


def _beginning(moment: str, fields: Mapping[str, Any]) -> Text:
    return Text.assemble((moment, "dim"), " ", (printable(str(fields.get("prediction_id", ""))), _ID))


def _lines_of(moment: str, record: logging.LogRecord) -> Text:
    """Return a record of the server: its message, the reason and the hint below, and other fields at the end."""
    fields = record.__dict__
    lines = Text.assemble((moment, "dim"), " ")
    if "prediction_id" in fields:
        lines.append(f"{printable(str(fields['prediction_id']))} ", _ID)
    if record.levelname in _LEVEL_STYLES:
        lines.append(f"{record.levelname.lower()}: ", _LEVEL_STYLES[record.levelname])
    if fields.get("model"):
        lines.append(f"{printable(str(fields['model']))}: ", "bold")
    lines.append(_harmless(record.getMessage()))
    for name, value in logs.extra_of(record).items():
        if name not in _UNSHOWN:
            lines.append(f" {name}={printable(str(value))}", "dim")
    margin = "\n" + " " * (len(moment) + 1)
    for name in _REASONS:
        if fields.get(name):
            lines.append(margin + _harmless(str(fields[name])).rstrip().replace("\n", margin))
    return lines


def _end_of(beginning: Text, fields: Mapping[str, Any]) -> Text:
    """Return the line of the end of a prediction whose client did not wait for it."""
    outcome = str(fields["outcome"])
    words = (outcome, _OUTCOME_STYLES.get(outcome, "green"))
    return Text.assemble(beginning, " ", words, f" after {_duration(float(fields['total_ms']))}")


def _plain(printed: str) -> Text:
    """Return a model's printed text, with its colours and without other commands to a terminal."""
    text = Text.from_ansi(printed)
    text.plain = _harmless(text.plain)
    return text


def _harmless(text: str) -> str:
    """Replace what is a command to a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"  # noqa: PLR2004 - a second
