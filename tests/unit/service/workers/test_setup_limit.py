"""How long a setup may take."""

from __future__ import annotations

import asyncio

import pytest

from geartrain.service.workers.pool import setup_limit
from tests.support.hand_worker import HandWorker


class Nobody:
    """Hears nothing."""


def worker(debugged_until: int = 0) -> HandWorker:
    made = HandWorker(Nobody())  # type: ignore[arg-type]  # nothing is told to it
    made.debugged_until = debugged_until
    return made


async def test_setup_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError):
        async with setup_limit(0.01, worker()):
            await asyncio.Event().wait()


async def test_time_begins_anew_while_it_is_debugged() -> None:
    debugged = worker(3)
    with pytest.raises(TimeoutError):
        async with setup_limit(0.01, debugged):
            await asyncio.Event().wait()
    assert debugged.asked_for_debugger == 4


@pytest.mark.parametrize("seconds", [None, 30.0])
async def test_setup_in_time_leaves_nothing_behind(seconds: float | None) -> None:
    asked = worker()
    async with setup_limit(seconds, asked):
        await asyncio.sleep(0)
    assert asked.asked_for_debugger == 0
