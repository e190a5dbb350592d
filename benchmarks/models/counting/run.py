"""Waits until it is canceled, and counts how often it was; many predictions at a time."""

import asyncio

from geartrain import BaseRunner


class Runner(BaseRunner):
    def setup(self) -> None:
        self.begun = self.canceled = 0

    async def run(self, what: str = "count") -> dict[str, int]:
        if what == "wait":
            self.begun += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.canceled += 1
                raise
        return {"begun": self.begun, "canceled": self.canceled}
