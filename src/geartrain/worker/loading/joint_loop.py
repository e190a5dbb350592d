"""The loop of a model that requests join while it runs: the author's thread on one side, asyncio on the other.

For the worker such a model is an async one: each request is a coroutine, or an async generator, that hands its inputs
over and waits for what the author's loop gives it. So cancels, time limits, streams, logs and slots are those of every
async model.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from geartrain.authoring.joining import Arrivals, Batch, LiveRequest, Outlet
from geartrain.worker.errors import AnswerError, describe_error

_NOT_ENDED: Final = "run() has ended, and this request had not: call request.end() for each before it returns"


class JointLoop:
    """Runs one author's `run(batch)`, in a thread that begins with the first request, and again when it has ended."""

    def __init__(self, run: Callable[[Batch[Any, Any]], Any], make: Callable[..., Any], *, streams: bool) -> None:
        """`make` makes the author's object of the inputs of one request."""
        self._run = run
        self._make = make
        self._streams = streams
        self._arrivals: Arrivals[Any, Any] = Arrivals()
        self._told: deque[Outlet] = deque()
        self._is_waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_thread = False

    # asyncio

    async def value(self, values: Mapping[str, Any]) -> Any:
        """Have a request join; return its output."""
        outlet, request = self._join(values)
        try:
            while not outlet.has_ended:
                await outlet.ready.wait()
                outlet.ready.clear()
            return _result(outlet)
        finally:
            outlet.close()
            self._arrivals.discard(request)

    async def stream(self, values: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Have a request join; yield the pieces of its stream."""
        outlet, request = self._join(values)
        try:
            while not outlet.has_ended:
                await outlet.ready.wait()
                outlet.ready.clear()
                for piece in outlet.take():
                    yield piece
            _result(outlet)
        finally:
            outlet.close()
            self._arrivals.discard(request)

    def _join(self, values: Mapping[str, Any]) -> tuple[Outlet, LiveRequest[Any, Any]]:
        inputs = self._make(**values)
        outlet = Outlet(self._tell, asyncio.Event(), streams=self._streams)
        self._loop = asyncio.get_running_loop()
        request: LiveRequest[Any, Any] = LiveRequest(inputs, outlet, contextvars.copy_context())
        self._arrivals.put(request)
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._work, name="geartrain-batch", daemon=True).start()
        return outlet, request

    def _wake(self) -> None:
        self._is_waking = False  # first: what is told from here on wakes again
        while self._told:
            self._told.popleft().ready.set()

    # the author's thread

    def _tell(self, outlet: Outlet) -> None:
        self._told.append(outlet)
        if not self._is_waking and self._loop is not None:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is about to end
                self._loop.call_soon_threadsafe(self._wake)

    def _work(self) -> None:
        while True:
            batch: Batch[Any, Any] = Batch(self._arrivals)
            batch.wait()
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
                self._end_all(batch, error)
            else:
                self._end_all(batch, AnswerError(_NOT_ENDED))
            del batch  # the requests of a loop that has ended are not kept while the next one waits

    @staticmethod
    def _end_all(batch: Batch[Any, Any], error: BaseException) -> None:
        for request in batch.live:
            request.fail(error)


def _result(outlet: Outlet) -> Any:
    """Return the value of a request that has ended, or raise an exception of its own: to raise one changes it."""
    value, reason = outlet.result()
    if reason is None:
        return value
    if isinstance(reason, AnswerError):
        raise AnswerError(str(reason))
    if isinstance(reason, BaseException):
        raise AnswerError(describe_error(reason)) from reason
    raise AnswerError(str(reason))
