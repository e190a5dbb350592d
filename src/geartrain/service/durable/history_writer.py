"""Writes what happens to a prediction into its row: checkpoints while it runs, and its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.events import LAST, MAX_PRINTED, Event, Log, Metric, printed_in
from geartrain.domain.predictions.ledger import Checkpoint, Delivery, End, Hold, Ownership
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.durable.history import encode_end, encode_events
from geartrain.service.ledger import StorePort

CHECKPOINT_INTERVAL: Final = 0.5  # seconds: the least time between two checkpoints of a run
MAX_UNWRITTEN: Final = 2 * MAX_PRINTED
"""Characters of printed text that wait for the store; beyond that the oldest half of them is dropped."""

MAX_RECORDED: Final = MAX_PRINTED
"""Bytes of memory of recorded values that wait for the store; beyond that only what they have come to is kept."""

MOST_EVENTS: Final = 16_384
"""Events of one part: it is read in one step, which must not take long."""

_METRIC: Final = 128  # bytes of memory of the event of a metric, without a value that is no number
_MANY: Final = 1024  # outputs from which on an end is written in a thread
_LARGE: Final = 262_144  # bytes of outputs and printed text, likewise
_PAUSE: Final = 0.1  # seconds before an end that could not be written is tried again; doubled each time
_LONGEST_PAUSE: Final = 2.0
_PATIENCE: Final = 5.0  # seconds for which a client waits for an end that cannot be written

_encode: Final = msgspec.msgpack.Encoder().encode

Note = Callable[[GeartrainError | None], None]


class HistoryWriter:
    """The events of one run, in parts. A part that could not be written is written again, as the same part."""

    finishing: asyncio.Future[Hold]  # once the end is being written

    def __init__(self, store: StorePort, ownership: Ownership, prediction: Prediction, *, note: Note) -> None:
        """`note` hears whether the store has answered."""
        self._store = store
        self._ownership = ownership
        self._prediction = prediction
        self._note = note
        self._heed: tuple[Callable[[Hold], None], ...] = ()  # receivers of the store's answers to checkpoints
        self._events: list[Event] = []  # of no part yet
        self._printed = 0  # characters in them
        self._recorded = 0  # bytes of memory of the metrics in them
        self._written: set[str] = set()  # the names of metrics in the parts that are written, or are being written
        self._part = b""  # that is being written, or could not be
        self._parts = 0  # that are written
        self._timer: asyncio.TimerHandle | None = None  # until the next checkpoint
        self._writing: asyncio.Future[None] | None = None
        prediction.log.listen(self._on_event)

    # while it runs

    def begin_checkpoints(self, heed: Callable[[Hold], None]) -> None:
        """Write checkpoints during the run. The callback receives the store's answers about the row."""
        self._heed = (heed,)

    def stop_checkpoints(self) -> None:
        """Begin no further one."""
        self._heed = ()
        if self._timer is not None:
            self._timer.cancel()

    def _on_event(self, event: Event) -> None:
        if type(event) in LAST:
            return
        self._events.append(event)
        if type(event) is Log:
            self._printed += len(event.data)
            if self._printed > MAX_UNWRITTEN:
                self._drop_printed(self._printed - MAX_UNWRITTEN // 2)
        elif type(event) is Metric:
            self._recorded += _size(event)
            if self._recorded > MAX_RECORDED:
                self._fold_metrics()
        if self._heed and self._timer is None and self._writing is None:
            self._wait()

    def _drop_printed(self, excess: int) -> None:
        """Drop the oldest printed text: the store is away, or the run prints faster than it writes."""
        kept: list[Event] = []
        for event in self._events:
            if excess > 0 and type(event) is Log:
                excess -= len(event.data)
                self._printed -= len(event.data)
            else:
                kept.append(event)
        self._events = kept

    def _fold_metrics(self) -> None:
        """Put what the metrics have come to in place of the values that wait."""
        now = self._prediction.metrics
        gone = [Metric(name, None, "delete") for name in self._written if name not in now]
        values = [(name, _encode(value)) for name, value in now.items()]
        folded = [Metric(name, msgspec.Raw(value), "replace") for name, value in values]
        self._events = [*(event for event in self._events if type(event) is not Metric), *gone, *folded]
        self._recorded = sum(_size(event) for event in (*gone, *folded))

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECKPOINT_INTERVAL, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._writing = asyncio.ensure_future(self._checkpoint())

    async def _checkpoint(self) -> None:
        try:
            hold = await self._write_part()
            while len(self._events) > MOST_EVENTS:
                hold = await self._write_part()
        except GeartrainError as error:
            self._note(error)
        else:
            for heed in self._heed:
                heed(hold)
        self._writing = None
        if self._heed and (self._events or self._part):
            self._wait()

    async def _write_part(self) -> Hold:
        if not self._part:
            events = self._events[:MOST_EVENTS]
            del self._events[:MOST_EVENTS]
            self._take_out(events)
            self._part = await asyncio.to_thread(encode_events, events)
        prediction = self._prediction
        checkpoint = Checkpoint(prediction.status, prediction.started_at, self._part, self._parts)
        hold = await self._store.ledger.checkpoint(self._ownership, checkpoint)
        self._part = b""
        self._parts += 1
        return hold

    def _take_out(self, events: Sequence[Event]) -> None:
        """Note that events no longer wait."""
        for event in events:
            if type(event) is Log:
                self._printed -= len(event.data)
            elif type(event) is Metric:
                self._recorded -= _size(event)
                if event.mode == "delete":
                    self._written.discard(event.name)
                else:
                    self._written.add(event.name.partition(".")[0])

    # at its end

    def finish(
        self,
        draft: Prediction,
        deliveries: Callable[[], tuple[Delivery, ...]],
        *,
        for_ever: bool,
        then: Callable[[asyncio.Future[Hold]], None],
    ) -> None:
        """Write the end that a draft of the prediction has reached, trying until it is written.

        `deliveries` makes the webhooks that tell of it, perhaps in a thread. `then` gets the future that has come of
        it. Unless `for_ever`, it raises what the store raises when a client has waited too long.
        """

        def end() -> End:
            return End(
                status=draft.status,
                completed_at=draft.created_at if draft.completed_at is None else draft.completed_at,
                started_at=draft.started_at,
                error=draft.error or "",
                events=encode_end(self._events, self._prediction, draft),
                deliveries=deliveries(),
                part=self._parts,
            )

        keep_trying = functools.partial(self._keep_trying, end, for_ever=for_ever, then=then)
        if self._writing is None and not self._part and _is_small(draft):
            # Nearly always that is all. It needs no task.
            self.finishing = self._store.ledger.finish(self._ownership, end())
            self.finishing.add_done_callback(functools.partial(self._on_tried, keep_trying, then))
        else:
            keep_trying()

    def _on_tried(
        self,
        keep_trying: Callable[[], None],
        then: Callable[[asyncio.Future[Hold]], None],
        tried: asyncio.Future[Hold],
    ) -> None:
        error = None if tried.cancelled() else tried.exception()
        if isinstance(error, GeartrainError):
            self._note(error)
            keep_trying()
        else:
            then(tried)

    def _keep_trying(
        self, make: Callable[[], End], *, for_ever: bool, then: Callable[[asyncio.Future[Hold]], None]
    ) -> None:
        self.finishing = asyncio.ensure_future(self._until_written(make, for_ever=for_ever))
        self.finishing.add_done_callback(then)

    async def _until_written(self, make: Callable[[], End], *, for_ever: bool) -> Hold:
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        clock, pause = asyncio.get_running_loop().time, _PAUSE
        limit = clock() + _PATIENCE
        end: End | None = None
        while True:
            try:
                while self._part or len(self._events) > MOST_EVENTS:
                    if await self._write_part() is Hold.FENCED:
                        return Hold.FENCED
                if end is None:
                    end = await asyncio.to_thread(make)
                return await self._store.ledger.finish(self._ownership, msgspec.structs.replace(end, part=self._parts))
            except GeartrainError as error:
                self._note(error)
                if not for_ever and clock() > limit:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _size(metric: Metric) -> int:
    """Return about how many bytes of memory the event of a metric takes."""
    value = metric.value
    return _METRIC + (len(value) if type(value) is msgspec.Raw else printed_in(metric))


def _is_small(draft: Prediction) -> bool:
    """Return True if an end takes no time to write, nor the webhook that tells of it."""
    chunks = draft.chunks
    return len(chunks) <= _MANY and sum(map(len, chunks)) + draft.printed.size <= _LARGE
