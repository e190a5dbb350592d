"""Two small helpers: blocking work in a thread that cancellation cannot outrun, and many jobs a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking `function` in a thread.

    Unlike `asyncio.to_thread`, a cancelled caller goes on only when the function has ended: what it works on (an open
    file, a folder) may then be closed or removed.
    """
    future = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):  # a second cancel must not cut the wait short
                await asyncio.wait((future,))
        if not future.cancelled():
            future.exception()  # seen: asyncio shall not report it as lost
        raise
    finally:
        del future  # its exception refers to this frame: a cycle


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Do `work` on every item, at most `at_once` at a time, and begin no task per item.

    The first failure cancels the others and is raised as it is. Not by a `TaskGroup`: each of its failures is a cycle.
    """
    queue = iter(items)
    tasks: list[asyncio.Task[None]] = []
    failures: list[Exception] = []  # the first

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    async def worker() -> None:
        try:
            for item in queue:
                await work(item)
        except Exception as error:  # noqa: BLE001 - raised below
            if not failures:
                failures.append(error)
                cancel()

    tasks += [asyncio.ensure_future(worker()) for _ in range(at_once)]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        cancel()
        while not all(task.done() for task in tasks):
            with suppress(asyncio.CancelledError):  # a second cancel must not cut the wait short
                await asyncio.wait(tasks)
        raise
    finally:
        tasks.clear()  # a canceled one refers to the frame that refers to it
    if failures:
        raise failures.pop()
