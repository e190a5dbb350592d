"""Work beside an event loop that does not delay the end of the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_END: Final = 2.0  # seconds that a canceled coroutine has to leave what it has done in order


async def beside(work: Callable[[threading.Event], T]) -> T:
    """Run `work`, which may block, in a thread; return or raise what it does.

    `work` gets an event that is set when the caller is canceled; it has a moment to end then. Other than with
    `asyncio.to_thread`, neither the end of the loop nor that of the process waits for the thread.
    """
    abandoned = threading.Event()
    waiter = asyncio.wrap_future(_in_thread(lambda: work(abandoned)))
    waiter.add_done_callback(_heed)
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
    waiter.add_done_callback(_heed)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        is_canceled.set()
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait((waiter,), timeout=_END)
        raise


def _heed(ended: asyncio.Future[T]) -> None:
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
