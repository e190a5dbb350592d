"""Notices clients that disconnect, at next to no cost for those that do not.

To watch a connection takes a task. A prediction that ends within a tick gets none: one timer, which runs only while
somebody waits, starts a watch for those who have waited longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Receive

_TICK = 0.05  # seconds


class _Wait:
    __slots__ = ("on_disconnect", "receive", "seen", "watch")

    def __init__(self, receive: Receive, on_disconnect: Callable[[], None]) -> None:
        self.receive = receive
        self.on_disconnect = on_disconnect
        self.seen = False
        self.watch: asyncio.Task[None] | None = None


class DisconnectWatch:
    """Watches the waiting clients of one server."""

    def __init__(self) -> None:
        self._waits: set[_Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, receive: Receive, on_disconnect: Callable[[], None]) -> _Wait:
        """Call `on_disconnect` if the client of this request disconnects before `end`. The body must have been read."""
        wait = _Wait(receive, on_disconnect)
        self._waits.add(wait)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._tick)
        return wait

    async def has_left(self, wait: _Wait) -> bool:
        """Whether the client is gone by now, even if `on_disconnect` is still on its way."""
        look = asyncio.ensure_future(wait.receive())  # answers at once if it is
        await asyncio.wait((look,), timeout=0)
        left = look.done() and look.result()["type"] == "http.disconnect"
        look.cancel()
        return left

    def end(self, wait: _Wait) -> None:
        """Stop watching: the answer is there."""
        self._waits.discard(wait)
        watch, wait.watch = wait.watch, None  # it refers to the wait: they would keep each other alive
        if watch is not None:
            watch.cancel()

    def _tick(self) -> None:
        unwatched = False
        for wait in self._waits:
            if wait.watch is None and wait.seen:
                wait.watch = asyncio.ensure_future(self._watch(wait))
            else:
                wait.seen = True
                unwatched = unwatched or wait.watch is None
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._tick) if unwatched else None

    async def _watch(self, wait: _Wait) -> None:
        while (await wait.receive())["type"] != "http.disconnect":
            pass
        wait.on_disconnect()
