"""Runs an async `run()`: every slot a task on one loop, stopped by the loop's own cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from functools import partial
from types import CoroutineType
from typing import Any

from geartrain.ipc.messages import Idle, ModelAnswer, Predict, SlotCancelled, WorkerLog, decode_call
from geartrain.worker.calls.call import Call, CallTools
from geartrain.worker.channels import forks
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import Slot
from geartrain.worker.runtime.model_calls import ModelCalls
from geartrain.worker.values.faults import note_yield

_PROMPT = 0.1  # seconds that a canceled run has for its cleanup before its client is answered without waiting for it


class _Running:
    """A call on a slot, and how far its end has come."""

    __slots__ = ("call", "canceled", "detached", "started", "task")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.task: asyncio.Task[None] | None = None
        self.started = False
        self.canceled = False
        self.detached = False

    def was_canceled(self) -> bool:
        """True if a cancel has come by now."""
        return self.canceled


class AsyncEngine:
    """The loop of a worker whose `run()` is a coroutine function or an async generator."""

    def __init__(
        self,
        run: Callable[..., Any],
        slots: list[Slot],
        control: Channel,
        *,
        models: ModelCalls,
        loop: asyncio.AbstractEventLoop,
        new_call: type[Call] = Call,
    ) -> None:
        self._run = run
        self._slots = slots
        self._control = control
        self._models = models
        self._loop = loop
        self._new_call = new_call
        self._running: dict[int, _Running] = {}
        self._early: dict[int, int] = {}  # by slot: the call whose cancel came before it
        self._stopping = False
        self._ended = False

    def serve(self, tools: CallTools, flush_c: Callable[[], None]) -> None:
        """Run calls until the parent has closed every slot."""
        self._tools = tools
        self._flush_c = flush_c
        channel = self._slots[0].channel
        self._loop.add_reader(channel.fileno(), self._on_readable, channel)
        while True:
            try:
                self._loop.run_forever()
                if not self._ended:
                    self._warn("the model stopped its event loop; the worker goes on")
                    continue
            except (SystemExit, KeyboardInterrupt):
                # A background task of the author's called sys.exit(): asyncio lets that out of the loop.
                self._warn("a background task of the model asked to exit; the worker goes on")
            else:
                return

    def _warn(self, text: str) -> None:
        self._control.send(WorkerLog("geartrain.worker", "warning", text))

    def cancel(self, slot: int, serial: int) -> None:
        """Stop a call, now or as soon as it begins."""
        self._loop.call_soon_threadsafe(self._cancel, slot, serial)

    def shut_down(self) -> None:
        """End after the running calls."""
        with contextlib.suppress(RuntimeError):  # the parent has closed the slots before: the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def call_async(self, function: Callable[[], Any]) -> Any:
        """Run an async healthcheck on the loop where the author's other async code runs."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    # on the loop

    def _on_readable(self, channel: Channel) -> None:
        payloads = channel.receive_ready()
        if payloads is None:
            self._loop.remove_reader(channel.fileno())
            self._stop()
            return
        for payload in payloads:
            message = decode_call(payload)
            if type(message) is Predict:  # nothing is prefetched here, so nothing is withdrawn
                self._begin(message)
            elif type(message) is ModelAnswer:
                self._models.on_answer(message)

    def _begin(self, message: Predict) -> None:
        number = message.slot
        running = _Running(self._new_call(message, self._slots[number], self._tools))
        if self._early.pop(number, None) == message.serial:
            running.canceled = True
        self._running[number] = running
        running.task = self._loop.create_task(self._serve_one(number, running))

    def _cancel(self, slot: int, serial: int) -> None:
        running = self._running.get(slot)
        if running is None or running.call.serial != serial:
            self._early[slot] = serial
            return
        if running.canceled:
            return  # once: a client that asks again must not disturb the cleanup
        running.canceled = True
        if running.started and running.task is not None:
            running.task.cancel()
            self._loop.call_later(_PROMPT, self._detach, slot, running)

    def _detach(self, slot: int, running: _Running) -> None:
        """The cleanup takes long: let the client go, and keep the slot until it is over."""
        if self._running.get(slot) is running:
            running.detached = True
            self._control.send(SlotCancelled(slot, running.call.id))

    def _stop(self) -> None:
        self._stopping = True
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._stopping and not self._running:
            self._ended = True
            self._loop.stop()

    async def _serve_one(self, slot: int, running: _Running) -> None:
        running.started = True
        call = running.call
        while True:
            report = await self._serve_invocation(running)
            if running.detached:
                call.close()
                break
            try:
                report()
            except BaseException as error:  # noqa: BLE001 - e.g. an output that is no JSON
                call.fail(error)
            if not call.waiting:
                break
        del report, self._running[slot]  # and the values that it has reported
        self._models.let_go_of_run((slot, call.serial))
        if running.detached:
            self._control.send(Idle(slot))
        self._stop_if_done()

    async def _serve_invocation(self, running: _Running) -> Callable[[], None]:
        """Make one invocation of `run()`; return what reports its end."""
        try:
            with running.call:
                report = await self._invoke(running)
                if forks.in_fork:
                    forks.end_fork()
                self._flush_c()
        except BaseException as error:  # noqa: BLE001 - nothing may end this task but its own end
            return running.call.failure(error)
        return report

    async def _invoke(self, running: _Running) -> Callable[[], None]:
        """Run the author's code; return what reports the end of this invocation."""
        call = running.call
        if running.canceled:
            return call.cancelled
        report: Callable[[], None]
        try:
            value = self._run(**call.arguments())
            if type(value) is CoroutineType or not isinstance(value, AsyncIterable):
                value = await value
            if isinstance(value, AsyncIterable):
                await _give(value, call)
                report = call.succeed_stream
            else:
                report = partial(call.succeed, value)
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
            # Only the worker's own cancel makes it canceled, whatever the exception is called.
            return call.cancelled if running.was_canceled() else call.failure(error)
        # A model that swallows its cancel and returns has been canceled all the same.
        return call.cancelled if running.was_canceled() else report


async def _give(values: AsyncIterable[Any], call: Call) -> None:
    """Report the values of a stream, one after the other."""
    try:
        async for value in values:
            call.send_chunk(value)
    except BaseException as error:  # raised by it, or by an output that is none, or because no item is left
        if isinstance(values, AsyncGenerator):
            note_yield(error, getattr(values, "ag_frame", None))
            await values.aclose()
        raise


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let the author's leftover tasks end and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(BaseException):
        if tasks:  # without any, `gather` would make another loop
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
