"""A measure of how long an event loop is kept from its other work."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final, Self

_PACE: Final = 0.005  # seconds between two looks


class LoopProbe:
    """The longest time that the running loop was held, in seconds.

    A hold counts by the wall clock or by the processor time of this process, whichever is less: while other processes
    have the processors, the loop is late without being held.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._timer: asyncio.TimerHandle
        self._last: tuple[float, float]

    def __enter__(self) -> Self:
        self._look_later()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._note()

    def _look_later(self) -> None:
        self._last = time.monotonic(), time.process_time()
        self._timer = asyncio.get_running_loop().call_later(_PACE, self._look)

    def _look(self) -> None:
        self._note()
        self._look_later()

    def _note(self) -> None:
        wall, cpu = time.monotonic() - self._last[0] - _PACE, time.process_time() - self._last[1]
        self.longest = max(self.longest, min(wall, cpu))
