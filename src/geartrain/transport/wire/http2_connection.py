"""A client's connection over HTTP/2: any number of requests at once, each a stream (RFC 9113).

The codec knows the protocol. What is here connects it to a transport: bytes in, streams and their exchanges, bytes out,
one write for each turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from geartrain.transport.http2.connection import ServerConnection
from geartrain.transport.http2.interface import (
    BodyReceived,
    ErrorCode,
    Event,
    Http2Limits,
    PingAnswered,
    RequestHead,
    RequestReceived,
    StreamAborted,
)
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Accepted, AcceptedInParts, Answer, Decision, Head, NewRecord
from geartrain.transport.wire.http2_output import (
    ENDED,
    MAX_HELD,
    TO_HTTP2_STATE,
    Http2Output,
    Http2State,
    Room,
    StreamState,
)
from geartrain.transport.wire.http2_stream import BodyParts, Http2Stream, PartsStream, WholeStream, by_body
from geartrain.transport.wire.limits import LINGER, MAX_FIELDS, WireLimits, check_body
from geartrain.transport.wire.outgoing import BUG, Progress, close_at_once, has_sent_all, peer_of, progress, reset

logger = logging.getLogger(__name__)

HEAD: Final = "HEAD"
MAX_HEADS: Final = 64  # heads
PING_TIMEOUT: Final = 20.0  # seconds in which a client that is silent has to answer a ping
_PING: Final = b"geartrn?"
_READING_BODY: Final = frozenset({StreamState.BODY, StreamState.PARTS})
_NEVER: Final = -1.0
_OPEN: Final = Http2State.OPEN
_FEW: Final = 2  # events, such as a head and the body that belongs to it


class DecidedHead(NamedTuple):
    """Decision on requests with one head, and the factory of their records."""

    decision: Decision
    new_record: NewRecord


class Http2Heads:
    """Shows heads to the handler, and remembers what it has decided where it may."""

    __slots__ = ("_context", "_generation", "_known")

    def __init__(self, context: WireContext) -> None:
        self._context = context
        self._generation = 0
        self._known: dict[int, tuple[RequestHead, DecidedHead]] = {}  # by the identity of the head, which is held

    def find(self, head: RequestHead) -> DecidedHead:
        """Return the decision on a request with this head."""
        known = self._known.get(id(head))
        if known is not None and known[0] is head and self._generation == self._context.heads.generation:
            return known[1]
        return self._decide(head)

    def expects_continue(self, head: RequestHead) -> bool:
        """True if the client holds the body back until it is asked for it. Such a head is not remembered."""
        if id(head) in self._known:
            return False
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in head.fields)

    def _decide(self, head: RequestHead) -> DecidedHead:
        path, _, query = head.path.partition(b"?")
        shown = Head(head.method, path, query, head.fields, head.length, has_trailers=True)
        try:
            decision = self._context.handler.begin(shown)
        except Exception:
            logger.exception("a handler failed")
            decision = BUG
        decided = DecidedHead(decision, self._context.records(shown))
        if isinstance(decision, Answer):
            return decided
        if 0 < decision.max_body < head.length:
            return DecidedHead(decision.refuse_size(decision.max_body), decided.new_record)
        is_reusable = isinstance(decision, Accepted) and decision.is_reusable and not shown.is_unique
        if is_reusable and not self.expects_continue(head):
            self._learn(head, decided)
        return decided

    def _learn(self, head: RequestHead, decided: DecidedHead) -> None:
        generation = self._context.heads.generation
        if generation != self._generation or len(self._known) >= MAX_HEADS:
            self._generation = generation
            self._known.clear()
        self._known[id(head)] = (head, decided)


class Http2Watch:
    """Looks at one connection at each sweep. Every limit begins when it is seen first."""

    __slots__ = (
        "_closing_since",
        "_connection",
        "_head_since",
        "_idle_since",
        "_mark",
        "_ping_since",
        "_sent",
        "_silent_since",
        "has_begun",
        "has_received",
    )

    def __init__(self, connection: Http2Connection) -> None:
        self._connection = connection
        self.has_received = True  # since the last look
        self.has_begun = False  # a request, since the last look
        now = connection.context.now
        self._closing_since = _NEVER  # all that is to be sent has been written since then
        self._head_since = _NEVER  # a head has been coming since then
        self._idle_since = now  # there has been no request since then
        self._silent_since = now  # nothing has come since then
        self._ping_since = _NEVER  # a ping has been on its way since then
        self._mark = Progress(0, now)  # at the last look
        self._sent: dict[int, tuple[int, float]] = {}  # of each answer that is held: bytes sent, and since when

    def on_ping_answered(self) -> None:
        """Note that the client lives."""
        self._ping_since = _NEVER

    def check(self, now: float) -> None:
        """Hold the connection to its limits."""
        connection = self._connection
        limits = connection.context.limits
        if connection.state is Http2State.CLOSING:
            self._check_closing(now)
            return
        if connection.context.is_draining:
            connection.drain()
            self._check_drained(now)
        self._check_silence(limits, now)
        if connection.state in ENDED:
            return
        for stream in tuple(connection.streams.values()):
            if stream.state in _READING_BODY and not stream.is_bidirectional:
                check_body(stream, stream, limits, now=now)
        self._check_sending(limits, now)
        connection.output.flush()
        connection.start_waiting()
        connection.check_drained()

    def _check_drained(self, now: float) -> None:
        """Close a connection without requests whose client does not say that it has heard of the end."""
        if self._connection.codec.stream_count:
            self._closing_since = _NEVER
        elif self._closing_since == _NEVER:
            self._closing_since = now
        elif now - self._closing_since > LINGER:
            self._closing_since = _NEVER
            self._connection.close(ErrorCode.NO_ERROR, "The server is shutting down.")

    def _check_closing(self, now: float) -> None:
        if self._closing_since == _NEVER:
            self._closing_since = now
        elif now - self._closing_since > LINGER:
            self._connection.transport.abort()

    def _check_silence(self, limits: WireLimits, now: float) -> None:
        """End a connection whose head does not come, that has no requests, or whose client does not answer."""
        codec = self._connection.codec
        if self.has_received:
            self._silent_since = now
        self.has_received = False
        if not codec.is_reading_head:
            self._head_since = _NEVER
        elif self._head_since == _NEVER:
            self._head_since = now
        elif 0 < limits.head_timeout < now - self._head_since:
            reason = f"The head of a request took longer than {limits.head_timeout:g} s (--head-timeout)."
            self._connection.close(ErrorCode.ENHANCE_YOUR_CALM, reason)
            return
        if self.has_begun:
            self.has_begun = False
            self._idle_since = now
        if codec.stream_count:
            self._idle_since = now
            if 0 < limits.idle_timeout < now - self._silent_since:
                self._ping(now)
        elif 0 < limits.idle_timeout < now - self._idle_since:
            self._connection.close(ErrorCode.NO_ERROR, "There has been no request (--idle-timeout).")

    def _ping(self, now: float) -> None:
        """Ask whether the client is there, and abort the connection if it never answers."""
        if self._ping_since == _NEVER:
            self._ping_since = now
            self._connection.codec.ping(_PING)
        elif now - self._ping_since > PING_TIMEOUT:
            reset(self._connection.transport)

    def _check_sending(self, limits: WireLimits, now: float) -> None:
        """Abort the connection, or end an answer, if the client has taken none of it for too long."""
        if not limits.send_timeout:
            return
        connection = self._connection
        self._mark = progress(connection.transport, self._mark, now)
        if now - self._mark.since > limits.send_timeout:
            reset(connection.transport)
            return
        before, self._sent = self._sent, {}
        for stream, sent in connection.codec.sender.stalled():
            count, since = before.get(stream, (-1, now))
            since = since if count == sent else now
            if now - since > limits.send_timeout:
                self._give_up(stream)
            else:
                self._sent[stream] = (sent, since)

    def _give_up(self, stream: int) -> None:
        open_stream = self._connection.streams.get(stream)
        if open_stream is None:  # the answer is complete here, and held
            self._connection.codec.sender.reset(stream, ErrorCode.CANCEL)
        else:
            open_stream.reset(ErrorCode.CANCEL)


class Http2Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(
        self, context: WireContext, transport: asyncio.Transport, on_closed: Callable[[Http2Connection], None]
    ) -> None:
        """`on_closed` is called when the connection is gone."""
        self.context = context
        self.codec = ServerConnection(http2_limits(context.limits))
        self.transport = transport
        self.state = _OPEN
        self.streams: dict[int, Http2Stream] = {}
        self.output = Http2Output(self.codec.sender, transport, context.loop)
        self.room = Room(self.codec.sender, context.loop, self.output.flush)
        self.watch = Http2Watch(self)
        self._on_closed = on_closed
        self._peer = peer_of(transport)
        self._heads = Http2Heads(context)

    # calls of the loop

    def data_received(self, data: bytes) -> None:
        """Serve what has come."""
        if self.state in ENDED:
            return
        self.watch.has_received = True
        output = self.output
        was_scheduled = output.hold()
        events = self.codec.receive(data, self.context.loop.time())
        for event in events if len(events) <= _FEW else by_body(events):
            self._on_event(event)
        output.release(was_scheduled=was_scheduled)
        if self.room.waiting:
            self.room.start()
        if self.state is not _OPEN:
            self.check_drained()

    def pause_writing(self) -> None:
        """Stop reading: a client that does not take its answers gets no further ones."""
        self.output.is_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on: the client has taken what was written."""
        self.output.is_paused = False
        self.output.flush()
        self.room.start()
        if not self.output.is_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        """Abandon what is open: a client that has disconnected no longer wants it."""
        self._step(Http2State.CLOSED)
        self.output.is_paused = True  # for good
        self._on_closed(self)
        self._abandon_all()
        del self.watch  # a cycle otherwise

    # calls of its streams

    def acknowledge(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more."""
        self.codec.acknowledge(stream, size)
        self.output.schedule()

    def leave(self, stream: int) -> None:
        """Forget a stream, which is over."""
        self.streams.pop(stream, None)
        self.output.wake(stream)
        if self.room.waiting:
            self.room.waiting.pop(stream, None)
            self.context.loop.call_soon(self.start_waiting)
        if self.state is Http2State.DRAINING:
            self.context.loop.call_soon(self.check_drained)  # when the answer has been written

    def start_waiting(self) -> None:
        """Run the requests that wait for room, as far as the client takes its answers."""
        if self.room.waiting and self.state not in ENDED:
            self.output.flush()
            self.room.start()

    # its end

    def drain(self) -> None:
        """Accept no further request, and close when every answer has been given.

        In a server that ends, a connection without a request ends at once: its client may never read what it is asked.
        If the client has not acknowledged all bytes yet, that is with a later call, by the sweep.
        """
        if self.state is _OPEN:
            self._step(Http2State.DRAINING)
        if self.state is not Http2State.DRAINING:
            return
        if self.context.is_closed and _is_idle(self.codec, self.transport):
            self.codec.end(ErrorCode.NO_ERROR, "The server is shutting down.")
            self._step(Http2State.CLOSING)
            self.output.flush()
            close_at_once(self.transport, self.context.loop)
        else:
            self.codec.shut_down()
            self.output.flush()

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """End the connection when what has been written is sent."""
        if self.state not in ENDED:
            self.codec.end(code, reason)
            self._finish()

    def check_drained(self) -> None:
        """Close when the client knows that no request is accepted any more, and every answer has been sent."""
        if self.state is Http2State.DRAINING and not self.codec.stream_count and self.codec.is_closing:
            self.close()

    def _finish(self) -> None:
        """Write what the codec says last, and read on for a moment: a reset would take it from the client."""
        self._step(Http2State.CLOSING)
        self._abandon_all()
        self.output.is_paused = False  # it is little, and nothing follows
        self.output.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()

    def _step(self, wanted: Http2State) -> None:
        self.state = TO_HTTP2_STATE[wanted](self.state)

    # calls of the codec

    def _on_event(self, event: Event | BodyParts) -> None:
        if isinstance(event, BodyReceived | BodyParts):
            stream = self.streams.get(event.stream)
            if stream is None:  # its answer was complete before
                self.codec.acknowledge(event.stream, event.credit)
            else:
                stream.take(event)
        elif isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, StreamAborted):
            stream = self.streams.get(event.stream)
            if stream is not None:
                stream.abandon()
        elif isinstance(event, PingAnswered):
            self.watch.on_ping_answered()
        elif self.state not in ENDED:
            logger.debug("a connection was ended: %s", event.reason)
            self._finish()

    def _begin(self, event: RequestReceived) -> None:
        """Take a request by its head."""
        self.watch.has_begun = True
        head, number, sender = event.head, event.stream, self.codec.sender
        decision, new_record = self._heads.find(head)
        if sender.held > MAX_HELD:
            sender.reset(number, ErrorCode.REFUSED_STREAM)
            return
        record, is_head = new_record(self._peer), head.method == HEAD
        if isinstance(decision, Accepted):
            self.streams[number] = stream = WholeStream(self, number, decision, record=record, is_head=is_head)
            if event.is_whole:
                stream.run(b"")
            elif stream.has_room_for(head.length) and self._heads.expects_continue(head):
                sender.head(number, HTTPStatus.CONTINUE, ())
        elif isinstance(decision, AcceptedInParts):
            self.streams[number] = parts = PartsStream(self, number, decision, record=record, is_head=is_head)
            parts.begin(is_whole=event.is_whole)
        else:
            self.streams[number] = refused = Http2Stream(self, number, record=record, is_head=is_head)
            refused.respond(decision)

    def _abandon_all(self) -> None:
        for stream in tuple(self.streams.values()):
            stream.abandon()


def http2_limits(limits: WireLimits) -> Http2Limits:
    """Return the limits of one connection."""
    return Http2Limits(max_head_size=limits.max_head_size, max_fields=MAX_FIELDS)


def _is_idle(codec: ServerConnection, transport: asyncio.Transport) -> bool:
    """True if a client has everything that is owed, and has sent nothing that is not read to its end."""
    is_quiet = not codec.stream_count and not codec.is_reading_head and not codec.awaits_resets
    return is_quiet and has_sent_all(transport)
