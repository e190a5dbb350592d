"""Time limits of predictions and calls, independent of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from geartrain.domain.predictions.inference import LONGEST_TIMEOUT

SHORTEST_TIMEOUT: Final = 0.0005  # seconds; uvloop's timers count milliseconds, and round less than this to 0


class TimeLimit:
    """A timer that holds its own end.

    uvloop's handles for less than half a millisecond have no `when()`, so no handle is asked for it.
    """

    __slots__ = ("_handle", "ends_at")

    def __init__(self, seconds: float, on_expiry: Callable[..., None], *args: object) -> None:
        """Call `on_expiry` with `args` in `seconds`: at least 0, at most `LONGEST_TIMEOUT`."""
        seconds = min(max(0.0, seconds), LONGEST_TIMEOUT)
        self.ends_at = time.monotonic() + seconds
        self._handle = asyncio.get_running_loop().call_later(seconds, on_expiry, *args)

    @property
    def seconds_left(self) -> float:
        """The seconds until its end, at least 0."""
        return max(0.0, self.ends_at - time.monotonic())

    def cancel(self) -> None:
        """Stop the timer."""
        self._handle.cancel()
