"""Output of a connection over HTTP/2: one write for each turn of the loop, and those that wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from geartrain.domain.state_machine import steps_to
from geartrain.transport.http2.sending import AnswerSender
from geartrain.transport.wire.exchange import Body

if TYPE_CHECKING:
    from geartrain.transport.wire.http2_stream import WholeStream

HELD: Final = 65_536  # bytes of an answer that may wait to be written before its writer waits, too
_WRITTEN: Final = 262_144  # bytes of bodies that are written at once, before other streams have their turn
MAX_HELD: Final = 64 * 1024**2
"""Bytes of answers, unread or still to come, beyond which requests wait."""

_FEWEST: Final = 16  # that run at once on a new connection
_MOST: Final = 1024
_PATIENCE: Final = 0.25  # seconds
_TAKEN: Final = 1024**2  # bytes that a client may have before it that takes its answers
_SLOW: Final = MAX_HELD // 4  # bytes that a client has not taken, with which its connection counts as new


class Http2State(StrEnum):
    """State of a connection."""

    OPEN = "open"
    DRAINING = "draining"  # no stream is accepted any more, and those that are open go on
    CLOSING = "closing"  # its end has been written; what comes is thrown away, so that the client can read that
    CLOSED = "closed"


class StreamState(StrEnum):
    """State of a request."""

    BODY = "body"  # its body is being gathered
    PARTS = "parts"  # its body is coming, and its exchange reads it in pieces
    RUNNING = "running"  # it is whole, and its answer is not
    OVER = "over"  # its answer is complete, or will never be


_H = Http2State
HTTP2_STEPS: Final[dict[Http2State, frozenset[Http2State]]] = {
    _H.OPEN: frozenset({_H.DRAINING, _H.CLOSING, _H.CLOSED}),
    _H.DRAINING: frozenset({_H.CLOSING, _H.CLOSED}),
    _H.CLOSING: frozenset({_H.CLOSED}),
    _H.CLOSED: frozenset(),
}

TO_HTTP2_STATE: Final = steps_to("a connection", HTTP2_STEPS)

ENDED: Final = frozenset({_H.CLOSING, _H.CLOSED})
"""The states in which nothing is served any more."""

_S = StreamState
STREAM_STEPS: Final[dict[StreamState, frozenset[StreamState]]] = {
    _S.BODY: frozenset({_S.PARTS, _S.RUNNING, _S.OVER}),
    _S.PARTS: frozenset({_S.RUNNING, _S.OVER}),
    _S.RUNNING: frozenset({_S.OVER}),
    _S.OVER: frozenset(),
}
TO_STREAM_STATE: Final = steps_to("a stream", STREAM_STEPS)


class Http2Output:
    """Writes what the codec has to send, as far as the client takes it."""

    __slots__ = ("_is_scheduled", "_loop", "_sender", "_transport", "_waiting", "is_paused")

    def __init__(self, sender: AnswerSender, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.is_paused = False  # the client does not take what is written
        self._sender = sender
        self._transport = transport
        self._loop = loop
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}  # for room, by stream
        self._is_scheduled = False

    def schedule(self) -> None:
        """Write what there is at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def hold(self) -> bool:
        """Schedule nothing until `release`, which writes at once; return whether something was scheduled before."""
        was_scheduled, self._is_scheduled = self._is_scheduled, True
        return was_scheduled

    def release(self, *, was_scheduled: bool) -> None:
        """Write what there is."""
        self._is_scheduled = was_scheduled
        self.flush()

    def flush(self) -> None:
        """Write what there is, as far as the client takes it."""
        take_output, transport = self._sender.take_output, self._transport
        while not self.is_paused:
            parts = take_output(_WRITTEN)
            if not parts:
                break
            if len(parts) == 1:
                transport.write(parts[0])
            else:
                transport.writelines(parts)
        if self._waiting:
            self._wake_writers()

    def room(self, stream: int) -> asyncio.Future[None]:
        """Return a future that is done when little is held for a stream, or it is over."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(stream, []).append(waiter)
        return waiter

    def wake(self, stream: int) -> None:
        """Wake who waits for a stream: it is over."""
        for waiter in self._waiting.pop(stream, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _flush(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _wake_writers(self) -> None:
        unsent = self._sender.unsent
        for stream in tuple(self._waiting):
            if unsent(stream) <= HELD:
                self.wake(stream)


class Room:
    """The count of what runs, and the requests that wait in their order."""

    __slots__ = ("_at_once", "_flush", "_loop", "_running", "_sender", "_timer", "_typical", "waiting")

    def __init__(self, sender: AnswerSender, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        """`flush` writes the answers that the client takes; it is called after a while in which requests wait."""
        self.waiting: dict[int, tuple[WholeStream, Body]] = {}  # by the number of the stream
        self._at_once = _FEWEST
        self._loop = loop
        self._flush = flush
        self._running = 0
        self._sender = sender
        self._timer: asyncio.TimerHandle | None = None  # while requests wait
        self._typical = 0  # bytes of an answer; falls slowly, rises at once

    @property
    def is_free(self) -> bool:
        """True if another request may run, where none waits before it."""
        running = self._running
        if running >= self._at_once:
            return False
        expected = (running + 1) * self._typical if running else 0
        return self._sender.held + expected <= MAX_HELD

    def wait(self, number: int, stream: WholeStream, body: Body) -> None:
        """Run a request when there is room."""
        self.waiting[number] = (stream, body)
        if self._timer is None:
            self._timer = self._loop.call_later(_PATIENCE, self._grow)

    def _grow(self) -> None:
        self._timer = None
        if self._sender.held <= _TAKEN:
            self._at_once = min(2 * self._at_once, _MOST)
        self._flush()
        self.start()
        if self.waiting:
            self._timer = self._loop.call_later(_PATIENCE, self._grow)

    def enter(self) -> None:
        """Count a request that runs."""
        self._running += 1

    def leave(self) -> None:
        """Count a request no more: it is over, or its answer goes out in pieces that wait for the client."""
        self._running -= 1

    def note(self, size: int) -> None:
        """Note the size of an answer, which the codec has."""
        self._typical = size if size > self._typical else (7 * self._typical + size) // 8
        held = self._sender.held - size
        if held <= _TAKEN:
            self._at_once = min(self._at_once + 1, _MOST)
        elif held > _SLOW:
            self._at_once = _FEWEST

    def start(self) -> None:
        """Run those that wait, as far as there is room."""
        while self.waiting and self.is_free:
            stream, body = self.waiting.pop(next(iter(self.waiting)))
            stream.run_now(body)
