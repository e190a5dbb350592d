"""Blocking work and coroutines in threads that cancellation cannot outrun, and many jobs a few at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_END: Final = 2.0  # seconds that a canceled coroutine has to leave what it has done in order


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


async def beside(work: Callable[[threading.Event], T]) -> T:
    """Run `work`, which may block, in a thread; return or raise what it does.

    `work` gets an event that is set when the caller is canceled; it has a moment to end then. Other than with
    `asyncio.to_thread`, neither the end of the loop nor that of the process waits for the thread.
    """
    abandoned = threading.Event()
    waiter = asyncio.wrap_future(_in_thread(lambda: work(abandoned)))
    waiter.add_done_callback(_retrieve)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        abandoned.set()
        await asyncio.wait((waiter,), timeout=_END)
        raise


async def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread with an event loop of its own; return or raise what it does.

    When the caller is canceled, so is the coroutine; it has a moment to end.
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    is_canceled = threading.Event()

    async def run() -> T:
        task = asyncio.ensure_future(work())
        running.append((asyncio.get_running_loop(), task))
        if is_canceled.is_set():
            task.cancel()
        return await task

    future = _in_thread(lambda: asyncio.run(run()))
    waiter = asyncio.wrap_future(future)
    waiter.add_done_callback(_retrieve)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        is_canceled.set()
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait((waiter,), timeout=_END)
        raise


def _retrieve(ended: asyncio.Future[T]) -> None:
    """Retrieve the error of work that may have no waiter any more."""
    if not ended.cancelled():
        ended.exception()


def _in_thread(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Run `work` in a thread that ends with the process."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on it has a result, with or without a waiter

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="geartrain-download", daemon=True).start()
    return future
