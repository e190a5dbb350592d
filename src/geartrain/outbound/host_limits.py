"""Limits the requests that are under way at once: to one receiver, and to all together.

A receiver that does not answer holds up no other one, and thousands of waiting requests hold no descriptor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Limit:
    __slots__ = ("free", "users")

    def __init__(self, width: int) -> None:
        self.free = asyncio.Semaphore(width)
        self.users = 0


class HostLimits:
    """A limit for each receiver, and one for all together; waiting requests are let in by turn."""

    def __init__(self, *, each: int, together: int) -> None:
        self._each = each
        self._together = asyncio.Semaphore(together)
        self._limits: dict[str, _Limit] = {}

    @asynccontextmanager
    async def enter(self, receiver: str) -> AsyncIterator[None]:
        """Wait until a request to `receiver` may begin, and count it during the block."""
        limit = self._limits.get(receiver)
        if limit is None:
            limit = self._limits[receiver] = _Limit(self._each)
        limit.users += 1
        try:
            async with limit.free, self._together:
                yield
        finally:
            limit.users -= 1
            if not limit.users:
                del self._limits[receiver]
