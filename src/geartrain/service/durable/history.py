"""The history of a durable prediction: its events as a store keeps them, their writing, and the way back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, cast

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.events import (
    DEFAULT_CAPACITY,
    LAST,
    MAX_PRINTED,
    Event,
    Log,
    LogSource,
    Metric,
    MetricMode,
    Output,
    Start,
    printed_in,
)
from geartrain.domain.predictions.ledger import Checkpoint, Delivery, End, Hold, Ownership, Row, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CallRecord, CallRecords, Prediction, PredictionRecord
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.ledger import StorePort


class _Start(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """See `Start`."""


class _Output(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """See `Output`; the index follows from the order. Reading makes no copy of the chunk."""

    chunk: memoryview


class _Log(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """See `Log`."""

    source: LogSource
    data: str


class _Metric(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """See `Metric`."""

    name: str
    value: Any
    mode: MetricMode


class _Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """See `CallRecord`."""

    parent: str
    model: str
    depth: int
    created: float
    id: str
    version: str
    started: float
    completed: float
    status: Status
    error: str
    shared: int


class _Calls(msgspec.Struct, frozen=True, array_like=True):
    """The calls that were made for a prediction; `admitted` is the begin of the prediction, by the same clock."""

    admitted: float
    records: list[_Call]
    left_out: int


class _End(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The end: the output if the run has given one as a whole, and how long the run took in seconds."""

    output: memoryview | None
    predict_time: float | None
    calls: _Calls | None = None  # older servers read the end without them


class _EndWithoutCalls(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The same, as nearly all ends are written."""

    output: memoryview | None
    predict_time: float | None


EndedCalls = _Calls
"""The calls of a prediction that has ended, in the form in which they are kept."""

_Kept = _Start | _Output | _Log | _Metric | _End
_Ended = _End | _EndWithoutCalls

_SOME: Final = 4_096  # events of a piece
_IN_PIECES: Final = b"\xc1"  # begins a part of several lists, each behind its length; no value of msgpack begins so
_LENGTH: Final = 8  # bytes
_LARGE: Final = 65_536  # bytes of an output that is not copied by the encoder
# The beginnings of values in msgpack, before their length in four bytes: a list, an `_Output`, and both ends.
_ARRAY: Final = b"\xdd"
_OUTPUT: Final = b"\x92\xa1o\xc6"
_WHOLE: Final = b"\x93\xa1e\xc6"
_WHOLE_WITH_CALLS: Final = b"\x94\xa1e\xc6"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Kept]).decode


def encode_events(events: Iterable[Event]) -> bytes:
    """Return events as one part of a history; the end is written by `encode_end`."""
    return _write(events)


def encode_end(
    events: Iterable[Event], prediction: Prediction, draft: Prediction, *, calls: EndedCalls | None = None
) -> bytes:
    """Return the last part: events that are not written yet, and how the `draft` of a prediction has ended.

    `calls`: from `ended_calls`.
    """
    whole = draft.output if len(draft.chunks) > len(prediction.chunks) else None
    output = None if whole is None else memoryview(bytes(whole))
    if calls is None:
        return _write(events, _EndWithoutCalls(output, draft.predict_time))
    return _write(events, _End(output, draft.predict_time, calls))


def ended_calls(draft: Prediction) -> EndedCalls | None:
    """Return the calls of a prediction as they are kept; None without any.

    Those that go on at its end are canceled by it, and are kept as such.
    """
    calls = draft.calls
    if calls is None:
        return None
    end = draft.created_at if draft.completed_at is None else draft.completed_at
    return _Calls(draft.record.admitted, [_ended(call, end) for call in calls.records], calls.left_out)


def _ended(call: CallRecord, end: float) -> _Call:
    is_over = call.completed != 0
    return _Call(
        call.parent,
        _encodable(call.model),
        call.depth,
        call.created,
        call.id,
        call.version,
        call.now()[1],
        call.completed if is_over else max(end, call.created),
        call.status if is_over else Status.CANCELED,
        _encodable(call.error),
        call.shared,
    )


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # halves of characters have no code


def _write(events: Iterable[Event], *ends: _Ended) -> bytes:
    """Encode a list. A long one is in pieces: other threads run in between, at writing and at reading."""
    remaining = iter(events)
    pieces: list[bytes] = []
    last = [*islice(remaining, _SOME)]
    while following := [*islice(remaining, _SOME)]:
        pieces.append(_list_of(_kept(last)))
        last = following
    pieces.append(_list_of([*_kept(last), *ends]))
    if len(pieces) == 1:
        return pieces[0]
    return b"".join([_IN_PIECES, *(part for piece in pieces for part in (len(piece).to_bytes(_LENGTH, "big"), piece))])


def _read(part: bytes) -> Iterator[list[_Kept]]:
    """Decode the pieces of a list that `_write` has encoded."""
    if part[:1] != _IN_PIECES:
        yield _decode(part)
        return
    view, end = memoryview(part), 1
    while end < len(part):
        begin = end + _LENGTH
        end = begin + int.from_bytes(view[end:begin], "big")
        yield _decode(view[begin:end])


def _list_of(kept: Sequence[_Kept | _EndWithoutCalls]) -> bytes:
    """Encode one list. Large outputs are joined to it: that lets other threads run, and to encode them does not."""
    if not any(_size(one) > _LARGE for one in kept):
        return _encode(kept)
    parts: list[Buffer] = [_ARRAY + len(kept).to_bytes(4, "big")]
    for one in kept:
        size = _size(one)
        match one:
            case _Output(chunk) if size > _LARGE:
                parts += (_OUTPUT + size.to_bytes(4, "big"), chunk)
            case _EndWithoutCalls(memoryview() as output, predict_time) if size > _LARGE:
                parts += (_WHOLE + size.to_bytes(4, "big"), output, _encode(predict_time))
            case _End(memoryview() as output, predict_time, calls) if size > _LARGE:
                head = _WHOLE_WITH_CALLS + size.to_bytes(4, "big")
                parts += (head, output, _encode(predict_time), _encode(calls))
            case _:
                parts.append(_encode(one))
    return b"".join(parts)


def _size(one: _Kept | _EndWithoutCalls) -> int:
    match one:
        case _Output(chunk):
            return len(chunk)
        case _End(memoryview() as output) | _EndWithoutCalls(memoryview() as output):
            return len(output)
    return 0


def _kept(events: Iterable[Event]) -> list[_Kept]:
    found: list[_Kept] = []
    for event in events:
        match event:
            case Output(chunk):
                found.append(_Output(cast("memoryview", bytes(chunk))))  # the garbage collector follows no bytes
            case Log(source, data):
                found.append(_Log(source, data))
            case Metric(name, value, mode):
                found.append(_Metric(name, value, mode))
            case Start():
                found.append(_Start())
    return found


def restore(row: Row, parts: Sequence[bytes], *, history: int = DEFAULT_CAPACITY) -> Prediction:
    """Return the prediction of a row with these parts of its history. `history`: as of `EventLog.keep`."""
    key = row.ownership.key
    record = PredictionRecord(key.id, row.created_at, row.created_at, model=key.model, version=row.version)
    prediction = Prediction(record, row.echo, row.created_at)
    prediction.log.keep(history)
    end = _End(None, None)
    for part in parts:
        for kept in chain.from_iterable(_read(part)):
            if isinstance(kept, _End):
                end = kept
            else:
                _add(prediction, kept, row)
    if row.state is RowState.ENDED:
        _end(prediction, row, end)
    return prediction


def _add(prediction: Prediction, kept: _Start | _Output | _Log | _Metric, row: Row) -> None:
    match kept:
        case _Start():
            prediction.start(row.created_at if row.started_at is None else row.started_at)
        case _Output(chunk):
            prediction.add_output(_own(chunk))
        case _Log(source, data):
            prediction.add_log(source, data)
        case _Metric(name, value, mode):
            prediction.add_metric(name, value, mode)


def _end(prediction: Prediction, row: Row, end: _End) -> None:
    at = row.created_at if row.completed_at is None else row.completed_at
    if row.status is Status.SUCCEEDED:
        output = None if end.output is None else _own(end.output)
        prediction.succeed(output, at=at, predict_time=end.predict_time)
    elif row.status is Status.CANCELED:
        prediction.cancel(at=at, error=row.error or None)
    else:
        prediction.fail(row.error, at=at)
    prediction.predict_time = end.predict_time
    if end.calls is not None:
        prediction.record.admitted = end.calls.admitted
        prediction.calls = _calls_of(end.calls)


def _calls_of(kept: _Calls) -> CallRecords:
    calls = CallRecords()
    calls.left_out = kept.left_out
    for each in kept.records:
        record = CallRecord(each.parent, each.model, each.depth, each.created, id=each.id, version=each.version)
        record.started, record.completed = each.started, each.completed
        record.status, record.error, record.shared = each.status, each.error, each.shared
        calls.records.append(record)
    return calls


def _own(text: memoryview) -> Buffer:
    """Return a small text as an object of its own; a large one stays in its part, as a copy holds the interpreter."""
    return text if len(text) > _LARGE else bytes(text)


CHECKPOINT_INTERVAL: Final = 0.5  # seconds: the least time between two checkpoints of a run
MAX_UNWRITTEN: Final = 2 * MAX_PRINTED
"""Characters of printed text that wait for the store; beyond that the oldest half of them is dropped."""

MAX_RECORDED: Final = MAX_PRINTED
"""Bytes of memory of recorded values that wait for the store; beyond that only what they have come to is kept."""

MOST_EVENTS: Final = 16_384
"""Events of one part: it is read in one step, which must not take long."""

_METRIC: Final = 128  # bytes of memory of the event of a metric, without a value that is no number
_MANY: Final = 1024  # outputs from which on an end is written in a thread
_LARGE_END: Final = 262_144  # bytes of outputs and printed text, likewise
_PAUSE: Final = 0.1  # seconds before an end that could not be written is tried again; doubled each time
_LONGEST_PAUSE: Final = 2.0
_PATIENCE: Final = 5.0  # seconds for which a client waits for an end that cannot be written

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
        self._receivers: tuple[Callable[[Hold], None], ...] = ()  # of the store's answers to checkpoints
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

    def begin_checkpoints(self, receive: Callable[[Hold], None]) -> None:
        """Write checkpoints during the run. The callback receives the store's answers about the row."""
        self._receivers = (receive,)

    def stop_checkpoints(self) -> None:
        """Begin no further one."""
        self._receivers = ()
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
            self._recorded += _size_of(event)
            if self._recorded > MAX_RECORDED:
                self._fold_metrics()
        if self._receivers and self._timer is None and self._writing is None:
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
        self._recorded = sum(_size_of(event) for event in (*gone, *folded))

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
            for receive in self._receivers:
                receive(hold)
        self._writing = None
        if self._receivers and (self._events or self._part):
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
                self._recorded -= _size_of(event)
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
        calls = ended_calls(draft)  # they change yet, so not in a thread

        def end() -> End:
            return End(
                status=draft.status,
                completed_at=draft.created_at if draft.completed_at is None else draft.completed_at,
                started_at=draft.started_at,
                error=draft.error or "",
                events=encode_end(self._events, self._prediction, draft, calls=calls),
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


def _size_of(metric: Metric) -> int:
    """Return about how many bytes of memory the event of a metric takes."""
    value = metric.value
    return _METRIC + (len(value) if type(value) is msgspec.Raw else printed_in(metric))


def _is_small(draft: Prediction) -> bool:
    """Return True if an end takes no time to write, nor the webhook that tells of it."""
    chunks, calls = draft.chunks, 0 if draft.calls is None else draft.calls.memory
    return len(chunks) <= _MANY and sum(map(len, chunks)) + draft.printed.size + calls <= _LARGE_END
