"""The request at hand on its way in: its head, then its body, gathered or handed on in pieces."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from geartrain.transport.wire.bodies import (
    NO_PLACE,
    Framing,
    LengthFraming,
    NoPlace,
    PartsBody,
    PlacedBody,
    WholeBody,
    framing,
)
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Accepted, AcceptedInParts, Body
from geartrain.transport.wire.heads import HeadReader

_NOTHING: Final = LengthFraming(0)


class _Sink(Enum):
    """Destination of the body."""

    NOWHERE = "nowhere"
    WHOLE = "whole"
    PARTS = "parts"


class Intake:
    """Reads one request at a time, and counts what it holds."""

    __slots__ = (
        "_context",
        "_framing",
        "_parts",
        "_sink",
        "_taken",
        "_whole",
        "accepted",
        "place",
        "reader",
        "received",
    )

    def __init__(self, context: WireContext) -> None:
        self._context = context
        self.reader: HeadReader
        self.accepted: Accepted
        self._framing: Framing = _NOTHING
        self._sink = _Sink.NOWHERE
        self._whole: WholeBody | PlacedBody
        self._parts: PartsBody
        self.place: PlacedBody | NoPlace = NO_PLACE  # of the body that is gathered
        self._taken = 0  # bytes of the budget
        self.received = 0  # bytes of the body since the last look at its pace

    # its kinds

    def begin(self, accepted: Accepted, length: int) -> None:
        """Gather a body."""
        self.accepted = accepted
        self._begin(length, _Sink.WHOLE)
        self.place = place = self._context.places.find(accepted, length)
        self._whole = place if isinstance(place, PlacedBody) else WholeBody()

    def begin_parts(self, accepted: AcceptedInParts, length: int, resume: Callable[[], None]) -> PartsBody:
        """Return a body that is read in pieces; `resume` is called when its reader has taken some."""
        self._parts = PartsBody(accepted.max_body, resume)
        self._begin(length, _Sink.PARTS)
        if not length:
            self._parts.complete()
        return self._parts

    def begin_discarding(self, length: int) -> None:
        """Throw a body away."""
        self._begin(length, _Sink.NOWHERE)

    def _begin(self, length: int, sink: _Sink) -> None:
        self._framing = framing(length, self._context.limits.max_head_size)
        self._sink = sink
        self.received = 0

    # received data

    def feed(self, data: bytes) -> int:
        """Take what has come; return how many bytes of it belong to the body. Raises `WireError`."""
        pieces, taken = self._framing.feed(data)
        self.received += taken
        if self._sink is _Sink.WHOLE:
            self._whole.take(pieces)
            self._taken += taken
            self._context.budget.take(taken)
            self._context.budget.check(self._taken)  # one in chunks announces nothing
        elif self._sink is _Sink.PARTS:
            self._parts.take(pieces)
            if self._framing.is_complete:
                self._parts.complete()
        return taken

    def grow(self, size: int) -> None:
        """Note that so many bytes have been written to the room of `place`."""
        if isinstance(self.place, PlacedBody) and isinstance(self._framing, LengthFraming):
            self._framing.skip(size)
            self.place.grow(size)
            self.received += size
            self._taken += size
            self._context.budget.take(size)

    @property
    def is_complete(self) -> bool:
        """True if all of the body has come."""
        return self._framing.is_complete

    @property
    def is_too_large(self) -> bool:
        """True if more has been gathered than is accepted."""
        return 0 < self.accepted.max_body < self._whole.size

    @property
    def is_full(self) -> bool:
        """True if the reader of the body has to take something first."""
        return self._sink is _Sink.PARTS and self._parts.is_full

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""
        return self._sink is _Sink.WHOLE and self._context.budget.is_spent

    def wants_more(self, resume: Callable[[], None]) -> bool:
        """True if more of the body may be read now; otherwise `resume` is called when it may."""
        if self.waits_for_memory:
            self._context.budget.wait(self, resume)
            return False
        return not self.is_full

    def whole(self) -> Body:
        """Return the body that has been gathered, and keep nothing of it."""
        whole, self._whole = self._whole, WholeBody()
        self.place = NO_PLACE
        return whole.whole()

    # its end

    def reset(self) -> None:
        """Hold nothing: the request has its answer."""
        sink, self._sink = self._sink, _Sink.NOWHERE
        self._framing = _NOTHING
        self.place = NO_PLACE
        if sink is _Sink.WHOLE:
            taken, self._taken = self._taken, 0
            del self._whole, self.accepted
            self._context.budget.leave(self)
            self._context.budget.give_back(taken)

    def close(self) -> None:
        """Hold nothing, and tell a reader of the body that the rest will never come."""
        if self._sink is _Sink.PARTS and not self._framing.is_complete:
            self._parts.break_off()
        self.reset()
