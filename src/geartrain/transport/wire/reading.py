"""The reading half of a connection: what a client sends, cut into requests, one at a time."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final, Protocol

from geartrain.transport.http2.interface import PREFACE
from geartrain.transport.wire.bodies import NO_PLACE, PartsBody
from geartrain.transport.wire.body_receiver import BodyReceiver
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import NO_BODY, Accepted, AcceptedInParts, Answer, Body, Head, Record
from geartrain.transport.wire.head_cache import KnownHead
from geartrain.transport.wire.heads import END, HeadReader, RequestHead, WireError
from geartrain.transport.wire.intake import Intake
from geartrain.transport.wire.responses import BUG
from geartrain.transport.wire.states import OVER, ConnectionState
from geartrain.transport.wire.terms import PLAIN, Terms, terms_of

logger = logging.getLogger(__name__)

_HELD: Final = 65_536  # bytes of later requests, beyond which nothing is read
_DISCARDED: Final = 262_144  # bytes of a body that are read only to keep the connection
_LINGERED: Final = 16 * 1024**2  # bytes that are thrown away behind the last answer
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)+")  # some clients put one behind a body (RFC 9112, section 2.2)
_END_SIZE: Final = len(END)
_IDLE: Final = ConnectionState.IDLE
_PREFACE: Final = ConnectionState.PREFACE
_HEAD: Final = ConnectionState.HEAD
_BEFORE_HEAD: Final = frozenset({_IDLE, _PREFACE})
_READING_HEAD: Final = frozenset({_PREFACE, _HEAD})
_BODY: Final = ConnectionState.BODY
_PARTS: Final = ConnectionState.PARTS
_READING_BODY: Final = frozenset({_BODY, _PARTS, ConnectionState.DISCARD})


class Served(Protocol):
    """The connection, as its reading half sees it."""

    state: ConnectionState
    since: float
    terms: Terms
    record: Record
    peer: str

    @property
    def is_paused(self) -> bool:
        """True if the client does not take what is written."""

    def step(self, wanted: ConnectionState) -> None:
        """Go to another state."""

    def switch(self, data: bytes) -> None:
        """Leave the transport to a connection over HTTP/2."""

    def run(self, accepted: Accepted, body: Body) -> None:
        """Hand a whole request to its exchange."""

    def run_in_parts(self, accepted: AcceptedInParts, body: PartsBody, *, is_whole: bool) -> None:
        """Hand a request to its exchange whose body is still coming."""

    def respond(self, answer: Answer) -> None:
        """Answer the request at hand."""

    def answer(self, answer: Answer, then: ConnectionState) -> None:
        """Answer a request whose body is not read to its end, and throw it away: DISCARD or LINGER."""

    def proceed(self) -> None:
        """Ask the client for the body that it holds back."""

    def refuse(self, error: WireError) -> None:
        """Answer what cannot be served, and end the connection."""

    def close(self) -> None:
        """End the connection when what has been written is sent."""


class RequestReader:
    """Reads as far as the state of the connection allows, and holds the rest."""

    def __init__(self, connection: Served, context: WireContext) -> None:
        self.intake = Intake(context)
        self._connection = connection
        self._context = context
        self._transport: asyncio.Transport
        self._protocol: asyncio.Protocol
        self.held = b""  # received, and not yet readable
        self.has_read = False  # a part of the request at hand
        self._lingered = 0  # bytes that came after the last answer
        self._is_advancing = False
        self._is_direct = False  # true if the input is not encrypted
        self.is_first = True  # nothing has been read yet

    def begin(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Begin with a connection that has been made, and is the `protocol` of its transport."""
        self._transport = transport
        self._protocol = protocol
        self._is_direct = transport.get_extra_info("ssl_object") is None

    def take(self, data: bytes) -> None:
        """Take what has come."""
        self.held = self.held + data if self.held else data
        self._advance()

    def read_on(self) -> None:
        """Read again from the client, where nothing speaks against it, and what is held."""
        connection = self._connection
        if connection.state is ConnectionState.CLOSED or self._transport.is_closing():
            return
        if connection.state in OVER or not connection.is_paused:
            self._transport.resume_reading()
            self._advance()

    def go_on(self) -> None:
        """Go on to the next request, if it has come, in the next turn of the loop."""
        self.has_read = False
        self.intake.reset()
        if self.held:
            self._context.loop.call_soon(self.read_on)

    def close(self) -> None:
        """Hold nothing: no request follows."""
        self.held = b""
        self.intake.close()

    def _resume(self) -> None:
        """Go on with a body that was held back here; its client could send nothing meanwhile."""
        self.intake.received = 0
        self._connection.since = self._context.now
        self.read_on()

    def _advance(self) -> None:
        if self._is_advancing:
            return
        self._is_advancing = True
        self.has_read = True
        connection = self._connection
        try:
            while self.held:
                state = connection.state
                if state in _READING_BODY and not self.intake.is_full:
                    taken = self.intake.feed(self.held)
                    self.held = self.held[taken:]
                    self._note_body(taken)
                elif self.is_first and state in _BEFORE_HEAD and self._is_http2():
                    break
                elif state in _READING_HEAD or (state is _IDLE and not connection.is_paused):
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
        if len(self.held) > _HELD or (connection.state in _READING_BODY and not self.intake.wants_more(self._resume)):
            self._transport.pause_reading()

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
            self.intake.reader = HeadReader(context.limits.max_head_size)
        reader = self.intake.reader
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
                connection.proceed()
        elif isinstance(decision, Accepted) and decision.is_reusable and _is_plain(terms, head):
            context.heads.learn(raw, KnownHead(decision, head.length, terms, new_record))
        self._accept(decision, head.length)

    def _accept(self, decision: Accepted | AcceptedInParts, length: int) -> None:
        if isinstance(decision, AcceptedInParts):
            body = self.intake.begin_parts(decision, length, self._resume)
            self._connection.run_in_parts(decision, body, is_whole=length == NO_BODY)
        elif length == NO_BODY:
            self._connection.run(decision, b"")
        else:
            self._connection.step(_BODY)
            self.intake.begin(decision, length)
            if self._is_direct and self.intake.place is not NO_PLACE:
                self._is_direct = False
                places, hear = self._context.places, self._on_received
                BodyReceiver(self._protocol, self.intake, places=places, on_received=hear).receive_from(self._transport)

    def _on_received(self, size: int) -> None:
        """Go on when so many bytes have been received where the body is to stay."""
        self.intake.grow(size)
        self._note_body(size)
        if self._connection.state is _BODY and not self.intake.wants_more(self._resume):
            self._transport.pause_reading()

    def _note_body(self, taken: int) -> None:
        """Go on when so many bytes of the body at hand have come."""
        intake, connection = self.intake, self._connection
        connection.record.received += taken
        if connection.state is _BODY and intake.is_too_large:
            accepted = intake.accepted
            connection.answer(accepted.refuse_size(accepted.max_body), ConnectionState.LINGER)
        elif intake.is_complete:
            if connection.state is _BODY:
                connection.run(intake.accepted, intake.whole())
            else:
                connection.step(ConnectionState.RUNNING if connection.state is _PARTS else _IDLE)

    def _answer_early(self, answer: Answer, head: Head, *, expects: bool) -> None:
        """Answer a request with an unwanted body; a short one is read, so that the connection can go on."""
        connection = self._connection
        if head.length == NO_BODY:
            connection.step(ConnectionState.RUNNING)
            connection.respond(answer)
        elif 0 < head.length <= _DISCARDED and connection.terms.keeps_alive and not expects:
            self.intake.begin_discarding(head.length)
            connection.answer(answer, ConnectionState.DISCARD)
        else:
            connection.answer(answer, ConnectionState.LINGER)


def _is_plain(terms: Terms, head: Head) -> bool:
    """True if a request is one whose head may be remembered."""
    return terms.keeps_alive and terms.is_modern and head.length >= NO_BODY and not head.is_unique
