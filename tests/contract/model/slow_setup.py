"""The runners that return a value, with a setup that waits for the gate in `SETUP_GATE`, and may fail then."""

from __future__ import annotations

import os
import select
from typing import Any

from tests.contract.model import run as scripted


def _end() -> None:
    if "SETUP_FAILS" in os.environ:
        raise RuntimeError("boom in setup")


class AsyncValue(scripted.AsyncValue):
    """Waits on a loop."""

    async def setup(self, *_say: Any) -> None:
        """Wait; the fake worker gives something to print with."""
        await scripted.wait_on_loop(os.environ["SETUP_GATE"])
        _end()


class SyncValue(scripted.SyncValue):
    """Waits in place."""

    def setup(self) -> None:
        """Wait."""
        gate = os.open(os.environ["SETUP_GATE"], os.O_RDONLY | os.O_NONBLOCK)
        select.select([gate], [], [])
        _end()
