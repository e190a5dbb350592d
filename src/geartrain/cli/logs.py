"""Formats of log records on stderr: JSON lines for a machine, coloured lines for a person.

The library logs through `logging.getLogger("geartrain...")` with fields in `extra`. JSON lines need nothing but
msgspec, which the server has loaded anyway; structlog is loaded when a first line is to be shown to a person.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import msgspec

from geartrain.project import variables
from geartrain.project.variables import LOG_FORMATS, LOG_LEVELS

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

Format = Literal["json", "console"]

# Attributes of every record; all others came from `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_LOGGER = logging.getLogger("geartrain")


def configure(
    level: str | None = None,
    form: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    default: str = "info",
) -> Format:
    """Send log records to stderr and return their form.

    `level` comes before `RUST_LOG`, and that before `COG_LOG_LEVEL`; `form` comes before `LOG_FORMAT`. Other libraries'
    records show from warnings on. A level or form that does not exist gives a warning and the usual one: `info`, and
    JSON unless stderr is a terminal. `default` is the level where none is set.
    """
    wanted_level = (level or variables.log_level(environ) or default).strip().lower()
    wanted_form = (form or environ.get("LOG_FORMAT") or "").strip().lower()
    is_console = wanted_form == "console" or (wanted_form != "json" and is_terminal(sys.stderr))
    handler = _StderrHandler()
    handler.setFormatter(ConsoleFormatter() if is_console else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    _LOGGER.setLevel(LOG_LEVELS.get(wanted_level, logging.INFO))
    if wanted_level not in LOG_LEVELS:
        _LOGGER.warning("unknown log level %r, using info; there are %s", wanted_level, ", ".join(LOG_LEVELS))
    if wanted_form not in ("", *LOG_FORMATS):
        _LOGGER.warning("unknown log format %r; there are %s", wanted_form, " and ".join(LOG_FORMATS))
    return "console" if is_console else "json"


def write_as(form: logging.Formatter) -> None:
    """Write records in another form, from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(form)


def is_terminal(stream: TextIO | None) -> bool:
    """True if a person is looking at `stream`."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


_MOST_KEPT: Final = 16_384  # texts that are kept while somebody else has the terminal; the first of more are dropped


class _Stderr:
    """Whatever `sys.stderr` is at that moment, so a live display can step aside for each line."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._is_held = False
        self._kept: deque[str] = deque(maxlen=_MOST_KEPT)

    def write(self, text: str) -> None:
        with self.lock:
            if self._is_held:
                self._kept.append(text)
                return
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stderr.write(text)
                sys.stderr.flush()

    def hold(self) -> None:
        with self.lock:
            self._is_held = True

    def release(self) -> None:
        with self.lock:
            self._is_held = False
            while self._kept:
                self.write(self._kept.popleft())


_stderr: Final = _Stderr()


def write_lines(text: str) -> None:
    """Write whole lines to stderr between the records, from any thread. Unreadable lines are dropped."""
    _stderr.write(text)


def hold() -> None:
    """Write nothing from now on: somebody else has the terminal. It is kept."""
    _stderr.hold()


def release() -> None:
    """Write what was kept, and go on."""
    _stderr.release()


def printable(text: str) -> str:
    """Return a text without anything that a terminal takes for a command; in quotes if it has spaces."""
    return text if text.isascii() and text.isprintable() and " " not in text else ascii(text)


class _StderrHandler(logging.Handler):
    """Writes records between the lines of `write_lines`."""

    def createLock(self) -> None:  # noqa: N802 - as of `Handler`
        """Take turns with `write_lines`."""
        self.lock = _stderr.lock

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - a record that cannot be made must not end who logs it
            self.handleError(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: timestamp (UTC, of the event), level, logger, message, then the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; a value that JSON does not know becomes its text."""
        line: dict[str, Any] = {
            "timestamp": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in extra_of(record).items():
            line.setdefault(name, value)
        if record.exc_text:
            line["exception"] = record.exc_text
        elif record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
            return msgspec.json.encode({name: _printable(value) for name, value in line.items()}).decode()


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a record was given as `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _printable(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


class ConsoleFormatter(logging.Formatter):
    """Coloured lines by structlog: time, level, message, then the fields of `extra`."""

    _inner: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line for a person, followed by the traceback if it has one."""
        if self._inner is None:
            self._inner = _structlog_formatter()
        return self._inner.format(record)


def _structlog_formatter() -> logging.Formatter:
    import structlog  # 80 ms, and not needed for JSON lines

    def add_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event["_record"]
        for name, value in extra_of(record).items():
            event.setdefault(name, value)
        if record.exc_text:
            event.setdefault("exception", record.exc_text)
            event.pop("exc_info", None)
        return event

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            add_fields,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.dev.ConsoleRenderer(
                colors=is_terminal(sys.stderr) and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
                pad_event_to=0,
                pad_level=True,
            ),
        ],
    )
