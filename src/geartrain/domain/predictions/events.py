"""What can happen to a prediction, and the append-only log that keeps it.

Every way of answering is a reader of this log, or a listener of it. Events are shared: a reader that lies
behind refers to those that it has not taken, up to a limit of its own, and stalls no other. The log keeps the newest
`capacity` events and knows how many it has dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, Literal, final

import msgspec

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.tensors.tensor import Buffer

LogSource = Literal["stdout", "stderr"]
MetricMode = Literal["replace", "increment", "append", "delete"]

DEFAULT_CAPACITY = 1024
_EVENT: Final = 56  # bytes of memory of an event and its place in the list
_VALUE: Final = 8  # bytes of memory for each character of JSON: small numbers and strings take the most


class Start(msgspec.Struct, frozen=True, gc=False):
    """The run began."""


@final
class Output(msgspec.Struct, frozen=True, gc=False):
    """The run gave a chunk of output: JSON text in UTF-8, and its 0-based position."""

    chunk: Buffer
    index: int


class Log(msgspec.Struct, frozen=True, gc=False):
    """The run wrote to a stream."""

    source: LogSource
    data: str


class Metric(msgspec.Struct, frozen=True):
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

    __slots__ = ("_capacity", "_dropped", "_enders", "_events", "_listeners", "_most", "history")

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """`capacity`: how many events are held at least."""
        self.history = capacity  # how many of them are for late readers
        self._capacity = capacity
        self._most = 2 * capacity  # events that the list may hold
        self._dropped = 0  # events that have been cut off
        # A list that is cut now and then: of the many predictions with three events none pays for a ring.
        self._events: list[Event] = []
        self._listeners: tuple[Callable[[Event], None], ...] = ()  # replaced, so that one may go while all are told
        self._enders: tuple[Callable[[], None], ...] = ()

    def keep(self, history: int) -> None:
        """Keep so many events for late readers; 0 for none, they get what comes live. The first reader gets all."""
        self.history = history
        self._capacity = max(history, DEFAULT_CAPACITY)
        self._most = 2 * self._capacity

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
        return max(self._dropped, self.next_index - self._capacity)

    def append(self, event: Event) -> None:
        """Add an event and tell the listeners, which must not block. What one of them raises is logged and no more."""
        events = self._events
        events.append(event)
        if len(events) > self._most:
            self._cut()
        if self._listeners:
            self._tell(event)

    def forget(self) -> None:
        """Drop all events; a reader that has not read them is told so."""
        self._dropped += len(self._events)
        self._events.clear()

    def _cut(self) -> None:
        """Drop the oldest events, but for those that are to be held."""
        excess = len(self._events) - self._capacity
        del self._events[:excess]
        self._dropped += excess

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
                _log_failure(error)

    def end(self, event: Completed | Released) -> None:
        """Append the last event, and call the listeners."""
        events = self._events  # as `append`, without its price
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
        following = self._dropped + len(self._events)
        first = max(self._dropped, following - self._capacity)
        if start < first:
            raise EventsDroppedError(first - start)
        return self._events[start - following :] if start < following else []

    def copy(self) -> EventLog:
        """Return a log with the same events and without listeners."""
        copy = EventLog(self._capacity)
        copy.history, copy._most, copy._dropped = self.history, self._most, self._dropped
        copy._events = [*self._events]
        return copy

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event appended from now on."""
        self._listeners = (*self._listeners, listener)

    def listen_for_end(self, ender: Callable[[], None]) -> None:
        """Call `ender` after the last event: most readers of a prediction need no more."""
        self._enders += (ender,)

    def unlisten(self, listener: Callable[[Event], None]) -> None:
        """Stop calling `listener`; one that is not listening is ignored."""
        self._listeners = tuple(other for other in self._listeners if other != listener)


def size_of_value(value: Any) -> int:
    """Estimate the bytes of memory of a JSON value from the length of its text."""
    try:
        return _VALUE * len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return sys.getsizeof(value)


def _memory_of(event: Event) -> int:
    if type(event) is Log:
        return _EVENT + sys.getsizeof(event.data)
    if type(event) is Metric:
        return _EVENT + size_of_value(event.value)
    return _EVENT


def _log_failure(error: Exception) -> None:
    import logging  # the worker, which has no log, imports this module too

    logging.getLogger(__name__).error("a reader of a prediction has failed", exc_info=error)
