"""A client's connection over HTTP/1.1: its states, its requests, one after the other, and their answers.

A request is read when the one before it is answered and its answer has been taken, so answers come in order and a
client that does not read is not served. Bytes of later requests are held, up to a bound; beyond it nothing is read.

Most requests are a small POST that comes whole, with a head that is known. They pass through `data_received`, the
exchange and `respond`: no task, no timer, no copy of the body.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import msgspec

from geartrain.domain.state_machine import steps_to
from geartrain.transport.http2.interface import PREFACE
from geartrain.transport.wire.bodies import Framing, GatheredBody, LengthFraming, PartsBody, framing
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import (
    NO_BODY,
    NO_RECORD,
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    BodyReader,
    Exchange,
    Head,
    PartsExchange,
    Record,
    abandon,
)
from geartrain.transport.wire.heads import END, PLAIN, HeadReader, KnownHead, RequestHead, Terms, terms_of
from geartrain.transport.wire.limits import WireError
from geartrain.transport.wire.outgoing import BUG, CONTINUE, UNREADABLE, BodyStream, Outgoing, peer_of, refusal

if TYPE_CHECKING:
    from geartrain.transport.wire.server import Connections

logger = logging.getLogger(__name__)

_HELD: Final = 65_536  # bytes of later requests, beyond which nothing is read
_DISCARDED: Final = 262_144  # bytes of a body that are read only to keep the connection
_LINGERED: Final = 16 * 1024**2  # bytes that are thrown away behind the last answer
_BEGINNING: Final = 16_384  # bytes of a request that are read before its head is known; the body among them is copied
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)+")  # some clients put one behind a body (RFC 9112, section 2.2)
_END_SIZE: Final = len(END)
_HTTP_2: Final = "h2"  # in ALPN
_NO_ROOM: Final = memoryview(b"")
_COMPLETE: Final = LengthFraming(0)


class ConnectionState(StrEnum):
    """State of a connection."""

    IDLE = "idle"  # between two requests: nothing of the next one has been read
    PREFACE = "preface"  # the input may be the beginning of a connection over HTTP/2
    HEAD = "head"  # a part of a head has come
    BODY = "body"  # a body is being gathered
    PARTS = "parts"  # a body is coming, and its exchange reads it in pieces
    RUNNING = "running"  # the request is whole, and its answer is not
    DISCARD = "discard"  # the answer has been written, and the rest of a short body is thrown away
    LINGER = "linger"  # the last answer has been written; what comes is thrown away, so that the client can read it
    CLOSING = "closing"  # the output is still being sent
    CLOSED = "closed"


_S = ConnectionState
CONNECTION_STEPS: Final[dict[ConnectionState, frozenset[ConnectionState]]] = {
    # Past the head: one that is known is not read.
    _S.IDLE: frozenset({_S.PREFACE, _S.HEAD, _S.BODY, _S.PARTS, _S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.PREFACE: frozenset({_S.HEAD, _S.BODY, _S.PARTS, _S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.HEAD: frozenset({_S.BODY, _S.PARTS, _S.RUNNING, _S.DISCARD, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.BODY: frozenset({_S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.PARTS: frozenset({_S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    # LINGER: more has come behind a request that wants the connection closed.
    _S.RUNNING: frozenset({_S.IDLE, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.DISCARD: frozenset({_S.IDLE, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.LINGER: frozenset({_S.CLOSING, _S.CLOSED}),
    _S.CLOSING: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}

TO_CONNECTION_STATE: Final = steps_to("a connection", CONNECTION_STEPS)

OVER: Final = frozenset({_S.LINGER, _S.CLOSING, _S.CLOSED})
"""The states in which the last answer has been written."""

_IDLE: Final = ConnectionState.IDLE
_PREFACE: Final = ConnectionState.PREFACE
_HEAD: Final = ConnectionState.HEAD
_BODY: Final = ConnectionState.BODY
_PARTS: Final = ConnectionState.PARTS
_RUNNING: Final = ConnectionState.RUNNING
_BEFORE_HEAD: Final = frozenset({_IDLE, _PREFACE})
READING_HEAD: Final = frozenset({_PREFACE, _HEAD})
READING_BODY: Final = frozenset({_BODY, _PARTS, ConnectionState.DISCARD})
_to_idle: Final = TO_CONNECTION_STATE[_IDLE]
_to_running: Final = TO_CONNECTION_STATE[_RUNNING]


class Connection(asyncio.Protocol):
    """The connection of one client, which is the `Responder` of the request at hand."""

    def __init__(self, context: WireContext, owner: Connections) -> None:
        self.state = _IDLE
        self.since = context.now  # when this state began, or the body last brought enough
        self.terms: Terms = PLAIN  # of the request at hand, as is the record
        self.record: Record = NO_RECORD
        self.peer = ""
        self.reader: RequestReader  # until it is closed: they refer to each other
        self.outgoing: Outgoing
        self.transport: asyncio.Transport
        self._context = context
        self._owner = owner
        self._exchange: Exchange | PartsExchange | None = None
        self._is_streaming = False  # a part of the answer has been written

    # calls of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.peer = peer_of(transport)
        self.outgoing = Outgoing(self.transport, self._context)
        self.reader = RequestReader(self, self._context)
        self._owner.add(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == _HTTP_2 and self.state is _IDLE:
            self.switch(b"")

    def data_received(self, data: bytes) -> None:
        """Read requests; one that is whole and whose head is known is served at once."""
        if self.state is _IDLE and not self.reader.held and not self.outgoing.is_paused:
            end = data.find(END) + _END_SIZE
            known = self._context.heads.find(data[:end])
            if known is not None and len(data) - end == known.length:
                self.terms = known.terms
                self.record = record = known.new_record(self.peer)
                record.received = known.length
                self.reader.is_first = False
                self.run(known.accepted, data[end:])
                return
        self.reader.take(data)

    def pause_writing(self) -> None:
        """Stop reading: a client that does not take its answers gets no further ones."""
        self.outgoing.pause()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on: the client has taken what was written."""
        self.outgoing.resume()
        self.reader.read_on()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        """Abandon the request at hand: a client that has disconnected no longer wants it."""
        self.step(ConnectionState.CLOSED)
        self.outgoing.close()
        self.reader.close()
        exchange, self._exchange = self._exchange, None
        record, self.record = self.record, NO_RECORD
        self._owner.remove(self)
        abandon(exchange)
        record.leave()
        del self.reader

    # calls of its reader

    def switch(self, data: bytes) -> None:
        """Leave the transport to a connection over HTTP/2, with what has come already."""
        self.step(ConnectionState.CLOSED)
        self.outgoing.close()
        self._owner.switch(self, data)
        del self.reader

    def step(self, wanted: ConnectionState) -> None:
        """Go to another state; raise `IllegalStepError` if there is no such step."""
        self.state = TO_CONNECTION_STATE[wanted](self.state)
        self.since = self._context.now

    def run(self, accepted: Accepted, body: Body) -> None:
        """Hand a whole request to its exchange."""
        self.state = _to_running(self.state)
        self.since = self._context.now
        try:
            self._exchange = exchange = accepted.new_exchange(self)
            exchange.receive(body)
        except Exception:
            logger.exception("a handler failed")
            self._fail()

    def run_in_parts(self, accepted: AcceptedInParts, body: BodyReader, *, is_whole: bool) -> None:
        """Hand a request to its exchange whose body is still coming, unless it `is_whole`."""
        self.step(_RUNNING if is_whole else _PARTS)
        try:
            self._exchange = exchange = accepted.new_exchange(self)
            exchange.receive(body)
        except Exception:
            logger.exception("a handler failed")
            self._fail()

    def answer(self, answer: Answer, then: ConnectionState) -> None:
        """Answer a request whose body is not read to its end.

        `then` is DISCARD if the rest of it is short, so that the connection can go on, or LINGER.
        """
        is_last = then is ConnectionState.LINGER
        record, self.record = self.record, NO_RECORD
        self.outgoing.answer(answer, self.terms, record, is_last=is_last)
        if answer.error:
            record.error = answer.error
        record.end(answer.status)
        if is_last:
            self._linger()
        else:
            self.step(then)

    # calls of its exchange

    def respond(self, answer: Answer) -> None:
        """Send a whole answer. See `Responder`."""
        if self.state is _RUNNING:
            record, self.record = self.record, NO_RECORD
            self.outgoing.answer(answer, self.terms, record)
            if answer.error:
                record.error = answer.error
            record.end(answer.status)
            self._go_on()
        elif self.state is _PARTS:  # the rest of the body is not wanted
            self.answer(answer, ConnectionState.LINGER)

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> BodyStream:
        """Send the head of an answer whose body follows in pieces. See `Responder`."""
        if not self.terms.is_modern or self.state is _PARTS:
            self.terms = msgspec.structs.replace(self.terms, keeps_alive=False)
        self._is_streaming = True
        on_end = functools.partial(self._finish, status)
        return self.outgoing.stream(status, headers, self.terms, record=self.record, on_end=on_end)

    # its end

    def refuse(self, error: WireError) -> None:
        """Answer what cannot be served, and end the connection."""
        if self.state in OVER:
            return
        if self._is_streaming:
            self.transport.abort()  # a second answer in the first would be taken for a part of it
            return
        exchange, self._exchange = self._exchange, None
        if self.state is ConnectionState.DISCARD:  # it has its answer
            self._linger()
        else:
            if self.record is NO_RECORD:  # its head is not valid, or has not come
                self.record = self._context.records(UNREADABLE)(self.peer)
            self.answer(refusal(error), ConnectionState.LINGER)
        abandon(exchange)

    def drain(self) -> None:
        """End the connection, unless a request has begun to come: then it ends behind the answer to that."""
        if self.state in _BEFORE_HEAD and not self.reader.held:
            self.close()

    def close(self) -> None:
        """End the connection when what has been written is sent."""
        if self.state not in OVER or self.state is ConnectionState.LINGER:
            self.step(ConnectionState.CLOSING)
            self.outgoing.finish(self.transport.close)

    def _finish(self, status: HTTPStatus) -> None:
        """Go on after an answer in pieces."""
        record, self.record = self.record, NO_RECORD
        record.end(status)
        self._is_streaming = False
        if self.state is _PARTS:
            self._linger()
        elif self.state is _RUNNING:  # otherwise the client has gone
            self._go_on()

    def _go_on(self) -> None:
        """Go on to the next request: this one has its answer."""
        self._exchange = None
        context = self._context
        if self.terms.keeps_alive and not context.is_draining:
            self.state = _to_idle(self.state)
            self.since = context.now
            if self.reader.has_read:
                self.reader.go_on()
        elif self.reader.held:
            self._linger()
        else:
            self.close()

    def _fail(self) -> None:
        """Answer for an exchange that has raised what it must not."""
        if self._is_streaming:
            self.transport.abort()
        else:
            self.respond(BUG)

    def _write_eof(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _linger(self) -> None:
        """Send what is written and the end, and read on for a moment: a reset would take the answer from the client."""
        self.step(ConnectionState.LINGER)
        self._exchange = None
        self.outgoing.finish(self._write_eof)
        self.reader.close()
        self.reader.read_on()


class RequestReader:
    """The reading half of a connection: reads as far as the state allows, one request at a time, and holds the rest."""

    __slots__ = (
        "_connection",
        "_context",
        "_framing",
        "_head",
        "_is_advancing",
        "_is_direct",
        "_lingered",
        "_parts",
        "_whole",
        "has_read",
        "held",
        "is_first",
        "received",
    )

    def __init__(self, connection: Connection, context: WireContext) -> None:
        self._connection = connection
        self._context = context
        self.held = b""  # received, and not yet readable
        self.has_read = False  # a part of the request at hand
        self.is_first = True  # nothing has been read yet
        self.received = 0  # bytes of the body since the last look at its pace
        self._is_direct = (
            connection.transport.get_extra_info("ssl_object") is None
        )  # true if the input is not encrypted
        self._is_advancing = False
        self._lingered = 0  # bytes that came after the last answer
        self._head: HeadReader  # in state HEAD
        self._framing: Framing = _COMPLETE  # of the body at hand
        self._whole: GatheredBody | None = None  # in state BODY, and until the answer is written
        self._parts: PartsBody | None = None  # in state PARTS, likewise

    def take(self, data: bytes) -> None:
        """Take what has come."""
        self.held = self.held + data if self.held else data
        self._advance()

    def read_on(self) -> None:
        """Read again from the client, where nothing speaks against it, and what is held."""
        connection = self._connection
        if connection.state is ConnectionState.CLOSED or connection.transport.is_closing():
            return
        if connection.state in OVER or not connection.outgoing.is_paused:
            connection.transport.resume_reading()
            self._advance()

    def go_on(self) -> None:
        """Go on to the next request, if it has come, in the next turn of the loop."""
        self.has_read = False
        self._drop_body()
        if self.held:
            self._context.loop.call_soon(self.read_on)

    def close(self) -> None:
        """Hold nothing: no request follows. The reader of a body learns that the rest will never come."""
        self.held = b""
        if self._parts is not None and not self._framing.is_complete:
            self._parts.break_off()
        self._drop_body()

    def _drop_body(self) -> None:
        self._framing = _COMPLETE
        self._parts = None
        whole, self._whole = self._whole, None
        if whole is not None:
            self._context.budget.leave(self)
            whole.close()

    def _advance(self) -> None:
        if self._is_advancing:
            return
        self._is_advancing = True
        self.has_read = True
        connection = self._connection
        try:
            while self.held:
                state = connection.state
                if state in READING_BODY and not self.is_full:
                    self._read_body()
                elif self.is_first and state in _BEFORE_HEAD and self._is_http2():
                    break
                elif state in READING_HEAD or (state is _IDLE and not connection.outgoing.is_paused):
                    self._read_head()
                elif state in OVER:
                    self._lingered += len(self.held)
                    self.held = b""
                    if self._lingered > _LINGERED:  # this does not go on forever
                        connection.close()
                else:
                    break
        except WireError as error:
            connection.refuse(error)
        finally:
            self._is_advancing = False
        if len(self.held) > _HELD or (connection.state in READING_BODY and not self._wants_more()):
            connection.transport.pause_reading()

    # heads

    def _is_http2(self) -> bool:
        """True if the client speaks HTTP/2, or may: this is then not a head to be read, or not yet."""
        data, connection = self.held, self._connection
        if data.startswith(PREFACE):
            self.held = b""
            connection.switch(data)
            return True
        if PREFACE.startswith(data):
            if connection.state is _IDLE:
                connection.step(_PREFACE)
            return True
        self.is_first = False
        return False

    def _read_head(self) -> None:
        data, context, connection = self.held, self._context, self._connection
        if connection.state is not _HEAD:
            empty = _EMPTY_LINES.match(data)
            if empty is not None:
                self.held = data[empty.end() :]
                return
            end = data.find(END) + _END_SIZE
            known = context.heads.find(data[:end])
            if known is not None:
                self.held = data[end:]
                connection.terms = known.terms
                connection.record = known.new_record(connection.peer)
                self._accept(known.accepted, known.length)
                return
            connection.step(_HEAD)
            connection.terms = PLAIN  # a malformed request has a plain answer
            recalled = context.parsed.recall(data[:end])
            if recalled is not None:
                self.held = data[end:]
                self._decide(recalled, data[:end])
                return
            self._head = HeadReader(context.limits.max_head_size)
        reader = self._head
        taken = reader.feed(data)
        self.held = data[taken:]
        if reader.is_complete:
            request, raw = reader.result(), data[:taken] if reader.size == taken else b""
            context.parsed.learn(raw, request)
            self._decide(request, raw)

    def _decide(self, request: RequestHead, raw: bytes) -> None:
        """Ask the handler what becomes of a request. `raw`: its head as it came, empty if it came in pieces."""
        head, connection, context = request.head, self._connection, self._context
        connection.terms = terms = terms_of(
            keeps_alive=request.keeps_alive, is_modern=request.is_modern, is_head=head.method == "HEAD"
        )
        try:
            decision = context.handler.begin(head)
        except Exception:
            logger.exception("a handler failed")
            decision = BUG
        new_record = context.records(head)
        connection.record = new_record(connection.peer)
        if not isinstance(decision, Answer) and 0 < decision.max_body < head.length:
            decision = decision.refuse_size(decision.max_body)
        if isinstance(decision, Answer):
            self._answer_early(decision, head, expects=request.expects_continue)
            return
        context.budget.check(head.length)
        if request.expects_continue:
            if head.length != NO_BODY and not self.held:
                connection.outgoing.write_now(CONTINUE)
        elif isinstance(decision, Accepted) and decision.is_reusable and _is_plain(terms, head):
            context.heads.learn(raw, KnownHead(decision, head.length, terms, new_record))
        self._accept(decision, head.length)

    def _accept(self, decision: Accepted | AcceptedInParts, length: int) -> None:
        connection, context = self._connection, self._context
        if isinstance(decision, AcceptedInParts):
            self._parts = parts = PartsBody(decision.max_body, self._resume)
            self._begin_body(length)
            if not length:
                parts.complete()
            connection.run_in_parts(decision, parts, is_whole=length == NO_BODY)
        elif length == NO_BODY:
            connection.run(decision, b"")
        else:
            connection.step(_BODY)
            memory = context.places.find(decision, length)
            self._begin_body(length)
            self._whole = GatheredBody(decision, context.budget, memory)
            if self._is_direct and memory is not None:
                self._is_direct = False
                BodyReceiver(connection, self, context.places.scratch).receive_from(connection.transport)

    def _answer_early(self, answer: Answer, head: Head, *, expects: bool) -> None:
        """Answer a request with an unwanted body; a short one is read, so that the connection can go on."""
        connection = self._connection
        if head.length == NO_BODY:
            connection.step(_RUNNING)
            connection.respond(answer)
        elif 0 < head.length <= _DISCARDED and connection.terms.keeps_alive and not expects:
            self._begin_body(head.length)
            connection.answer(answer, ConnectionState.DISCARD)
        else:
            connection.answer(answer, ConnectionState.LINGER)

    # bodies

    def _begin_body(self, length: int) -> None:
        self._framing = framing(length, self._context.limits.max_head_size)
        self.received = 0

    def _read_body(self) -> None:
        pieces, taken = self._framing.feed(self.held)
        self.held = self.held[taken:]
        self.received += taken
        if self._whole is not None:
            self._whole.take(pieces)
        elif self._parts is not None:
            self._parts.take(pieces)
            if self._framing.is_complete:
                self._parts.complete()
        self._note_body(taken)

    @property
    def room(self) -> memoryview:
        """Memory in which the next bytes of the body are to be received; empty if there is none."""
        return _NO_ROOM if self._whole is None else self._whole.room

    def grow(self, size: int) -> None:
        """Go on when so many bytes have been received in `room`."""
        if self._whole is not None and isinstance(self._framing, LengthFraming):
            self._framing.skip(size)
            self._whole.grow(size)
            self.received += size
            self._note_body(size)
            if self._connection.state is _BODY and not self._wants_more():
                self._connection.transport.pause_reading()

    def _note_body(self, taken: int) -> None:
        """Go on when so many bytes of the body at hand have come."""
        connection, whole = self._connection, self._whole
        connection.record.received += taken
        if connection.state is _BODY and whole is not None:
            accepted = whole.accepted
            if whole.is_too_large:
                connection.answer(accepted.refuse_size(accepted.max_body), ConnectionState.LINGER)
            elif self._framing.is_complete:
                connection.run(accepted, whole.whole())
        elif self._framing.is_complete:
            connection.step(_RUNNING if connection.state is _PARTS else _IDLE)

    @property
    def is_complete(self) -> bool:
        """True if all of the body at hand has come."""
        return self._framing.is_complete

    @property
    def is_full(self) -> bool:
        """True if the reader of the body has to take something first."""
        return self._parts is not None and self._parts.is_full

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""
        return self._whole is not None and self._context.budget.is_spent

    def _wants_more(self) -> bool:
        """True if more of the body may be read now; otherwise reading goes on when it may."""
        if self.waits_for_memory:
            self._context.budget.wait(self, self._resume)
            return False
        return not self.is_full

    def _resume(self) -> None:
        """Go on with a body that was held back here; its client could send nothing meanwhile."""
        self.received = 0
        self._connection.since = self._context.now
        self.read_on()


class BodyReceiver(asyncio.BufferedProtocol):
    """Takes the place of a connection as the protocol of its transport, to receive large bodies where they stay.

    The kernel writes there, and nothing is copied on the way. While there is a place for a body it is read there, and
    never more than that; anything else goes to the connection.
    """

    def __init__(self, connection: Connection, reader: RequestReader, scratch: memoryview) -> None:
        """`scratch` is shared memory for input that belongs nowhere yet."""
        self._connection = connection
        self._reader = reader
        self._scratch = scratch
        self._beginning = scratch[:_BEGINNING]
        self._is_filling = False  # and not reading into `_scratch`

    def receive_from(self, transport: asyncio.Transport) -> None:
        """Receive from now on what comes."""
        is_reading = transport.is_reading()
        transport.pause_reading()  # a transport that reads does not look whether it has another protocol
        transport.set_protocol(self)
        if is_reading:
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Tell the connection."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as of `BufferedProtocol`
        """Return the place of what comes next."""
        room = self._reader.room
        self._is_filling = len(room) > 0
        if self._is_filling:
            return room
        return self._beginning if self._reader.is_complete else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with what has come."""
        if self._is_filling:
            self._reader.grow(nbytes)
        else:
            self._connection.data_received(bytes(self._scratch[:nbytes]))


def _is_plain(terms: Terms, head: Head) -> bool:
    """True if a request is one whose head may be remembered."""
    return terms.keeps_alive and terms.is_modern and head.length >= NO_BODY and not head.is_unique
