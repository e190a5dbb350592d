"""A loop for tests of short limits of time, whose clock leaves out the moments in which the machine stood still."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import Any, Final

SLACK: Final = 0.1  # seconds that a turn of the loop may take, beyond what it waits for a timer


class _Selector(selectors.DefaultSelector):
    """Remembers how long it was to wait."""

    planned: float = 0.0  # seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.planned = math.inf if timeout is None else max(0.0, timeout)
        return super().select(timeout)


class SteadyLoop(asyncio.SelectorEventLoop):
    """Counts no more of a turn than it waits for a timer, and 0.1 s.

    A server and its client that share this loop stand still together: no limit of the one is over because the other
    had no processor.
    """

    def __init__(self) -> None:
        self._steady_selector = _Selector()
        self._looked_at = self._steady_now = time.monotonic()
        super().__init__(self._steady_selector)

    def time(self) -> float:
        """The seconds of a clock that is monotonic, and slower than others."""
        now = time.monotonic()
        allowed, self._steady_selector.planned = self._steady_selector.planned + SLACK, 0.0
        self._steady_now += min(now - self._looked_at, allowed)
        self._looked_at = now
        return self._steady_now


def steady_loops(*modules: str) -> Any:
    """Make the hook of a conftest that gives the asynchronous tests of these modules such a loop."""

    def pytest_asyncio_loop_factories(item: Any) -> dict[str, Any]:
        return {"loop": SteadyLoop if item.path.stem in modules else asyncio.new_event_loop}

    return pytest_asyncio_loop_factories
