"""A client's connection over HTTP/1.1: requests in, one after the other, and their answers out.

A request is read when the one before it is answered and its answer has been taken, so answers come in order and a
client that does not read is not served. What comes meanwhile is held, up to a bound; beyond it nothing is read.

Most requests are a small POST that comes whole, with a head that is known. They pass through `data_received`, the
exchange and `respond`: no task, no timer, no copy of the body.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from http import HTTPStatus
from typing import Final, Protocol, cast

import msgspec

from geartrain.transport.wire.abandoning import NO_EXCHANGE, abandon
from geartrain.transport.wire.bodies import PartsBody
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import (
    NO_RECORD,
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    Exchange,
    PartsExchange,
    Record,
)
from geartrain.transport.wire.heads import END, WireError
from geartrain.transport.wire.outgoing import BodyStream, Outgoing
from geartrain.transport.wire.reading import RequestReader
from geartrain.transport.wire.responses import BUG, CONTINUE, UNREADABLE, refusal
from geartrain.transport.wire.sockets import peer_of
from geartrain.transport.wire.states import OVER, TO_CONNECTION_STATE, ConnectionState
from geartrain.transport.wire.terms import PLAIN, Terms

logger = logging.getLogger(__name__)

_END_SIZE: Final = len(END)
_HTTP_2: Final = "h2"  # in ALPN
_BETWEEN: Final = frozenset({ConnectionState.IDLE, ConnectionState.PREFACE})  # two requests
_IDLE: Final = ConnectionState.IDLE
_RUNNING: Final = ConnectionState.RUNNING
_PARTS: Final = ConnectionState.PARTS
_to_idle: Final = TO_CONNECTION_STATE[_IDLE]
_to_running: Final = TO_CONNECTION_STATE[_RUNNING]


class Owner(Protocol):
    """Owner of connections."""

    def add(self, connection: Connection) -> None:
        """Note that a connection has been made."""

    def remove(self, connection: Connection) -> None:
        """Note that a connection is gone."""

    def switch(self, connection: Connection, data: bytes) -> None:
        """Go on over HTTP/2 with a connection whose client speaks it; `data` has come already."""


class Connection(asyncio.Protocol):
    """The connection of one client, which is the `Responder` of the request at hand."""

    def __init__(self, context: WireContext, owner: Owner) -> None:
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
        self._exchange: Exchange | PartsExchange = NO_EXCHANGE
        self._is_streaming = False  # a part of the answer has been written

    # calls of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.peer = peer_of(transport)
        self.outgoing = Outgoing(self.transport, self._context)
        self.reader = RequestReader(self, self._context)
        self.reader.begin(self.transport, self)
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
        exchange, self._exchange = self._exchange, NO_EXCHANGE
        record, self.record = self.record, NO_RECORD
        self._owner.remove(self)
        abandon(exchange)
        record.leave()
        del self.reader

    # calls of its reading half

    @property
    def is_paused(self) -> bool:
        """True if the client does not take what is written."""
        return self.outgoing.is_paused

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

    def run_in_parts(self, accepted: AcceptedInParts, body: PartsBody, *, is_whole: bool) -> None:
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

    def proceed(self) -> None:
        """Ask the client for the body that it holds back."""
        self.outgoing.write_now(CONTINUE)

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
        exchange, self._exchange = self._exchange, NO_EXCHANGE
        if self.state is ConnectionState.DISCARD:  # it has its answer
            self._linger()
        else:
            if self.record is NO_RECORD:  # its head is not valid, or has not come
                self.record = self._context.records(UNREADABLE)(self.peer)
            self.answer(refusal(error), ConnectionState.LINGER)
        abandon(exchange)

    def drain(self) -> None:
        """End the connection, unless a request has begun to come: then it ends behind the answer to that."""
        if self.state in _BETWEEN and not self.reader.held:
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
        self._exchange = NO_EXCHANGE
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
        self._exchange = NO_EXCHANGE
        self.outgoing.finish(self._write_eof)
        self.reader.close()
        self.reader.read_on()
