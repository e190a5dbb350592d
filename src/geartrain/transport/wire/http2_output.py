"""Output of a connection over HTTP/2: one write for each turn of the loop, and those that wait for room."""

from __future__ import annotations

import asyncio
from typing import Final

from geartrain.transport.http2.interface import Sender

HELD: Final = 65_536  # bytes of an answer that may wait to be written before its writer waits, too
_WRITTEN: Final = 262_144  # bytes of bodies that are written at once, before other streams have their turn


class Http2Output:
    """Writes what the codec has to send, as far as the client takes it."""

    __slots__ = ("_is_scheduled", "_loop", "_sender", "_transport", "_waiting", "is_paused")

    def __init__(self, sender: Sender, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
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
