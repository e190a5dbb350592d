"""Bodies of requests over HTTP/2 on their way in. The client may send more as fast as what has come is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.http2.interface import BodyReceived, Event
from geartrain.transport.wire.bodies import BufferBudget, PartsBody, WholeBody
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Accepted, AcceptedInParts, Body
from geartrain.transport.wire.gathering import GatheringReader

_START: Final = 65_536  # bytes in which a body has announced its length, if it does
_COPIED: Final = 65_536  # bytes up to which a piece that waits is copied: a view keeps all that came with it

Acknowledge = Callable[[int], None]  # lets the client send so many bytes more


class BodyParts(msgspec.Struct, frozen=True, gc=False):
    """Several parts of a body that have come together. Attributes as those of `BodyReceived`."""

    stream: int
    parts: Sequence[Buffer]
    credit: int
    is_last: bool


def by_body(events: Sequence[Event]) -> Iterator[Event | BodyParts]:
    """Yield events, with the parts of a body together that follow each other: a large one comes in many frames."""
    parts: list[Buffer] = []
    credit = 0
    following = iter(events)
    event = next(following, None)
    while event is not None:
        after = next(following, None)
        if type(event) is BodyReceived:
            parts.append(event.data)
            credit += event.credit
            if type(after) is not BodyReceived or after.stream != event.stream:
                yield event if len(parts) == 1 else BodyParts(event.stream, parts, credit, event.is_last)
                parts, credit = [], 0
        else:
            yield event
        event = after


class NoBody:
    """Stands where nothing of a body has come."""

    waits_for_memory = False

    def close(self) -> None:
        """Hold nothing."""


NO_BODY: Final = NoBody()


class GatheredBody:
    """A body on its way to an exchange that takes it whole, counted against the memory for bodies."""

    __slots__ = ("_accepted", "_acknowledge", "_announced", "_budget", "_counted", "_credit", "_on_memory", "_whole")

    def __init__(
        self, accepted: Accepted, budget: BufferBudget, acknowledge: Acknowledge, *, on_memory: Callable[[], None]
    ) -> None:
        """`on_memory` is called when the body goes on that had to wait for memory."""
        self._accepted = accepted
        self._budget = budget
        self._acknowledge = acknowledge
        self._on_memory = on_memory
        self._whole = WholeBody()
        self._counted = 0  # bytes of the budget
        self._credit = 0  # bytes that the client may send when there is memory
        self._announced = UNKNOWN_LENGTH

    @property
    def is_too_large(self) -> bool:
        """True if more has come than is accepted, or will."""
        return 0 < self._accepted.max_body < max(self._whole.size, self._announced)

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""
        return self._credit > 0

    def take(self, parts: Sequence[Buffer], credit: int) -> None:
        """Append to it. Raises `WireError` for a body that could never be held."""
        budget, whole = self._budget, self._whole
        before = whole.size
        whole.take(parts)
        self._counted += whole.size - before
        budget.take(whole.size - before)
        if self._announced == UNKNOWN_LENGTH and self._counted < _START:
            self._announced = self._accepted.announced(self._whole.whole())
        budget.check(max(self._counted, self._announced))
        if budget.is_spent:
            self._credit += credit
            budget.wait(self, self._resume)
        else:
            self._acknowledge(credit)

    def whole(self) -> Body:
        """Return it, complete."""
        return self._whole.whole()

    def close(self) -> None:
        """Hold nothing."""
        self._whole = WholeBody()
        self._budget.leave(self)
        counted, self._counted = self._counted, 0
        self._budget.give_back(counted)

    def _resume(self) -> None:
        credit, self._credit = self._credit, 0
        self._on_memory()
        self._acknowledge(credit)


def _ignore(_credit: int) -> None:
    """Stand in for `acknowledge` once the stream is over."""


class PiecewiseBody:
    """A body on its way to an exchange that reads it in pieces."""

    __slots__ = ("_acknowledge", "_credit", "_messages", "reader")

    def __init__(self, accepted: AcceptedInParts, acknowledge: Acknowledge) -> None:
        self.reader = PartsBody(accepted.max_body, self._resume)
        self._acknowledge = acknowledge
        self._credit = 0  # bytes that the client may send when the reader has taken some
        self._messages: list[GatheringReader] = []

    def messages(self, budget: BufferBudget, patience: float) -> GatheringReader:
        """Create the reader that cuts the body into messages. `patience`: see `GatheringReader`."""
        reader = GatheringReader(self.reader, budget, patience)
        self._messages.append(reader)
        return reader

    @property
    def is_full(self) -> bool:
        """True if the reader has to take something first."""
        return self.reader.is_full

    def take(self, parts: Sequence[Buffer], credit: int) -> None:
        """Append to it."""
        reader = self.reader
        reader.take([bytes(part) if len(part) < _COPIED else part for part in parts])
        if reader.is_full:
            self._credit += credit
        else:
            self._acknowledge(credit)

    def complete(self) -> None:
        """Note that all of it has come."""
        self.reader.complete()

    def close(self) -> None:
        """Tell the reader that nothing more will come."""
        self.reader.break_off()
        for reader in self._messages:
            reader.close()
        self._messages.clear()
        self._acknowledge = _ignore  # the stream's, which refers to this body

    def _resume(self) -> None:
        credit, self._credit = self._credit, 0
        self._acknowledge(credit)
