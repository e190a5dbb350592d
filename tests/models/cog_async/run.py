"""An async runner: many predictions on one loop, an object as its output."""

from __future__ import annotations

import asyncio
from typing import Optional

import cog
from cog import BaseModel, Input


class Box(BaseModel):
    left: int
    top: int
    label: Optional[str] = None


class Finding(BaseModel):
    boxes: list[Box]
    running: int
    summary: str


class Runner(cog.BaseRunner):
    async def setup(self) -> None:
        self.running = 0
        self.together = asyncio.Event()

    @cog.concurrent(max=4)
    async def run(
        self,
        labels: list[str] = Input(description="One box for each"),
        wait_for: int = Input(description="Answer when so many predictions run at once", ge=1, le=4, default=1),
        shift: int | float = Input(default=0),
    ) -> Finding:
        self.running += 1
        most = self.running
        try:
            if self.running >= wait_for:
                self.together.set()
            await self.together.wait()
            print(f"found {len(labels)} of {labels}")
            boxes = [Box(left=index, top=int(index + shift), label=label) for index, label in enumerate(labels)]
            return Finding(boxes=boxes, running=most, summary=", ".join(labels))
        finally:
            self.running -= 1
            if not self.running:
                self.together.clear()
