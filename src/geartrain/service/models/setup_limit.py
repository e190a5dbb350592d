"""Time limit of a worker's setup."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from geartrain.service.ports import WorkerPort


@contextlib.asynccontextmanager
async def setup_limit(seconds: float | None, worker: WorkerPort) -> AsyncIterator[None]:
    """Raise TimeoutError inside the block when the time is up; None disables the limit.

    The time begins anew when it is up while somebody debugs the worker.
    """
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def set_timer(after: float) -> None:
        timers[:] = [loop.call_later(after, on_time_up, after)]

    def on_time_up(after: float) -> None:
        if worker.is_debugged:
            set_timer(after)
        else:
            scope.reschedule(loop.time())

    async with asyncio.timeout(None) as scope:
        if seconds is not None:
            set_timer(seconds)
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
