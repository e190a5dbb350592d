"""A cache of the heads that have been parsed.

A client that keeps its connection sends the same head again and again, byte for byte: one that has been found good need
not be parsed anew, nor be shown to its handler.
"""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.transport.wire.exchange import Accepted, NewRecord
from geartrain.transport.wire.heads import END
from geartrain.transport.wire.terms import Terms

_LARGEST: Final = 2048  # bytes of a head
_MANY: Final = 512  # heads


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """What is known of a head of HTTP/1.1, on a connection that goes on after the request.

    Attributes:
        accepted: what its handler has decided.
        length: bytes of the body.
        terms: how its requests want to be answered.
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
        self.generation = 0  # how often all have been forgotten
        self.find = self._known.get  # what is known of a head, its end included; None if nothing is

    def learn(self, head: bytes, known: KnownHead) -> None:
        """Remember a head that came in one piece."""
        if len(head) > _LARGEST or not head.endswith(END):
            return
        if len(self._known) >= _MANY:
            self._known.clear()
        self._known[head] = known

    def clear(self) -> None:
        """Forget all heads: their handlers might decide otherwise now."""
        self._known.clear()
        self.generation += 1
