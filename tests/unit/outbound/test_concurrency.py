"""Many jobs a few at a time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from geartrain.outbound.concurrency import for_each, off_loop


class LostError(Exception):
    """A failure."""


async def test_no_more_are_done_at_once_than_asked_for() -> None:
    running, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await for_each(range(7), work, at_once=3)
    assert most == 3
    assert sorted(done) == list(range(7))


async def test_first_failure_cancels_the_others_and_is_raised_as_it_is() -> None:
    ended = []

    async def work(item: int) -> None:
        try:
            await asyncio.sleep(0)
            if item == 1:
                raise LostError(item)
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(LostError):
        await for_each(range(9), work, at_once=3)
    assert sorted(ended) == [0, 1, 2]


async def test_caller_that_is_canceled_twice_goes_on_when_all_have_ended() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    ended = []

    async def work(item: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go.wait()
            ended.append(item)

    task = asyncio.ensure_future(for_each([1], work, at_once=1))
    await begun.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]


def fail() -> None:
    raise LostError


async def fail_in_thread(_: int) -> None:
    await off_loop(fail)


def is_ours(found: object) -> bool:
    """True if it is a task of the jobs; what other tests have left may end here."""
    return isinstance(found, asyncio.Task) and "for_each" in repr(found.get_coro())


async def test_s2_failures_leave_no_cycle() -> None:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with pytest.raises(LostError):
            await for_each(range(3), fail_in_thread, at_once=2)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, LostError) or is_ours(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
