"""Runs an async `run()`: every slot a task on one loop, stopped by the loop's own cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from functools import partial
from typing import Any

from geartrain.bridge.messages import Idle, Predict, PredictBatch, SlotCancelled, WorkerLog, decode_slot_to_worker
from geartrain.worker.channel import Channel
from geartrain.worker.forks import end_fork
from geartrain.worker.job import JobTools, Runnable
from geartrain.worker.jobs import first_call

_PROMPT = 0.1  # seconds that a canceled run has for its cleanup before its client is answered without waiting for it


class _Running:
    """A job on a slot, and how far its end has come."""

    __slots__ = ("canceled", "detached", "job", "started", "task")

    def __init__(self, job: Runnable) -> None:
        self.job = job
        self.task: asyncio.Task[None] | None = None
        self.started = False
        self.canceled = False
        self.detached = False

    def was_canceled(self) -> bool:
        """Whether a cancel has come by now."""
        return self.canceled


class AsyncEngine:
    """The loop of a worker whose `run()` is a coroutine function or an async generator."""

    def __init__(
        self, run: Callable[..., Any], slots: list[Channel], control: Channel, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._run = run
        self._slots = slots
        self._control = control
        self._loop = loop
        self._running: dict[int, _Running] = {}
        self._early: dict[int, int] = {}  # a cancel that came before its job
        self._open = len(slots)
        self._stopping = False
        self._ended = False

    def serve(self, tools: JobTools, flush_c: Callable[[], None]) -> None:
        """Run jobs until the parent has closed every slot."""
        self._tools = tools
        self._flush_c = flush_c
        for slot, channel in enumerate(self._slots):
            self._loop.add_reader(channel.fileno(), self._on_readable, slot, channel)
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
        """Stop a job, now or as soon as it begins."""
        self._loop.call_soon_threadsafe(self._cancel, slot, serial)

    def shut_down(self) -> None:
        """End after the running jobs."""
        self._loop.call_soon_threadsafe(self._stop)

    def call_async(self, function: Callable[[], Any]) -> Any:
        """Run an async healthcheck on the loop where the author's other async code runs."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    # on the loop

    def _on_readable(self, slot: int, channel: Channel) -> None:
        payloads = channel.receive_ready()
        if payloads is None:
            self._loop.remove_reader(channel.fileno())
            self._open -= 1
            self._stop_if_done()
            return
        for payload in payloads:
            self._begin(slot, channel, decode_slot_to_worker(payload))

    def _begin(self, slot: int, channel: Channel, message: Predict | PredictBatch) -> None:
        running = _Running(first_call(message, channel, self._tools))
        if self._early.pop(slot, None) == message.serial:
            running.canceled = True
        self._running[slot] = running
        running.task = self._loop.create_task(self._serve_one(slot, running))

    def _cancel(self, slot: int, serial: int) -> None:
        running = self._running.get(slot)
        if running is None or running.job.serial != serial:
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
            self._control.send(SlotCancelled(slot, running.job.id))

    def _stop(self) -> None:
        self._stopping = True
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._running and (self._stopping or not self._open):
            self._ended = True
            self._loop.stop()

    async def _serve_one(self, slot: int, running: _Running) -> None:
        running.started = True
        while True:
            job = running.job
            report = await self._serve_call(running)
            if running.detached:
                job.close()
                break
            try:
                report()
            except BaseException as error:  # noqa: BLE001 - e.g. an output that is no JSON
                job.fail(error)
            following = job.follow_up()
            if following is None:
                break
            running.job = following
        del self._running[slot]
        if running.detached:
            self._control.send(Idle(slot))
        self._stop_if_done()

    async def _serve_call(self, running: _Running) -> Callable[[], None]:
        """Make one call; return what reports its end."""
        try:
            with running.job:
                report = await self._call(running)
                end_fork()
                self._flush_c()
        except BaseException as error:  # noqa: BLE001 - nothing may end this task but its own end
            return _failure(running.job, error)
        return report

    async def _call(self, running: _Running) -> Callable[[], None]:
        """Run the author's code; return the report that ends the job."""
        job = running.job
        if running.canceled:
            return job.cancelled
        report: Callable[[], None]
        try:
            value = self._run(**job.arguments())
            if not isinstance(value, AsyncIterable):
                value = await value
            if isinstance(value, AsyncIterable):
                await self._give(value, job)
                report = job.succeed_stream
            else:
                report = partial(job.succeed, value)
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
            report = _failure(job, error)
        # Only our own cancel makes it canceled, whatever the exception is called (and whether it is swallowed or not).
        return job.cancelled if running.was_canceled() else report

    @staticmethod
    async def _give(values: AsyncIterable[Any], job: Runnable) -> None:
        try:
            async for value in values:
                job.send_chunk(value)
        except BaseException:  # its own, or what it gave is no output, or nobody waits for more
            if isinstance(values, AsyncGenerator):
                await values.aclose()
            raise


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let the author's leftover tasks end and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(BaseException):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _failure(job: Runnable, error: BaseException) -> Callable[[], None]:
    return lambda: job.fail(error)
