"""A cache of the heads that have been parsed.

A client that keeps its connection sends the same head again and again, byte for byte: one that has been found good need
not be parsed anew, nor be shown to its handler. One that differs in its path only need not be parsed anew.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from geartrain.transport.wire.exchange import Accepted, Head, NewRecord
from geartrain.transport.wire.heads import END, RequestHead
from geartrain.transport.wire.terms import Terms

_LARGEST: Final = 2048  # bytes of a head
MAX_HEADS: Final = 512  # heads
MAX_HEADS_WITHOUT_PATH: Final = 128
_PLAIN_PATH: Final = re.compile(rb"/[A-Za-z0-9._~%/-]*")  # that means what it says: no query, nothing to refuse


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """A known head of HTTP/1.1, on a connection that goes on after the request.

    Attributes:
        accepted: the decision of its handler.
        length: bytes of the body.
        terms: the required form of answers.
        new_record: makes the records of its requests.
    """

    accepted: Accepted
    length: int
    terms: Terms
    new_record: NewRecord


class HeadCache:
    """The heads of a server's latest clients: of all connections together, since clients are often of one kind."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}
        self.generation = 0  # number of times that all have been forgotten
        self.find = self._known.get  # known head by its bytes, end included; None for an unknown one

    def learn(self, head: bytes, known: KnownHead) -> None:
        """Remember a head that came in one piece."""
        if len(head) > _LARGEST or not head.endswith(END):
            return
        if len(self._known) >= MAX_HEADS:
            self._known.clear()
        self._known[head] = known

    def clear(self) -> None:
        """Forget all heads: their handlers might decide otherwise now."""
        self._known.clear()
        self.generation += 1


class ParsedHeads:
    """Heads without their paths, of all connections together: a client that PUTs many ids changes nothing else."""

    def __init__(self, limit: int) -> None:
        """`limit`: the largest head in bytes that is accepted; 0 disables it."""
        self._longest = min(limit, _LARGEST) if limit else _LARGEST
        self._known: dict[tuple[bytes, bytes], RequestHead] = {}

    def recall(self, head: bytes) -> RequestHead | None:
        """Return the known head that differs in the path alone, None if there is none. Takes any bytes."""
        before, path, after = _without_path(head)
        known = self._known.get((before, after))
        if known is None or len(head) > self._longest or _PLAIN_PATH.fullmatch(path) is None:
            return None
        other = known.head
        return RequestHead(
            Head(other.method, path, b"", other.headers, other.length),
            known.keeps_alive,
            known.is_modern,
            known.expects_continue,
        )

    def learn(self, head: bytes, request: RequestHead) -> None:
        """Remember what a head says that came in one piece, unless it has ids of its own besides the path."""
        if len(head) > self._longest or not head.endswith(END) or request.head.is_unique:
            return
        before, path, after = _without_path(head)
        if path != request.head.path or _PLAIN_PATH.fullmatch(path) is None:
            return
        if len(self._known) >= MAX_HEADS_WITHOUT_PATH:
            self._known.clear()
        self._known[before, after] = request


def _without_path(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a head into the part before the target of a request, the target, and the part behind it."""
    begin = head.find(b" ") + 1
    end = head.find(b" ", begin)
    return head[:begin], head[begin:end], head[end:]
