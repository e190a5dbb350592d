"""As `tokens`, but async: many streams share one worker, and give way to each other at every token."""

import asyncio
from collections.abc import AsyncIterator

from cog import BaseRunner, streaming


class Runner(BaseRunner):
    @streaming
    async def run(self, count: int) -> AsyncIterator[str]:
        for _ in range(count):
            yield "token"
            await asyncio.sleep(0)
