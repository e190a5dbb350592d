"""Ends connections of HTTP/2 that take too long, and requests on them. Called by the sweep of all connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from geartrain.transport.http2.interface import Codec, ErrorCode
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.http2_output import Http2Output
from geartrain.transport.wire.http2_states import ENDED, Http2State, StreamState
from geartrain.transport.wire.http2_stream import Http2Stream
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.pace import LINGER, check_body
from geartrain.transport.wire.sockets import Progress, progress, reset

PING_TIMEOUT: Final = 20.0  # seconds in which a client that is silent has to answer a ping
_PING: Final = b"geartrn?"
_READING_BODY: Final = frozenset({StreamState.BODY, StreamState.PARTS})
_NEVER: Final = -1.0


class Watched(Protocol):
    """The connection, as its watch sees it."""

    context: WireContext
    codec: Codec
    output: Http2Output
    transport: asyncio.Transport

    @property
    def state(self) -> Http2State:
        """State of the connection."""

    @property
    def streams(self) -> Mapping[int, Http2Stream]:
        """Its open streams."""

    def drain(self) -> None:
        """Accept no further request, and close when every answer has been given."""

    def close(self, code: ErrorCode, reason: str) -> None:
        """End the connection when what has been written is sent."""

    def check_drained(self) -> None:
        """Close when nothing is owed any more."""

    def start_waiting(self) -> None:
        """Run the requests that wait for room."""


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

    def __init__(self, connection: Watched) -> None:
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
