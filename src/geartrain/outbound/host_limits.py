"""How many requests may be under way at once: to one receiver, and to all of them together.

A receiver that hangs keeps its own lane busy and no other's, and thousands of waiting requests hold no descriptor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Lane:
    __slots__ = ("gate", "users")

    def __init__(self, width: int) -> None:
        self.gate = asyncio.Semaphore(width)
        self.users = 0


class Lanes:
    """A lane for each receiver that somebody sends to; whoever waits is let in by turn."""

    def __init__(self, *, each: int, together: int) -> None:
        self._each = each
        self._together = asyncio.Semaphore(together)
        self._lanes: dict[str, _Lane] = {}

    @asynccontextmanager
    async def enter(self, receiver: str) -> AsyncIterator[None]:
        """Wait for a place in the lane of `receiver`, and keep it for the block."""
        lane = self._lanes.get(receiver)
        if lane is None:
            lane = self._lanes[receiver] = _Lane(self._each)
        lane.users += 1
        try:
            async with lane.gate, self._together:
                yield
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[receiver]
