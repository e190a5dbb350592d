"""Asks the author's healthcheck, for all who want to know at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from geartrain.service.ports import WorkerPort

HEALTHCHECK_TIMEOUT: Final = 5.0  # seconds; observed Cog, section 4


class HealthCheck:
    """Runs the healthchecks of workers. Concurrent callers share one run, and so its time limit."""

    def __init__(self) -> None:
        self._run: asyncio.Task[str | None] | None = None
        self._ends_at = 0.0  # on the loop's clock

    async def run(self, workers: Sequence[WorkerPort]) -> str | None:
        """Ask these workers, at most `HEALTHCHECK_TIMEOUT` seconds; return what is wrong, None if all is well."""
        if not workers:
            return None
        if self._run is None or self._run.done():
            self._run = asyncio.ensure_future(_ask(workers))
            self._ends_at = asyncio.get_running_loop().time() + HEALTHCHECK_TIMEOUT
        try:
            async with asyncio.timeout_at(self._ends_at):
                return await asyncio.shield(self._run)
        except TimeoutError:
            return f"Healthcheck failed: user-defined healthcheck timed out after {HEALTHCHECK_TIMEOUT} seconds"


async def _ask(workers: Sequence[WorkerPort]) -> str | None:
    """Return what is wrong with the first worker that is not healthy."""
    verdicts = await asyncio.gather(*(worker.healthcheck() for worker in workers))
    return next((verdict.error or "Healthcheck failed" for verdict in verdicts if not verdict.healthy), None)
