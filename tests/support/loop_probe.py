"""A measure of how long an event loop is kept from its other work."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, ParamSpec, Self

_PACE: Final = 0.005  # seconds between two looks
_MEASUREMENTS: Final = 3

P = ParamSpec("P")


class HeldError(AssertionError):
    """The loop was held longer than allowed."""


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

    def check(self, limit: float) -> None:
        """Raise `HeldError` if the loop was held for `limit` seconds or longer."""
        if self.longest >= limit:
            raise HeldError(f"The loop was held for {self.longest * 1000:.0f} ms; {limit * 1000:.0f} are allowed.")

    def _look_later(self) -> None:
        self._last = time.monotonic(), time.process_time()
        self._timer = asyncio.get_running_loop().call_later(_PACE, self._look)

    def _look(self) -> None:
        self._note()
        self._look_later()

    def _note(self) -> None:
        wall, cpu = time.monotonic() - self._last[0] - _PACE, time.process_time() - self._last[1]
        self.longest = max(self.longest, min(wall, cpu))


def least_of_several(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Repeat a test that measures holds, up to three times in all, until the measurement is within its limit.

    Processes that share processors and caches lengthen a measurement and never shorten it, so the least one is the
    closest to the truth. Only `HeldError` is measured again; any other failure is the test's.
    """

    @functools.wraps(test)
    async def measured(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(_MEASUREMENTS - 1):
            try:
                return await test(*args, **kwargs)
            except HeldError:
                continue
        return await test(*args, **kwargs)

    return measured
