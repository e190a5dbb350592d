"""A request over HTTP/2, from its head to its answer: the `Responder` of its exchange."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.http2.interface import BodyReceived, ErrorCode, Event
from geartrain.transport.wire.bodies import PLACED, BufferBudget, GatheredBody, GatheringReader, PartsBody
from geartrain.transport.wire.exchange import (
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    ClientGoneError,
    Exchange,
    Fields,
    PartsExchange,
    Record,
    abandon,
)
from geartrain.transport.wire.http2_output import HELD, TO_STREAM_STATE, StreamState
from geartrain.transport.wire.limits import WireError
from geartrain.transport.wire.outgoing import BUG, has_body, refusal

_COPIED: Final = 65_536  # bytes up to which a piece that waits is copied: a view keeps all that came with it

Acknowledge = Callable[[int], None]  # lets the client send so many bytes more
if TYPE_CHECKING:
    from geartrain.transport.wire.http2_connection import Http2Connection

logger = logging.getLogger(__name__)

_BODY: Final = StreamState.BODY
_PARTS: Final = StreamState.PARTS
_RUNNING: Final = StreamState.RUNNING
_OVER: Final = StreamState.OVER


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
        self._resume()  # for the window of the connection, which the next streams need
        self._acknowledge = _ignore  # the stream's, which refers to this body

    def _resume(self) -> None:
        credit, self._credit = self._credit, 0
        if credit:
            self._acknowledge(credit)


class Http2Stream:
    """One request and its answer."""

    __slots__ = (
        "_exchange",
        "_is_counted",
        "_is_head",
        "_is_streaming",
        "_owner",
        "id",
        "received",
        "record",
        "since",
        "state",
    )

    def __init__(self, owner: Http2Connection, stream: int, *, record: Record, is_head: bool) -> None:
        """`is_head`: only the head of the answer is wanted."""
        self.id = stream
        self.record = record
        self.state = _BODY
        self.since = owner.context.now  # when its head, or the last look at its pace, was
        self.received = 0  # bytes of the body since then
        self._owner = owner
        self._is_head = is_head
        self._is_counted = False  # in the room of the connection
        self._is_streaming = False  # a part of the answer has been written
        self._exchange: Exchange | PartsExchange | None = None

    def step(self, wanted: StreamState) -> None:
        """Go to another state; raise `IllegalStepError` if there is no such step."""
        self.state = TO_STREAM_STATE[wanted](self.state)

    @property
    def is_bidirectional(self) -> bool:
        """True if the client may take its time between two pieces of the body."""
        return False

    @property
    def is_full(self) -> bool:
        """True if the reader of the body has to take something first."""
        return False

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""
        return False

    def take(self, body: BodyReceived | BodyParts) -> None:
        """Drop a part of an unwanted body."""
        self._acknowledge(body.credit)

    def close_body(self) -> None:
        """Hold nothing of the body."""

    def _acknowledge(self, size: int) -> None:
        self._owner.acknowledge(self.id, size)

    # calls of its exchange

    def respond(self, answer: Answer) -> None:
        """Send a whole answer. See `Responder`."""
        if self.state is _OVER:
            return
        owner, stream, parts, record = self._owner, self.id, answer.parts, self.record
        sender, own = owner.codec.sender, record.fields()
        trailers = answer.trailers
        if trailers:
            sender.head(stream, answer.status, answer.headers, own=own)
            sender.body(stream, parts)
            sender.trailers(stream, trailers)
            record.sent = size = _size(parts)
            owner.room.note(size)
        elif not parts:
            trailers = answer.headers
            sender.head(stream, answer.status, trailers, own=own, is_last=True)
        elif self._is_head or not has_body(answer.status):
            sender.head(stream, answer.status, _fields(answer, owner.context.answers.date), own=own, is_last=True)
        else:
            sender.head(stream, answer.status, _fields(answer, owner.context.answers.date), own=own)
            sender.body(stream, parts, is_last=True)
            record.sent = size = _size(parts)
            owner.room.note(size)
        self.finish()
        if answer.error:
            record.error = answer.error
        record.end(answer.status, trailers)

    def open_stream(self, status: HTTPStatus, headers: Fields) -> Http2BodyStream:
        """Send the head of an answer whose body follows in pieces. See `Responder`."""
        owner = self._owner
        self._is_streaming = True
        self._discount()
        if self.state is not _OVER:
            date = (b"date", owner.context.answers.date)
            owner.codec.sender.head(self.id, status, (*headers, date), own=self.record.fields())
            owner.output.schedule()
        return Http2BodyStream(self, owner, status, is_silent=self._is_head)

    # its end

    def refuse(self, error: WireError) -> None:
        """Answer what cannot be served."""
        exchange, self._exchange = self._exchange, None
        if self._is_streaming:  # a second answer in the first would be taken for a part of it
            self.reset(ErrorCode.INTERNAL_ERROR)
        else:
            self.respond(refusal(error))
        abandon(exchange)

    def reset(self, code: ErrorCode) -> None:
        """End the request without an answer, or in the middle of one."""
        self._owner.codec.sender.reset(self.id, code)
        self.abandon()

    def finish(self) -> None:
        """Forget the request: its answer is complete."""
        self.step(_OVER)
        self._exchange = None
        self._discount()
        self.close_body()
        self._owner.leave(self.id)
        self._owner.output.schedule()

    def abandon(self) -> None:
        """Abandon the request: its client no longer wants it."""
        if self.state is _OVER:
            return
        exchange = self._exchange
        self.finish()
        abandon(exchange)
        self.record.leave()

    def _discount(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._owner.room.leave()

    def _fail(self) -> None:
        """Answer for an exchange that has raised what it must not."""
        if self._is_streaming:
            self.reset(ErrorCode.INTERNAL_ERROR)
        else:
            self.respond(BUG)


class WholeStream(Http2Stream):
    """A request whose exchange takes the body whole."""

    __slots__ = ("_accepted", "_body", "_credit", "_length")

    def __init__(
        self, owner: Http2Connection, stream: int, accepted: Accepted, *, record: Record, is_head: bool
    ) -> None:
        """`is_head`: as of `Http2Stream`."""
        super().__init__(owner, stream, record=record, is_head=is_head)
        self._accepted = accepted
        self._length = UNKNOWN_LENGTH  # of the body, by its head
        self._body: GatheredBody | None = None
        self._credit = 0  # bytes that the client may send when there is memory

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""
        return self._credit > 0

    def take(self, body: BodyReceived | BodyParts) -> None:
        """Take a part of the body, and run when it is whole."""
        if self.state is not _BODY:
            self._acknowledge(body.credit)
        elif body.is_last and self._body is None and body.credit <= PLACED:  # most bodies come at once
            self._acknowledge(body.credit)
            whole = bytes(body.parts[0]) if len(body.parts) == 1 else b"".join(body.parts)
            self.record.received = len(whole)
            if 0 < self._accepted.max_body < len(whole):
                self._refuse_size()
            else:
                self.run(whole)
        else:
            size = sum(map(len, body.parts))
            self.received += size
            self.record.received += size
            self._gather(body)

    def has_room_for(self, length: int) -> bool:
        """True if there may be memory for a body of this length; otherwise the request is refused."""
        self._length = length
        try:
            self._owner.context.budget.check(length)
        except WireError as error:
            self.refuse(error)
            return False
        return True

    def run(self, body: Body) -> None:
        """Hand the request to its exchange, when there is room for its answer: it is whole.

        One without a body does not wait: it may be a cancel, and runs no model.
        """
        self.step(_RUNNING)
        room = self._owner.room
        if body and (room.waiting or not room.is_free):
            room.wait(self.id, self, body)
        else:
            self.run_now(body)

    def run_now(self, body: Body) -> None:
        """Hand the request to its exchange now. See `run`."""
        self._is_counted = True
        self._owner.room.enter()
        try:
            self._exchange = exchange = self._accepted.new_exchange(self)
            exchange.receive(body)
        except Exception:
            logger.exception("a handler failed")
            self._fail()

    def close_body(self) -> None:
        """Hold nothing of the body."""
        body, self._body = self._body, None
        if body is not None:
            self._owner.context.budget.leave(self)
            body.close()
        credit, self._credit = self._credit, 0
        if credit:  # for the window of the connection, which the next streams need
            self._acknowledge(credit)

    def _gather(self, come: BodyReceived | BodyParts) -> None:
        body, budget = self._body, self._owner.context.budget
        if body is None:
            place = self._owner.context.places.find_by(self._accepted, come.parts[0], self._length)
            self._body = body = GatheredBody(self._accepted, budget, place)
        try:
            body.take(come.parts)
        except WireError as error:
            self.refuse(error)
            return
        if budget.is_spent:
            self._credit += come.credit
            budget.wait(self, self._go_on)
        else:
            self._acknowledge(come.credit)
        if body.is_too_large:
            self._refuse_size()
        elif come.is_last:
            self.run(body.whole())

    def _refuse_size(self) -> None:
        self.respond(self._accepted.refuse_size(self._accepted.max_body))

    def _go_on(self) -> None:
        """Let the client send on, and measure its pace anew: it had to wait for memory."""
        self.received = 0
        self.since = self._owner.context.now
        credit, self._credit = self._credit, 0
        self._acknowledge(credit)


class PartsStream(Http2Stream):
    """A request whose exchange reads the body as it comes."""

    __slots__ = ("_accepted", "_body")

    def __init__(
        self, owner: Http2Connection, stream: int, accepted: AcceptedInParts, *, record: Record, is_head: bool
    ) -> None:
        """`is_head`: as of `Http2Stream`."""
        super().__init__(owner, stream, record=record, is_head=is_head)
        self._accepted = accepted
        self._body = PiecewiseBody(accepted, self._acknowledge)

    @property
    def is_bidirectional(self) -> bool:
        """True if the client may take its time between two pieces."""
        return self._accepted.is_bidirectional

    @property
    def is_full(self) -> bool:
        """True if the reader of the body has to take something first."""
        return self._body.is_full

    def begin(self, *, is_whole: bool) -> None:
        """Hand the request to its exchange; `is_whole`: there is no body."""
        if is_whole:
            self._body.complete()
        self.step(_RUNNING if is_whole else _PARTS)
        context = self._owner.context
        try:
            self._exchange = exchange = self._accepted.new_exchange(self)
            if self._accepted.is_bidirectional:
                exchange.receive(self._body.messages(context.budget, context.limits.body_timeout))
            else:
                exchange.receive(self._body.reader)
        except Exception:
            logger.exception("a handler failed")
            self._fail()

    def take(self, body: BodyReceived | BodyParts) -> None:
        """Hand on a part of the body."""
        if self.state is not _PARTS:
            self._acknowledge(body.credit)
            return
        size = sum(map(len, body.parts))
        self.received += size
        self.record.received += size
        self._body.take(body.parts, body.credit)
        if body.is_last:
            self._body.complete()
            self.step(_RUNNING)

    def close_body(self) -> None:
        """Hold nothing of the body, and tell its reader so."""
        self._body.close()


class Http2BodyStream:
    """The body of an answer in pieces, and its trailers. See `MessageStream`."""

    __slots__ = ("_is_silent", "_owner", "_status", "_stream")

    def __init__(self, stream: Http2Stream, owner: Http2Connection, status: HTTPStatus, *, is_silent: bool) -> None:
        """`is_silent`: nothing is sent, as in the answer to HEAD."""
        self._stream = stream
        self._owner = owner
        self._status = status
        self._is_silent = is_silent

    def send(self, *parts: Buffer) -> None:
        """Send a piece without waiting. See `MessageStream`."""
        if self._stream.state is not _OVER and not self._is_silent:
            self._owner.codec.sender.body(self._stream.id, parts)
            self._stream.record.sent += _size(parts)
            self._owner.output.schedule()

    async def write(self, data: bytes) -> None:
        """Send a piece; wait while the client does not read. Raises `ClientGoneError`."""
        if data:
            self.send(data)
        await self.drained()

    async def drained(self) -> None:
        """Wait while the client does not read. Raises `ClientGoneError`."""
        stream, owner = self._stream, self._owner
        while stream.state is not _OVER and owner.codec.sender.unsent(stream.id) > HELD:
            await owner.output.room(stream.id)
        if stream.state is _OVER:
            raise ClientGoneError

    def end(self, trailers: Fields = ()) -> None:
        """Complete the body. Does nothing if the client has disconnected."""
        stream = self._stream
        if stream.state is _OVER:
            return
        if trailers:
            self._owner.codec.sender.trailers(stream.id, trailers)
        else:
            self._owner.codec.sender.body(stream.id, (), is_last=True)
        stream.finish()
        stream.record.end(self._status, trailers)

    def abort(self) -> None:
        """Break off, so that the client notices that the body is not whole. Does nothing if it has disconnected."""
        if self._stream.state is not _OVER:
            self._stream.reset(ErrorCode.INTERNAL_ERROR)
            self._owner.output.schedule()


def _size(parts: Sequence[Buffer]) -> int:
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def _fields(answer: Answer, date: bytes) -> Fields:
    """Return the fields of an answer without trailers."""
    if not has_body(answer.status):
        return (*answer.headers, (b"date", date))
    return (*answer.headers, (b"content-length", b"%d" % _size(answer.parts)), (b"date", date))
