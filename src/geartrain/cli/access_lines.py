"""Lines of the access log on stderr, in the form of the others: JSON for a machine, coloured for a person.

Many are made at once, so they do not pass through `logging`, which would take several times as long.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.cli import logs
from geartrain.transport.access_lines import RequestWriter, SlowWriter, fields_of, line_of
from geartrain.transport.access_options import AccessLogOptions
from geartrain.transport.records import RequestRecord

_SHOWN_FIRST: Final = ("method", "path", "status")
_COLORS: Final = {
    "dim": "\x1b[2m",
    "green": "\x1b[32m\x1b[1m",
    "bold": "\x1b[1m",
    "cyan": "\x1b[36m",
    "pink": "\x1b[35m",
}
_RESET: Final = "\x1b[0m"


def written_as(options: AccessLogOptions, form: logs.Format) -> AccessLogOptions:
    """Return the options with lines in this form, on stderr."""
    return msgspec.structs.replace(options, new_writer=functools.partial(new_writer, form))


def new_writer(form: logs.Format) -> RequestWriter[Any]:
    """Return what writes lines in this form."""
    if form == "json":
        return _JsonWriter()
    renderer = LineRenderer(colored=logs.is_terminal(sys.stderr) and not os.environ.get("NO_COLOR"))

    def show(request: RequestRecord) -> None:
        logs.write_lines(renderer.render(fields_of(line_of(request)), request.ended))

    return SlowWriter(show)


class _JsonWriter(RequestWriter[bytes]):
    """Makes the lines on the loop, which has the records at hand: a thread on another core takes twice as long."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode_lines

    def prepare(self, requests: Sequence[RequestRecord]) -> bytes:
        """Return the lines."""
        return self._encode([line_of(request) for request in requests])

    def write(self, prepared: Sequence[bytes]) -> None:
        """Write them in one piece."""
        logs.write_lines(b"".join(prepared).decode())


class LineRenderer:
    """Makes lines for a person, as structlog makes those of the other records."""

    def __init__(self, *, colored: bool) -> None:
        self._colors = _COLORS if colored else dict.fromkeys(_COLORS, "")
        self._reset = _RESET if colored else ""

    def render(self, fields: dict[str, Any], moment: float) -> str:
        """Return a line with its end; `moment` in seconds since the epoch."""
        colors, reset = self._colors, self._reset
        method, path, status = (printable(str(fields.pop(name))) for name in _SHOWN_FIRST)
        clock = time.strftime("%H:%M:%S", time.localtime(moment))
        rest = " ".join(
            f"{colors['cyan']}{name}{reset}={colors['pink']}{printable(str(value))}{reset}"
            for name, value in fields.items()
        )
        return (
            f"{colors['dim']}{clock}{reset} [{colors['green']}info     {reset}] "
            f"{colors['bold']}{method} {path} {status}{reset} {rest}\n"
        )


def printable(text: str) -> str:
    """Return a text without anything that a terminal takes for a command; in quotes if it has spaces."""
    return text if text.isascii() and text.isprintable() and " " not in text else ascii(text)
