"""When an ASGI application starts and ends: with a lifespan, or with the first request where there is none."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable

from geartrain.transport.wire.exchange import Handler

Start = Callable[[], Awaitable[Handler]]
Stop = Callable[[], Awaitable[None]]


class EndedError(Exception):
    """The application has been stopped."""


class _State(enum.Enum):
    IDLE = enum.auto()  # not started yet, or the start has failed: the next request tries again
    STARTING = enum.auto()
    RUNNING = enum.auto()
    STOPPED = enum.auto()  # only another lifespan starts it again


class Lifecycle:
    """Starts once, however many requests ask for it at once, and stops when the last lifespan ends."""

    def __init__(self, start: Start, stop: Stop) -> None:
        self._start = start
        self._stop = stop
        self._state = _State.IDLE
        self._lifespans = 0
        self._task: asyncio.Task[Handler]
        self._loop: asyncio.AbstractEventLoop

    async def enter(self) -> None:
        """Begin a lifespan: start, or wait for a start that is under way. Raises what `start` raises."""
        self._lifespans += 1
        try:
            await self._started()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """End a lifespan; stop if it was the last one."""
        self._lifespans -= 1
        if self._lifespans:
            return
        if self._state is _State.STARTING:  # it has no waiter
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._state is _State.RUNNING:
            self._state = _State.STOPPED
            await self._stop()

    async def handler(self) -> Handler:
        """Return the handler for a request, after a start if there was none. Raises `EndedError` after the end."""
        if self._state is _State.STOPPED:
            msg = "The server is shutting down."
            raise EndedError(msg)
        return await self._started()

    async def _started(self) -> Handler:
        loop = asyncio.get_running_loop()
        if self._state in {_State.IDLE, _State.STOPPED}:
            self._state = _State.STARTING
            self._loop = loop
            self._task = loop.create_task(self._begin())
        elif self._loop is not loop:
            msg = (
                "geartrain's ASGI application runs in another event loop; let the lifespan of the host start and end it"
            )
            raise RuntimeError(msg)
        if self._task.done():
            return self._task.result()
        return await asyncio.shield(self._task)  # a canceled request does not cancel the start for others

    async def _begin(self) -> Handler:
        try:
            handler = await self._start()
        except BaseException:
            self._state = _State.IDLE
            raise
        self._state = _State.RUNNING
        return handler
