"""Shared context of all connections of a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from geartrain.transport.wire.bodies import BufferBudget, Places
from geartrain.transport.wire.exchange import BodyMemory, Records, keep_nothing
from geartrain.transport.wire.heads import HeadCache, ParsedHeads
from geartrain.transport.wire.outgoing import AnswerHeads

if TYPE_CHECKING:
    from geartrain.transport.wire.exchange import Handler
    from geartrain.transport.wire.limits import WireLimits


class WireContext:
    """The handler, the limits, and what is remembered for all connections."""

    def __init__(
        self,
        handler: Handler,
        limits: WireLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        records: Records = keep_nothing,
        memory: BodyMemory | None = None,
    ) -> None:
        self.handler = handler
        self.records = records
        self.limits = limits
        self.loop = loop
        self.heads = HeadCache()
        self.parsed = ParsedHeads(limits.max_head_size)
        self.answers = AnswerHeads()
        self.places = Places(memory)
        self.budget = BufferBudget(limits.max_buffered_size)
        self.now = loop.time()  # time of the last sweep: close enough for limits, and free to read
        self.is_draining = False  # no answer is followed by another request any more: clients shall go elsewhere
        self.is_closed = False  # no connection is accepted any more, and one without a request is ended
