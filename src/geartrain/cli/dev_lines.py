"""The log of `geartrain dev` for a person: prints with their prediction, tracebacks with code, one line per request."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from geartrain.cli import logs, tracebacks
from geartrain.cli.access_lines import printable
from geartrain.transport import access_lines
from geartrain.transport.access_lines import SlowWriter, fields_of
from geartrain.transport.access_options import AccessLogOptions
from geartrain.transport.records import RequestRecord

_PRINTED: Final = "geartrain.model"
_FAILED: Final = "geartrain.runs"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what is left of it after the colours are read
_STYLES: Final = {2: "green", 3: "cyan", 4: "yellow", 5: "bold red"}  # of statuses, by their first digit
_ID: Final = "magenta"
_SHOWN: Final = ("key", "grpc_status", "requests", "failures")  # fields of a request that are worth a place
_MIN_WIDTH: Final = 40


class DevFormatter(logs.ConsoleFormatter):
    """Records as a person reads them; those that are neither printed nor of a failed run look as usual."""

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
            return self._format_failure(_beginning(moment, fields), fields)
        return super().format(record)

    def _format_failure(self, beginning: Text, fields: Mapping[str, Any]) -> str:
        error = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(fields.get("error", "")))
        line = self._paper.print(beginning, Text.assemble(("failed: ", "bold red"), error))
        traceback = fields.get("exception")
        if not traceback:
            return line
        clean = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(traceback))
        return f"{line}\n{self._paper.print(tracebacks.pretty(clean, width=self._paper.width))}"


def requests_written(options: AccessLogOptions) -> AccessLogOptions:
    """Return the options with one short line per request, on stderr."""
    return msgspec.structs.replace(options, new_writer=new_writer)


def new_writer() -> SlowWriter:
    """Return what writes the lines of requests."""
    paper = _Paper()

    def write(request: RequestRecord) -> None:
        logs.write_lines(f"{paper.print(line_of(fields_of(access_lines.line_of(request)), request.ended))}\n")

    return SlowWriter(write)


def line_of(fields: Mapping[str, Any], moment: float) -> Text:
    """Return the line of a request that ended at a moment, in seconds since the epoch."""
    status = int(fields["status"])
    line = Text.assemble(
        (time.strftime("%H:%M:%S", time.localtime(moment)), "dim"),
        " ",
        (f"{fields['method']} {printable(str(fields['path']))}", "bold"),
        " ",
        (str(status), _STYLES.get(status // 100, "")),
        f" {fields['outcome']}",
        f" in {_duration(float(fields['total_ms']))}",
    )
    if "prediction_id" in fields:
        line.append(f" {printable(str(fields['prediction_id']))}", _ID)
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
        """Return what is shown, without the end of the last line."""
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


def _plain(printed: str) -> Text:
    """Return what a model has printed, with its colours and without other commands to a terminal."""
    text = Text.from_ansi(printed)
    text.plain = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.plain)
    return text


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"  # noqa: PLR2004 - a second
