"""Decisions on the heads of a connection of HTTP/2. See `head_cache` for those of HTTP/1.1.

The codec gives a head that comes again as the same object. The meaning of a head's bytes depends on those before them
on the connection, so each connection has its own memory.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from geartrain.transport.http2.interface import RequestHead
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Accepted, Answer, Decision, Head, NewRecord
from geartrain.transport.wire.responses import BUG

logger = logging.getLogger(__name__)

HEAD: Final = "HEAD"
MAX_HEADS: Final = 64  # heads


class DecidedHead(NamedTuple):
    """Decision on requests with one head, and the factory of their records."""

    decision: Decision
    new_record: NewRecord


class Http2Heads:
    """Shows heads to the handler, and remembers what it has decided where it may."""

    __slots__ = ("_context", "_generation", "_known")

    def __init__(self, context: WireContext) -> None:
        self._context = context
        self._generation = 0
        self._known: dict[int, tuple[RequestHead, DecidedHead]] = {}  # by the identity of the head, which is held

    def find(self, head: RequestHead) -> DecidedHead:
        """Return the decision on a request with this head."""
        known = self._known.get(id(head))
        if known is not None and known[0] is head and self._generation == self._context.heads.generation:
            return known[1]
        return self._decide(head)

    def expects_continue(self, head: RequestHead) -> bool:
        """True if the client holds the body back until it is asked for it. Such a head is not remembered."""
        if id(head) in self._known:
            return False
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in head.fields)

    def _decide(self, head: RequestHead) -> DecidedHead:
        path, _, query = head.path.partition(b"?")
        shown = Head(head.method, path, query, head.fields, head.length, has_trailers=True)
        try:
            decision = self._context.handler.begin(shown)
        except Exception:
            logger.exception("a handler failed")
            decision = BUG
        decided = DecidedHead(decision, self._context.records(shown))
        if isinstance(decision, Answer):
            return decided
        if 0 < decision.max_body < head.length:
            return DecidedHead(decision.refuse_size(decision.max_body), decided.new_record)
        is_reusable = isinstance(decision, Accepted) and decision.is_reusable and not shown.is_unique
        if is_reusable and not self.expects_continue(head):
            self._learn(head, decided)
        return decided

    def _learn(self, head: RequestHead, decided: DecidedHead) -> None:
        generation = self._context.heads.generation
        if generation != self._generation or len(self._known) >= MAX_HEADS:
            self._generation = generation
            self._known.clear()
        self._known[id(head)] = (head, decided)
