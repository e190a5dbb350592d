"""A text of many tokens, as fast as they can be yielded or at a pace."""

import asyncio
from collections.abc import AsyncIterator

from geartrain import BaseRunner, streaming


class Runner(BaseRunner):
    @streaming
    async def run(self, prompt: str, count: int = 1, gap: float = 0.0) -> AsyncIterator[str]:
        token = f" {prompt.split(maxsplit=1)[0]}"
        for _ in range(count):
            yield token
            if gap:
                await asyncio.sleep(gap)
