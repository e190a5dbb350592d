"""The requests of one connection that may run at once, by the answers that its client has not taken.

The size of an answer is not known before the run ends, so a request counts with the size of earlier answers. Few run at
once on a new connection: one more with each answer that its client takes, and twice as many after each `_PATIENCE` in
which none is left unread, since runs that take long make no large answers quickly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

MAX_HELD: Final = 64 * 1024**2
"""Bytes of answers, unread or still to come, beyond which requests wait."""

_FEWEST: Final = 16  # that run at once on a new connection
_MOST: Final = 1024
_PATIENCE: Final = 0.25  # seconds
_TAKEN: Final = 1024**2  # bytes that a client may have before it that takes its answers
_SLOW: Final = MAX_HELD // 4  # bytes that a client has not taken, with which its connection counts as new


class Held(Protocol):
    """The codec's queue of answers."""

    @property
    def held(self) -> int:
        """Bytes of bodies that wait to be sent."""


class Waiting(Protocol):
    """A request that waits."""

    def run_now(self, body: Any) -> None:
        """Hand the request to its exchange."""


class Room:
    """The count of what runs, and the requests that wait in their order."""

    __slots__ = ("_at_once", "_flush", "_loop", "_running", "_sender", "_timer", "_typical", "waiting")

    def __init__(self, sender: Held, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        """`flush` writes the answers that the client takes; it is called after a while in which requests wait."""
        self.waiting: dict[int, tuple[Waiting, Any]] = {}  # by the number of the stream
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

    def wait(self, number: int, stream: Waiting, body: Any) -> None:
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
