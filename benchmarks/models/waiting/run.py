"""A text of a word each 0.2 s, for many clients at once. The prompt `live` gives the number of runs."""

import asyncio

from geartrain import AsyncConcatenateIterator, BaseRunner


class Runner(BaseRunner):
    live = 0

    async def run(self, prompt: str, seconds: float = 3.0) -> AsyncConcatenateIterator[str]:
        if prompt == "live":
            yield str(self.live)
            return
        self.live += 1
        try:
            for _ in range(int(seconds * 5)):
                yield "word "
                await asyncio.sleep(0.2)
        finally:
            self.live -= 1
