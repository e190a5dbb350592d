"""A stream of tokens, as fast as they can be yielded or at a pace. Both servers run this very file."""

import time
from collections.abc import Iterator

from cog import BaseRunner, streaming


class Runner(BaseRunner):
    @streaming
    def run(self, count: int, gap: float = 0.0) -> Iterator[str]:
        if not gap:
            for _ in range(count):
                yield "token"
        for _ in range(count if gap else 0):
            yield str(time.perf_counter_ns())  # the clock that all processes of a machine share
            time.sleep(gap)
