"""Lines of the access log on stderr, in the form of the others: JSON for a machine, short lines for a person.

Many are made at once, so they do not pass through `logging`, which would take several times as long.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from geartrain.cli import background_logs, logs
from geartrain.cli.background_logs import Lines
from geartrain.transport.access_log import AccessLogOptions, RequestWriter, line_of
from geartrain.transport.records import RequestRecord


def written_as(options: AccessLogOptions, form: logs.Format) -> AccessLogOptions:
    """Return the options with lines in this form, on stderr."""
    return msgspec.structs.replace(options, new_writer=functools.partial(new_writer, form))


def new_writer(form: logs.Format) -> RequestWriter[Any]:
    """Create the writer of lines in this form."""
    if form == "json":
        return _JsonWriter()
    from geartrain.cli.dev_lines import PersonWriter  # late: rich takes 40 ms

    return PersonWriter()


_moment_of = operator.attrgetter("ended")


class _Prepared(NamedTuple):
    moments: tuple[float, ...]
    text: bytes


class _JsonWriter(RequestWriter[_Prepared]):
    """Makes the lines on the loop, which has the records at hand: a thread on another core takes twice as long."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode_lines

    def prepare(self, requests: Sequence[RequestRecord]) -> _Prepared:
        """Return the lines."""
        moments = tuple(map(_moment_of, requests))
        return _Prepared(moments, self._encode([line_of(request) for request in requests]))

    def write(self, prepared: Sequence[_Prepared]) -> None:
        """Write them."""
        background_logs.write([Lines(each.moments, each.text.decode()) for each in prepared])
