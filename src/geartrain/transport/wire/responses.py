"""Heads of answers, as bytes. What is the same for all answers of a second is made once."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.transport.wire.exchange import JSON, Answer, Fields, Head
from geartrain.transport.wire.heads import WireError

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
BUG: Final = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, (b'{"error":"Internal server error"}',))
UNREADABLE: Final = Head("", b"", b"", ())
"""In place of the head of a request that has none, or one that is not valid."""
_LATER: Final = (*JSON, (b"retry-after", b"1"))  # of a refusal for want of room, which others may leave soon
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"  # for HTTP/1.0
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_DAYS: Final = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_BODILESS: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


def http_date(at: time.struct_time) -> bytes:
    """Return a time in UTC as HTTP writes it (RFC 9110, section 5.6.7); `strftime` would use words of the locale."""
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    clock = (at.tm_hour, at.tm_min, at.tm_sec)
    return b"%b, %02d %b %04d %02d:%02d:%02d GMT" % (day, at.tm_mday, month, at.tm_year, *clock)


class AnswerHeads:
    """Makes heads up to the fields that say how long the body is."""

    def __init__(self) -> None:
        self._json: dict[HTTPStatus, bytes] = {}
        self.date = b""  # the value of the field
        self.json_ok = b""  # the head of most answers
        self.renew()

    def of_json(self, status: HTTPStatus) -> bytes:
        """Return the head of an answer with a body of JSON and no further field."""
        head = self._json.get(status)
        if head is None:
            head = self._json[status] = self.of(status, JSON)
        return head

    def of(self, status: HTTPStatus, fields: Fields) -> bytes:
        """Return the head of any answer."""
        lines = [b"%b: %b\r\n" % field for field in fields]
        return b"".join((_STATUS_LINES[status], self._date, *lines))

    def renew(self) -> None:
        """Take the date of now; to be called once a second, which is what a date tells."""
        self.date = http_date(time.gmtime(time.time()))
        self._date = b"date: %b\r\n" % self.date
        self._json.clear()
        self.json_ok = self.of_json(HTTPStatus.OK)


def has_body(status: HTTPStatus) -> bool:
    """True if an answer of this status has a body, and a length (RFC 9110, section 8.6)."""
    return status not in _BODILESS


def refusal(error: WireError) -> Answer:
    """Return the answer to a request that is refused."""
    headers = _LATER if error.status is HTTPStatus.SERVICE_UNAVAILABLE else JSON
    return Answer(error.status, (msgspec.json.encode({"error": str(error)}),), headers, error=str(error))
