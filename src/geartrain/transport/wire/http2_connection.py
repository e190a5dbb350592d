"""A client's connection over HTTP/2: any number of requests at once, each a stream (RFC 9113).

The codec knows the protocol. What is here connects it to a transport: bytes in, streams and their exchanges, bytes out,
one write for each turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from geartrain.transport.http2.connection import ServerConnection
from geartrain.transport.http2.interface import (
    BodyReceived,
    Codec,
    ErrorCode,
    Event,
    Http2Limits,
    PingAnswered,
    RequestReceived,
    StreamAborted,
)
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Accepted, AcceptedInParts
from geartrain.transport.wire.http2_bodies import BodyParts, by_body
from geartrain.transport.wire.http2_heads import HEAD, Http2Heads
from geartrain.transport.wire.http2_output import Http2Output
from geartrain.transport.wire.http2_room import MAX_HELD, Room
from geartrain.transport.wire.http2_states import ENDED, TO_HTTP2_STATE, Http2State
from geartrain.transport.wire.http2_stream import Http2Stream, PartsStream, WholeStream
from geartrain.transport.wire.http2_timeouts import Http2Watch
from geartrain.transport.wire.limits import MAX_FIELDS, WireLimits
from geartrain.transport.wire.sockets import close_at_once, has_sent_all, peer_of

logger = logging.getLogger(__name__)

_OPEN: Final = Http2State.OPEN
_FEW: Final = 2  # events, such as a head and the body that belongs to it


class Http2Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(
        self, context: WireContext, transport: asyncio.Transport, on_closed: Callable[[Http2Connection], None]
    ) -> None:
        """`on_closed` is called when the connection is gone."""
        self.context = context
        self.codec: Codec = ServerConnection(http2_limits(context.limits))
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


def _is_idle(codec: Codec, transport: asyncio.Transport) -> bool:
    """True if a client has everything that is owed, and has sent nothing that is not read to its end."""
    is_quiet = not codec.stream_count and not codec.is_reading_head and not codec.awaits_resets
    return is_quiet and has_sent_all(transport)
