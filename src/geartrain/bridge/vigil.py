"""Stays awake when something is about to come: after a sleep of milliseconds all that follows takes far longer.

A processor that has slept wakes slowly, and finds its caches cold. So under steady load the loop does not go to sleep
just before a run is expected to end, nor while those who got their answers are about to ask again. What that costs is a
small part of the time that the runs take, and nothing when little is asked.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

_SHORTEST: Final = 400e-6  # seconds; a shorter run is awaited on the spot
_LONGEST: Final = 50e-3  # of a run; nobody notices it behind a longer one
_DENSE: Final = 3e-3  # between two runs
_PART: Final = 0.1  # of a run, before and after its end
_LEAD: Final = 400e-6  # before its end, at least: timers are no better


class Vigil:
    """The loop's sleep, around the runs of a worker that runs one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0  # as all moments here, on the performance counter, in seconds
        self._is_awake = False
        self._began_at = 0.0
        self._ended_at = 0.0
        self._took = 0.0  # the latest run
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A run begins."""
        now = self._began_at = self._until = time.perf_counter()
        took = self._took
        if now - self._ended_at < _DENSE and _SHORTEST < took < _LONGEST:
            lead = max(_LEAD, _PART * took)
            delay = max(0, int((took - lead) * 1000)) / 1000  # the loop's timers are in milliseconds, and may round up
            self._timer = self._loop.call_later(delay, self._keep, now + took + lead)

    def end(self) -> None:
        """It has ended."""
        now = self._ended_at = time.perf_counter()
        self._took = now - self._began_at
        self._until = now
        if self._timer is not None:  # else the runs are not dense enough
            self._timer.cancel()
            self._timer = None
            self._keep(now + max(_LEAD, _PART * self._took))

    def close(self) -> None:
        """Sleep as ever."""
        self._until = 0.0
        if self._timer is not None:
            self._timer.cancel()

    def _keep(self, until: float) -> None:
        self._until = until
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        if time.perf_counter() < self._until:
            self._loop.call_soon(self._tick)  # a loop that has something to do does not sleep, and sees what comes
        else:
            self._is_awake = False
