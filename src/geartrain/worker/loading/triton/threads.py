"""Threads of a model that belong to the request they were started for: to its logs, its trace, and its time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, Final

_MARK: Final = "_geartrain_carries"


def carry_context() -> None:
    """Have each thread, and each call of a pool, run in the context that started it, in this process."""
    if hasattr(threading.Thread.start, _MARK):
        return
    threading.Thread.start = _start_of(threading.Thread.start)  # type: ignore[assignment, method-assign]
    ThreadPoolExecutor.submit = _submit_of(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


def _start_of(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(start)
    def start_in_context(self: threading.Thread) -> None:
        context, run = contextvars.copy_context(), self.run

        def run_in_context() -> None:
            del self.run  # without it, thread and method are a cycle
            context.run(run)

        self.run = run_in_context  # type: ignore[method-assign]
        start(self)

    setattr(start_in_context, _MARK, True)
    return start_in_context


def _submit_of(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @wraps(submit)
    def submit_in_context(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        return submit(self, contextvars.copy_context().run, fn, *args, **more)

    return submit_in_context
