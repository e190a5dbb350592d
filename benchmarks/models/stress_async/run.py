"""As `stress`, but an async generator with many slots."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from geartrain import BaseRunner, Path, concurrent, streaming


class Runner(BaseRunner):
    @streaming
    @concurrent(max=32)
    async def run(self, text: str, steps: int = 1, pause: float = 0.0, end: str = "text") -> AsyncIterator[Any]:
        for step in range(steps):
            print(text, step)
            await asyncio.sleep(pause)
            yield f"{text} {step}"
        self.record_metric("steps", steps)
        if end == "failure":
            raise ValueError(text)
        if end == "file":
            with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
                file.write(text)
            yield Path(file.name)
        else:
            yield text
