"""Caches of heads: of requests that have been parsed, and of answers that have been written.

A client that keeps its connection sends the same head again and again, byte for byte: one that the parser has found
good need not be parsed anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from geartrain.transport.http.handlers import JSON

if TYPE_CHECKING:
    from collections.abc import Sequence
    from http import HTTPStatus

    from geartrain.transport.http.handlers import NewExchange

_END: Final = b"\r\n\r\n"
_LARGEST: Final = 2048  # bytes of a head
_MANY: Final = 512  # heads


class KnownHead(NamedTuple):
    """What the parser has read in a head, of a request whose connection goes on after it."""

    new_exchange: NewExchange
    length: int  # bytes of the body


class HeadCache:
    """The heads of a server's latest clients: of all connections together, since clients are often of one kind."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, bytes] | None:
        """Return the head and the body if `data` is exactly one request whose head is known."""
        end = data.find(_END) + len(_END)
        known = self._known.get(data[:end])
        return None if known is None or len(data) - end != known.length else (known, data[end:])

    def learn(self, data: bytes, known: KnownHead) -> None:
        """Remember the head of a request that was exactly `data`."""
        end = len(data) - known.length
        if end > _LARGEST or data.find(_END) != end - len(_END):
            return
        if len(self._known) >= _MANY:
            self._known.clear()
        self._known[data[:end]] = known


class AnswerHeads:
    """Heads of answers, up to the length of their body: made anew when the server's own headers are, once a second."""

    def __init__(self) -> None:
        self._common: Sequence[tuple[bytes, bytes]] | None = None  # what they were made with
        self._json: dict[HTTPStatus, bytes] = {}

    def of_json(self, status: HTTPStatus, common: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the head of a JSON answer, `common` being the headers of all answers."""
        if common is not self._common:
            self._common = common
            self._json.clear()
        head = self._json.get(status)
        if head is None:
            head = self._json[status] = self.of(status, common, JSON)
        return head

    @staticmethod
    def of(status: HTTPStatus, *headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the head of any answer."""
        lines = [b"%b: %b\r\n" % header for some in headers for header in some]
        return b"".join((STATUS_LINE[status], *lines, b"content-length: "))
