"""Models that rest: they have no workers, and the next request loads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.scheduling.pending import DEFAULT_QUEUE

T = TypeVar("T")


class Waking:
    """Loads one model when a request needs it, and counts the requests that wait for that."""

    def __init__(self, load: Callable[[], Awaitable[None]], *, limit: int = DEFAULT_QUEUE) -> None:
        """`load` returns when the model is ready; requests share it. At most `limit` requests wait."""
        self.waiting = 0
        self._load = load
        self._limit = limit

    async def wait(self, time_limit: float | None) -> None:
        """Wait until the model is loaded, at most `time_limit` seconds.

        Raises `GeartrainError`: `QUEUE_FULL`, `TIMED_OUT`, and `NOT_READY` with the reason.
        """
        if self.waiting >= self._limit:
            raise GeartrainError(Code.QUEUE_FULL, "Exceeds maximum queue size")
        self.waiting += 1
        try:
            async with asyncio.timeout(time_limit):
                await self._load()
        except TimeoutError:
            msg = f"timed out after {time_limit:g} s, while the model was being loaded"
            raise GeartrainError(Code.TIMED_OUT, msg) from None
        finally:
            self.waiting -= 1


class ModelAsleepError(GeartrainError):
    """A model rests, or is on its way back: a caller that waits for it calls `wait`, and asks again then."""

    def __init__(self, name: str, waking: Waking | None) -> None:
        super().__init__(
            Code.NOT_READY, f"The model '{name}' is loaded when a prediction asks for it; it is not loaded now."
        )
        self._waking = waking

    async def wait(self, time_limit: float | None = None) -> None:
        """See `Waking.wait`. Raises `NOT_READY` where requests load no models."""
        if self._waking is None:
            raise GeartrainError(Code.NOT_READY, "The model is not loaded.")
        await self._waking.wait(time_limit)


async def when_loaded(ask: Callable[[], T], time_limit: float | None = None) -> T:
    """Call `ask` when its model has been loaded, if requests load models, and return the result.

    It may be unloaded for another one meanwhile; then it is loaded again, with `time_limit` seconds for each load.
    """
    while True:
        try:
            return ask()
        except ModelAsleepError as asleep:
            waiting = asleep
        await waiting.wait(time_limit)
