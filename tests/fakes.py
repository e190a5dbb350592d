"""A worker without a child process: it runs the author's async `run()` on the test's own loop. And no outputs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

import geartrain
from geartrain.authoring.scope import Scope, set_scope
from geartrain.bridge.child import SetupError
from geartrain.domain.events import LogSource, Metric, MetricMode
from geartrain.domain.tensors import pack
from geartrain.domain.work import (
    ALL,
    CallInput,
    CallListener,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    ItemEnd,
    ItemInput,
    Outcome,
    Succeeded,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.worker.arguments import ArgumentBinder
from geartrain.worker.introspect import read_parameters, read_signature
from geartrain.worker.streams import LineWriter
from geartrain.worker.tensor_outputs import tensor_outputs

_PROMPT = 0.02  # seconds that a canceled run has for its cleanup before its client is answered

_writer: ContextVar[LineWriter] = ContextVar("writer")


class _Running:
    def __init__(self, call: CallInput, listener: CallListener) -> None:
        self.call = call
        self.item = call.items[0]
        self.listener = listener
        self.task: asyncio.Task[None] | None = None
        self.began = False
        self.canceled = False
        self.detached = False
        self.writer = LineWriter(self._print)

    def _print(self, source: LogSource, text: str) -> None:
        if not self.detached:
            self.listener.on_log(0, source, text)


class FakeWorker:
    """`geartrain.service.ports.WorkerPort`, as promised there.

    `runner` may have `setup`, `healthcheck` and a hook `say(text, source)` for its prints; its `run` is a coroutine
    function or an async generator of an input `{"name": value}`.
    """

    def __init__(self, runner: Any, observer: WorkerObserver, *, slots: int = 1) -> None:
        self.runner = runner
        self.is_stopped = False
        self._is_ready = False
        self._observer = observer
        self._slots = slots
        self._running: dict[int, _Running] = {}
        self._death: str | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        self._copies: Path | None = None
        if hasattr(runner, "say"):
            runner.say = lambda text, source: _writer.get().write(source, text)

    # the port

    async def start(self) -> WorkerInfo:
        """Tell the signature, then run `setup` if there is one; its prints are what it calls its argument with."""
        signature = read_signature(self.runner.run, owner_name=type(self.runner).__name__)
        has_healthcheck = self._own("healthcheck") is not None
        info = WorkerInfo(signature, self._slots, is_async=True, has_healthcheck=has_healthcheck)
        self._observer.on_loaded(info)
        setup = self._own("setup")
        if setup is not None:
            try:
                result = setup(self._observer.on_setup_log)
                if result is not None:
                    await self._unless_dead(result)
            except Exception as error:
                if self._death is not None:
                    raise SetupError(self._death) from None
                raise SetupError(f"setup() failed: {type(error).__name__}: {error}") from error
        self._binder = ArgumentBinder(read_parameters(self.runner.run, owner_name="run()"))
        self._tensors = tensor_outputs(signature.output)
        self._is_ready = True
        return info

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Run a call on an idle slot."""
        assert len(call.items) == 1, "this fake takes no batches"
        assert slot not in self._running, f"slot {slot} is in use"
        if self._death is not None:
            listener.on_unstarted()
            return
        running = self._running[slot] = _Running(call, listener)
        listener.on_begin()
        running.task = asyncio.ensure_future(self._serve(slot, running))

    def cancel(self, slot: int, call_id: str) -> None:
        """Cancel the call if the slot still runs it."""
        running = self._running.get(slot)
        if running is not None and running.call.id == call_id and not running.detached:
            running.canceled = True
            if running.began and running.task is not None:
                running.task.cancel()
                asyncio.get_running_loop().call_later(_PROMPT, self._detach, slot, running)

    def discard(self, files: Sequence[FileRef]) -> None:
        """Remove the copies."""
        for file in files:
            Path(file.filename).unlink(missing_ok=True)

    def kill(self, reason: str) -> None:
        """Die soon."""
        asyncio.get_running_loop().call_soon(self.die, reason)

    async def healthcheck(self) -> HealthVerdict:
        """Run the runner's healthcheck."""
        if self._death is not None:
            return HealthVerdict(healthy=False, error=f"Healthcheck error: {self._death}")
        check = self._own("healthcheck")
        try:
            verdict = None if check is None else await self._unless_dead(check())
        except Exception as error:  # noqa: BLE001 - the author's code
            return HealthVerdict(healthy=False, error=f"Healthcheck failed: {type(error).__name__}: {error}")
        if verdict is False:
            return HealthVerdict(healthy=False, error="Healthcheck failed: user-defined healthcheck returned False")
        return HealthVerdict(healthy=True)

    async def stop(self, grace: float) -> None:
        """Wait for running calls, then end them."""
        self.is_stopped = True
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        self._end_all("Worker crashed: stopped")
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)

    # for tests

    def die(self, reason: str) -> None:
        """End as a crashed process does."""
        self._end_all(f"Worker crashed: {reason}")
        if self._is_ready:  # before that, its start has failed, and that is all that is told
            self._observer.on_lost(f"Worker crashed: {reason}")

    # inside

    def _own(self, name: str) -> Callable[..., Any] | None:
        """A method that the author wrote: the base class has one that says nothing."""
        method = getattr(type(self.runner), name, None)
        own = method is not None and method is not getattr(geartrain.BaseRunner, name)
        return getattr(self.runner, name) if own else None

    async def _unless_dead(self, awaitable: Any) -> Any:
        task = asyncio.ensure_future(awaitable)
        self._waiting.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._death is not None:
                raise RuntimeError(self._death) from None
            raise
        finally:
            self._waiting.discard(task)

    def _end_all(self, reason: str) -> None:
        self._death = reason
        for waiting in self._waiting:
            waiting.cancel()
        for running in tuple(self._running.values()):
            if not running.detached:
                running.detached = True
                running.listener.on_end((ItemEnd(ALL, Failed(reason)),), idle=False)
            if running.task is not None:
                running.task.cancel()
        self._running.clear()

    def _detach(self, slot: int, running: _Running) -> None:
        if self._running.get(slot) is running and not running.detached:
            running.detached = True
            running.listener.on_end((ItemEnd(ALL, Canceled()),), idle=False)

    async def _serve(self, slot: int, running: _Running) -> None:
        running.began = True
        began = time.perf_counter()
        outcome: Outcome
        files: tuple[FileRef, ...] = ()
        try:
            output, files = (None, ()) if running.canceled else await self._call(running)
            outcome = Succeeded(output, time.perf_counter() - began)
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything
            outcome = Failed(f"{type(error).__name__}: {error}")
            if not running.canceled:
                running.writer.write("stderr", f"{outcome.error}\n")
        if self._running.get(slot) is not running:  # the worker has died
            return
        running.writer.end()
        del self._running[slot]
        if running.detached:
            running.listener.on_idle()
        elif running.canceled:
            running.listener.on_end((ItemEnd(0, Canceled()),), idle=True)
        else:
            running.listener.on_end((ItemEnd(0, outcome, files),), idle=True)

    async def _call(self, running: _Running) -> tuple[bytes | None, tuple[FileRef, ...]]:
        item, listener = running.item, running.listener
        _writer.set(running.writer)

        def emit(name: str, value: Any, mode: MetricMode) -> None:
            listener.on_metric(0, Metric(name, value, mode))

        set_scope(Scope(prediction_id=item.id, context=item.context, parameters=item.parameters, emit=emit))
        value = self.runner.run(**self._binder.bind(item.input, item.tensors or ()))
        if not isinstance(value, AsyncIterable):
            return self._encode(await value, item)
        async with contextlib.aclosing(value) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                listener.on_output(0, *self._encode(chunk, item))
        return None, ()

    def _encode(self, value: object, item: ItemInput) -> tuple[bytes, tuple[FileRef, ...]]:
        """JSON, packed tensors, or a copy of a file: the model may go on to overwrite its own."""
        if self._tensors is not None and item.tensors is not None:
            rest, tensors = self._tensors.split(value)
            return b"".join(pack(msgspec.json.encode(rest), tensors)), ()
        if self._tensors is not None:
            value = self._tensors.plain(value)
        if not isinstance(value, os.PathLike):
            return msgspec.json.encode(value), ()
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="geartrain-fake-"))
        token = f"token-{os.urandom(8).hex()}"
        copy = shutil.copyfile(value, self._copies / f"{token}-{Path(value).name}")
        return msgspec.json.encode(token), (FileRef(token, str(copy), "text/plain"),)
