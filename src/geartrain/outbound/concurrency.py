"""Two small helpers: blocking work in a thread that cancellation cannot outrun, and many jobs a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
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


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Do `work` on every item, at most `at_once` at a time, and begin no task per item.

    The first failure cancels the others and is raised as it is, not in a group.
    """
    queue = iter(items)

    async def worker(queue: Iterator[T]) -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker(queue))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
