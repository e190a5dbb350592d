"""Readers of a prediction's event log that wait for what comes next."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from geartrain.domain.predictions.events import LAST, MAX_PRINTED, Event, EventsDroppedError, Output, printed_in

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction

DEFAULT_BACKLOG: Final = 16_384  # events a reader may lie behind; they are the prediction's own, not copies


class LaggedError(Exception):
    """The reader was too slow: `skipped` events of what it had not taken yet are lost to it."""

    def __init__(self, skipped: int) -> None:
        super().__init__(f"the reader lagged by {skipped} events")
        self.skipped = skipped


class EventReader:
    """Reads one prediction's events from an index on, in batches of whatever is there.

    It never holds up the prediction or another reader: beyond `backlog` events not taken, or `MAX_PRINTED` characters
    of printed text and values of metrics in them, it gives up.
    """

    def __init__(self, prediction: Prediction, start: int | None = None, *, backlog: int = DEFAULT_BACKLOG) -> None:
        """Begin at index `start`; raise `EventsDroppedError` if the log no longer holds it.

        Without `start`, begin with the first event: for those who have created the prediction in this turn of the loop.
        Events that were dropped all the same are those of a reader that is too slow: `batch` raises.
        """
        self._log = prediction.log
        self._backlog = backlog
        self._printed = 0  # characters in what has come since the last batch
        self._skipped = 0
        self._pending: list[Event] = []
        try:
            self._pending = self._log.read(self._log.begin if start is None else start)
        except EventsDroppedError as error:
            if start is not None:
                raise
            self._skipped, self._backlog = error.skipped, 0
        self._waiter: asyncio.Future[None] | None = None
        self._log.listen(self._on_event)

    async def batch(self) -> list[Event]:
        """Wait for events and return all there are; the last of all is one of `LAST`. Raises `LaggedError`.

        After a `wake` there may be none.
        """
        if not self._pending and not self._skipped:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._skipped:
            raise LaggedError(self._skipped)
        events, self._pending = self._pending, []
        self._printed = 0
        return events

    def wake(self) -> None:
        """Wake the reader if it waits for a batch; do nothing otherwise."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Stop reading."""
        self._log.unlisten(self._on_event)
        self._pending = []

    def _on_event(self, event: Event) -> None:
        if type(event) is not Output:  # nearly all are outputs
            self._printed += printed_in(event)
            if self._printed > MAX_PRINTED:
                self._backlog = 0
        if len(self._pending) < self._backlog:
            self._pending.append(event)
        else:
            self._skipped += 1 + len(self._pending)
            self._pending = []
            self._backlog = 0  # it takes no further ones
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ChangeReader:
    """Tells that a prediction has changed, not how: for a reader that sends the latest state as a whole.

    It holds two flags and no events, so a slow reader costs nothing.
    """

    def __init__(
        self, prediction: Prediction, kinds: frozenset[type[Event]], *, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """Watch for events of these `kinds`, from the first one on, and for the end; call `on_end` when it comes."""
        self._on_end = on_end
        self._log = prediction.log
        self._kinds = kinds
        self._waiter: asyncio.Future[None] | None = None
        self.changed = False  # since the reader last set it to False
        self.over = False
        for event in self._log.read(self._log.first_index):
            self._on_event(event)
        self._log.listen(self._on_event)

    async def change(self) -> None:
        """Wait until there has been a change, or the end."""
        while not (self.changed or self.over):
            await self._wait()

    async def end(self, until: float) -> None:
        """Wait for the end, or for this time on the loop's clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not self.over:
                    await self._wait()

    def close(self) -> None:
        """Stop reading."""
        self._log.unlisten(self._on_event)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _on_event(self, event: Event) -> None:
        if type(event) in LAST:
            self.over = True
            self._on_end()
        elif type(event) not in self._kinds or self.changed:
            return
        else:
            self.changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def replay_start(prediction: Prediction) -> int:
    """Return the position of a late reader: the first event, or now if no history is kept.

    Raises `EventsDroppedError` when more events have been than the history holds.
    """
    count, history = prediction.log.next_index, prediction.log.history
    if history == 0:
        return count
    if count > history:
        raise EventsDroppedError(count - history)
    return 0


def completion(prediction: Prediction) -> asyncio.Future[None]:
    """Return a future that is done when the prediction has ended."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if prediction.is_terminal:
        done.set_result(None)
        return done

    def on_end() -> None:
        if not done.done():
            done.set_result(None)

    prediction.log.listen_for_end(on_end)
    done.add_done_callback(lambda _done: prediction.log.unlisten_for_end(on_end))  # its client may have left
    return done
