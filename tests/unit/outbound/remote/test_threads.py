from __future__ import annotations

import asyncio
import threading

import pytest

from geartrain.outbound.concurrency import beside, in_own_loop
from tests.support.servers import PATIENCE


async def test_work_beside_the_loop() -> None:
    assert await beside(lambda _abandoned: threading.current_thread().name) == "geartrain-download"
    with pytest.raises(OSError, match="no"):
        await beside(lambda _abandoned: open("/none/no"))  # noqa: PTH123, SIM115


async def test_work_hears_that_nobody_waits() -> None:
    begun, heard = threading.Event(), threading.Event()

    def work(abandoned: threading.Event) -> None:
        begun.set()
        if abandoned.wait(PATIENCE):
            heard.set()

    waiting = asyncio.ensure_future(beside(work))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(heard.wait, PATIENCE)


async def test_coroutine_in_a_loop_of_its_own() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def fail() -> None:
        raise ValueError("no")

    assert await in_own_loop(work) != threading.get_ident()
    with pytest.raises(ValueError, match="no"):
        await in_own_loop(fail)


async def test_coroutine_that_is_canceled_leaves_things_in_order() -> None:
    begun, left = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    waiting = asyncio.ensure_future(in_own_loop(work))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(left.wait, PATIENCE)
