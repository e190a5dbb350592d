"""Events of a prediction, and the append-only log that keeps them.

Outputs, logs and metrics are what a worker reports: it makes the events, and they come through the inner wire as they
are. Every way of answering is a reader of this log, or a listener of it. Events are shared: a reader that lies
behind refers to those that it has not taken, up to a limit of its own, and stalls no other. The log keeps the newest
`capacity` events and knows how many it has dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, final

import msgspec

from geartrain.domain.predictions.lifecycle import Status

if TYPE_CHECKING:
    from geartrain.domain.tensors.tensor import Buffer
else:
    Buffer = bytes  # in a report; an output that was delivered or restored may be another buffer

LogSource = Literal["stdout", "stderr"]
MetricMode = Literal["replace", "increment", "append", "delete"]

DEFAULT_CAPACITY = 1024
MAX_PRINTED: Final = 16 * 1024**2
"""Characters of printed text in the events of a log, and in those that a reader has not taken.

A byte of memory of a metric's value counts as one of them.
"""

_UNBOUNDED: Final = sys.maxsize
_EVENT: Final = 56  # bytes of memory of an event and its place in the list
_NUMBERS: Final = frozenset({bool, int, float, type(None)})
_VALUE: Final = 8  # bytes of memory for each character of JSON: small numbers and strings take the most


class Start(msgspec.Struct, frozen=True, gc=False):
    """The run began."""


@final
class Output(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The run gave a chunk of output: JSON text in UTF-8, and its 0-based position."""

    chunk: Buffer
    index: int


class Log(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The run wrote to a stream."""

    source: LogSource
    data: str


class Metric(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The run recorded a metric; `value` is the value given, not what it has added up to."""

    name: str
    value: Any
    mode: MetricMode


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The prediction reached a terminal state. The last event, exactly once, unless the prediction is `Released`."""

    status: Status


class Released(msgspec.Struct, frozen=True, gc=False):
    """The server has let go of the prediction, which runs again from its stored input. The last event of this run."""


Event = Start | Output | Log | Metric | Completed | Released

LAST: Final = frozenset({Completed, Released})
"""The types of events that no other one follows."""


class EventsDroppedError(LookupError):
    """A reader asked for events that the log no longer holds."""

    def __init__(self, skipped: int) -> None:
        super().__init__(f"{skipped} events were dropped")
        self.skipped = skipped


class EventLog:
    """The events of one prediction, in order. Indices count from 0 over the whole life of the prediction."""

    __slots__ = ("_capacity", "_dropped", "_enders", "_events", "_listeners", "_most", "_printed", "begin", "history")

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """`capacity`: how many events are held at least."""
        self.history = capacity  # number of events for late readers
        self._capacity = capacity
        self._most = 2 * capacity  # events that the list may hold
        self.begin = 0  # index of the first event of a reader of all: those before belong to forgotten outputs
        self._dropped = 0  # events that have been cut off
        self._printed = (
            0  # characters, as of `printed_in`, in the events that are held, and perhaps in some that have been dropped
        )
        # A list that is cut now and then: of the many predictions with three events none pays for a ring.
        self._events: list[Event] = []
        self._listeners: tuple[Callable[[Event], None], ...] = ()  # replaced, so that one may go while all are told
        self._enders: tuple[Callable[[], None], ...] = ()

    def keep(self, history: int) -> None:
        """Keep so many events for late readers; 0 for none, they get what comes live. The first reader gets all."""
        self.history = history
        self._capacity = max(history, DEFAULT_CAPACITY)
        self._most = 2 * self._capacity

    def hold(self) -> None:
        """Drop nothing until `release`, which follows within a turn of the loop."""
        self._most = _UNBOUNDED

    def settle(self) -> bool:
        """Release what is held, unless that would take events away from a reader; return whether it was done."""
        if len(self._events) > self._capacity or self._printed > MAX_PRINTED:
            return False
        self._most = 2 * self._capacity
        return True

    def release(self) -> None:
        """Drop events again where there are too many, from now on."""
        self._most = 2 * self._capacity
        if len(self._events) > self._most:
            self._cut()
        if self._printed > MAX_PRINTED:
            self._cut_printed(MAX_PRINTED // 2)

    @property
    def memory(self) -> int:
        """Bytes of memory of the events that are held, without the chunks of output."""
        return sum([_memory_of(event) for event in self._events])

    @property
    def next_index(self) -> int:
        """The index that the next event will have."""
        return self._dropped + len(self._events)

    @property
    def first_index(self) -> int:
        """The index of the oldest event still held."""
        if self._most == _UNBOUNDED:
            return self._dropped
        return max(self._dropped, self.next_index - self._capacity)

    def append(self, event: Event) -> None:
        """Add an event and tell the listeners, which must not block. What one of them raises is logged and no more."""
        events = self._events
        events.append(event)
        if len(events) > self._most:
            self._cut()
        if self._listeners:
            self._tell(event)

    def append_sized(self, event: Log | Metric) -> None:
        """Append printed text or a metric. The oldest events are dropped when there is too much of either."""
        size = printed_in(event)
        if self._printed + size > MAX_PRINTED and self._most != _UNBOUNDED:
            self._cut_printed(MAX_PRINTED // 2)
        self._printed += size
        self.append(event)

    def forget(self) -> None:
        """Drop all events: they belong to outputs that are given back."""
        self._dropped += len(self._events)
        self._events.clear()
        self.begin = self._dropped

    def _cut(self) -> None:
        """Drop the oldest events, but for those that are to be held."""
        excess = len(self._events) - self._capacity
        del self._events[:excess]
        self._dropped += excess

    def _cut_printed(self, most: int) -> None:
        """Drop the oldest events, so that few enough characters are left in the others."""
        events = self._events
        printed = sum(map(printed_in, events))
        count = 0
        while printed > most:
            printed -= printed_in(events[count])
            count += 1
        del events[:count]
        self._dropped += count
        self._printed = printed

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
                _log_failure(error)

    def end(self, event: Completed | Released) -> None:
        """Append the last event, and call the listeners."""
        events = self._events  # `append` inlined
        events.append(event)
        if len(events) > self._most:
            self._cut()
        if self._listeners:
            self._tell(event)
        enders = self._enders
        # A listener often refers to the prediction: without this, they would keep each other alive.
        self._listeners = self._enders = ()
        for ender in enders:
            try:
                ender()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
                _log_failure(error)

    def read(self, start: int) -> list[Event]:
        """Return the events from index `start` on; raise `EventsDroppedError` if some are no longer held."""
        following, first = self._dropped + len(self._events), self.first_index
        if start < first:
            raise EventsDroppedError(first - start)
        return self._events[start - following :] if start < following else []

    def copy(self) -> EventLog:
        """Return a log with the same events and without listeners."""
        copy = EventLog(self._capacity)
        copy.history, copy._most = self.history, self._most
        copy._dropped, copy._printed, copy.begin = self._dropped, self._printed, self.begin
        copy._events = [*self._events]
        return copy

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event appended from now on."""
        self._listeners = (*self._listeners, listener)

    def listen_for_end(self, ender: Callable[[], None]) -> None:
        """Call `ender` after the last event: most readers of a prediction need no more."""
        self._enders += (ender,)

    def unlisten_for_end(self, ender: Callable[[], None]) -> None:
        """Stop calling `ender`; one that is not listening is ignored."""
        self._enders = tuple(other for other in self._enders if other is not ender)

    def unlisten(self, listener: Callable[[Event], None]) -> None:
        """Stop calling `listener`; one that is not listening is ignored."""
        self._listeners = tuple(other for other in self._listeners if other != listener)


def size_of_value(value: Any) -> int:
    """Estimate the bytes of memory of a JSON value from the length of its text."""
    try:
        return _VALUE * len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return sys.getsizeof(value)


def printed_in(event: Event) -> int:
    """Return the characters of an event that count against `MAX_PRINTED`: of printed text, or for a metric's value."""
    if type(event) is Log:
        return len(event.data)
    if type(event) is Metric and type(event.value) not in _NUMBERS:
        return size_of_value(event.value)
    return 0


def _memory_of(event: Event) -> int:
    if type(event) is Log:
        return _EVENT + sys.getsizeof(event.data)
    if type(event) is Metric:
        return _EVENT + size_of_value(event.value)
    return _EVENT


def _log_failure(error: Exception) -> None:
    import logging  # the worker, which has no log, imports this module too

    logging.getLogger(__name__).error("a reader of a prediction has failed", exc_info=error)
