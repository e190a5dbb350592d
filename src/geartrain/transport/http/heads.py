"""Heads of requests that have been parsed before.

A client that keeps its connection sends the same head again and again, byte for byte: one that the parser has found
good need not be parsed anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from geartrain.transport.http.lanes import Headers, Lane

_END: Final = b"\r\n\r\n"
_LARGEST: Final = 2048  # bytes of a head
_MANY: Final = 512  # heads


class KnownHead(NamedTuple):
    """What the parser has read in a head, of a request whose connection goes on after it."""

    lane: Lane
    url: bytes
    headers: Headers
    length: int  # bytes of the body


class KnownHeads:
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
