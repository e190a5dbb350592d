"""Runs the author's code step by step, so that a test has each yielded value before the next one is made.

A worker's engines take their calls from a socket and give all values at once; apart from that the same happens here.
"""

from __future__ import annotations

import asyncio
import types
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from types import NoneType
from typing import Any, Final

from geartrain.authoring import CancelationException
from geartrain.authoring.scope import Scope, current_scope
from geartrain.testing.calls import LocalCall, Prints
from geartrain.worker.channels.cancellation import CancelRegion
from geartrain.worker.loading.loader import LoadedRunner
from geartrain.worker.runtime.async_engine import close_loop
from geartrain.worker.runtime.sync_engine import STREAMS
from geartrain.worker.values.faults import note_yield

_END: Final = object()


class Drive:
    """The event loop of a model, which runs only while something is asked of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None

    def __call__(self, coroutine: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
        """Run a coroutine to its end."""
        return _beside_loops(lambda: self._run(coroutine, context))

    def cancel(self) -> None:
        """Cancel what runs now, from any thread."""
        task = self._task
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the tasks that are left."""
        _beside_loops(lambda: close_loop(self._loop))

    def _run(self, coroutine: Coroutine[Any, Any, Any], context: Context | None) -> Any:
        self._task = self._loop.create_task(coroutine, context=context)
        try:
            return self._loop.run_until_complete(self._task)
        finally:
            self._task = None


def _beside_loops(work: Callable[[], Any]) -> Any:
    """Run a loop: here, or in a thread of its own where another one runs here, as in a test that is a coroutine."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def make_steps(call: LocalCall, runner: LoadedRunner, prints: Prints, *, drive: Drive, region: CancelRegion) -> Steps:
    """Begin a call."""
    if runner.is_async:
        return _AsyncSteps(call, runner, prints, drive=drive, region=region)
    return _SyncSteps(call, runner, prints, region=region)


class Steps(Iterator[Any]):
    """The yielded values of one call; they end when it is over, however it has ended.

    They run in one context, and prints are routed while they do. `scope` is that of the latest invocation.
    """

    def __init__(self, call: LocalCall, runner: LoadedRunner, prints: Prints, *, region: CancelRegion) -> None:
        self.scope: Scope | None = None
        self._call = call
        self._runner = runner
        self._prints = prints
        self._region = region
        self._context = copy_context()

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the run where it stands, between two values."""

    @abstractmethod
    def cancel_from_outside(self) -> None:
        """Cancel the run, from another thread."""

    @abstractmethod
    def abandon(self) -> None:
        """Let the run go: it has no reader."""

    def _report(self, items: tuple[int, ...], value: Any, error: BaseException | None) -> None:
        """Report the end of an invocation, as the engines do."""
        call = self._call
        if self._region.was_requested(call.serial):
            call.cancelled()
            if not isinstance(error, CancelationException | asyncio.CancelledError | NoneType):
                call.error = error  # of its cleanup: a client does not hear of it, and a test should
        elif error is not None:
            call.fail(error)
        elif call.is_stream:
            call.succeed_stream()
        else:
            try:
                call.succeed(value)
                call.keep(value, items)
            except BaseException as fault:  # noqa: BLE001 - e.g. an output that is no JSON
                call.fail(fault)


class _SyncSteps(Steps):
    def __init__(self, call: LocalCall, runner: LoadedRunner, prints: Prints, *, region: CancelRegion) -> None:
        super().__init__(call, runner, prints, region=region)
        self._generator = self._generate()

    def __next__(self) -> Any:
        with self._prints.routed():
            return self._context.run(next, self._generator)

    def cancel(self) -> None:
        self._region.withdraw(self._call.serial)
        with self._prints.routed(), suppress(StopIteration, CancelationException):
            self._context.run(self._generator.throw, CancelationException())

    def cancel_from_outside(self) -> None:
        self._region.request(self._call.serial)

    def abandon(self) -> None:
        self._context.run(self._generator.close)

    def _generate(self) -> Generator[Any]:
        call = self._call
        while call.waiting:
            items = tuple(call.waiting[0])
            value, error = None, None
            try:
                with call:
                    self.scope = current_scope()
                    try:
                        arguments = call.arguments()
                        self._enter()
                        value = self._runner.run(**arguments)
                        yield from self._chunks(value, items)
                    finally:
                        self._region.leave()
            except GeneratorExit:
                call.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything
                error = raised
            self._report(items, value, error)

    def _enter(self) -> None:
        """Let a cancel strike from here on, until the region is left."""
        if not self._region.enter(self._call.serial):
            raise CancelationException

    def _chunks(self, values: Any, items: tuple[int, ...]) -> Generator[Any]:
        if self._runner.signature.output.mode == "value" and not isinstance(values, STREAMS):
            return
        call, region = self._call, self._region
        call.is_stream = True
        if not isinstance(values, Iterable) or isinstance(values, str | bytes | dict):
            values = (values,)
        for value in values:
            try:
                call.send_chunk(value, may_wait=True)
                call.keep_chunk(value, items)
                region.leave()
                yield value
                self._enter()
            except CancelationException as error:
                if isinstance(values, types.GeneratorType):
                    with suppress(StopIteration):
                        values.throw(error)
                raise
            except BaseException as error:  # an output is none, or the rest is dropped
                if isinstance(values, types.GeneratorType):
                    note_yield(error, values.gi_frame)
                    values.close()
                raise


class _AsyncSteps(Steps):
    def __init__(
        self, call: LocalCall, runner: LoadedRunner, prints: Prints, *, drive: Drive, region: CancelRegion
    ) -> None:
        super().__init__(call, runner, prints, region=region)
        self._drive = drive
        self._generator = self._generate()

    def __next__(self) -> Any:
        with self._prints.routed():
            value = self._drive(self._next(), self._context)
        if value is _END:
            raise StopIteration
        return value

    def cancel(self) -> None:
        self._region.withdraw(self._call.serial)
        with self._prints.routed():
            self._drive(self._throw(asyncio.CancelledError()), self._context)

    def cancel_from_outside(self) -> None:
        self._region.withdraw(self._call.serial)
        self._drive.cancel()

    def abandon(self) -> None:
        """Nothing: the loop closes what is left when the model ends."""

    async def _next(self) -> Any:
        return await anext(self._generator, _END)

    async def _throw(self, error: BaseException) -> None:
        with suppress(StopAsyncIteration, asyncio.CancelledError):
            await self._generator.athrow(error)

    async def _generate(self) -> AsyncGenerator[Any]:
        call = self._call
        while call.waiting:
            items = tuple(call.waiting[0])
            value, error = None, None
            try:
                with call:
                    self.scope = current_scope()
                    value = self._runner.run(**call.arguments())
                    if type(value) is types.CoroutineType or not isinstance(value, AsyncIterable):
                        value = await value
                    if isinstance(value, AsyncIterable):
                        call.is_stream = True
                        async for chunk in value:
                            try:
                                call.send_chunk(chunk)
                                call.keep_chunk(chunk, items)
                                yield chunk
                            except BaseException as fault:
                                await _end(value, fault)
                                raise
            except GeneratorExit:
                call.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything
                error = raised
            self._report(items, value, error)


async def _end(values: AsyncIterable[Any], error: BaseException) -> None:
    """End a stream that is canceled at its `yield`, or whose value is no output."""
    if not isinstance(values, AsyncGenerator):
        return
    note_yield(error, getattr(values, "ag_frame", None))
    if isinstance(error, asyncio.CancelledError):
        with suppress(StopAsyncIteration):
            await values.athrow(error)
    else:
        await values.aclose()
