"""A worker without a child process: it runs the author's async `run()` on the test's own loop. And no outputs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

import geartrain
from geartrain.authoring.batches import ItemError
from geartrain.authoring.decorators import BATCHED_ATTRIBUTE
from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.bridge.child import SetupError
from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    CallListener,
    Canceled,
    Failed,
    FileRef,
    HealthVerdict,
    ItemEnd,
    ItemEvent,
    ItemInput,
    Succeeded,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.predictions.events import Log, LogSource, Metric, MetricMode, Output
from geartrain.domain.tensors.tensor import pack
from geartrain.worker.loading.batched_signature import read_batched
from geartrain.worker.loading.callables import decorator_value
from geartrain.worker.loading.signature import read_parameters, read_signature
from geartrain.worker.stdio.router import LineWriter
from geartrain.worker.values.arguments import ArgumentBinder
from geartrain.worker.values.tensor_outputs import tensor_outputs

_PROMPT = 0.02  # seconds that a canceled run has for its cleanup before its client is answered

_writer: ContextVar[LineWriter] = ContextVar("writer")

_Chunk = tuple[bytes, tuple[FileRef, ...]]
_Given = tuple[bytes | None, tuple[FileRef, ...]]


class _Running:
    """A call that runs. `left` are the items that have not ended, by their indexes."""

    def __init__(self, call: CallInput, listener: CallListener) -> None:
        self.call = call
        self.listener = listener
        self.left = set(range(len(call.items)))
        self.task: asyncio.Task[None] | None = None
        self.began = False
        self.canceled = False
        self.detached = False
        self._given: dict[int, int] = {}  # by item: the position of its last output

    def next_index(self, item: int) -> int:
        """Count the outputs of a stream; return the position of the next one."""
        self._given[item] = index = self._given.get(item, -1) + 1
        return index

    def writer(self, item: int) -> LineWriter:
        """Make what writes the logs of an item, or of all."""

        def write(source: LogSource, text: str) -> None:
            if not self.detached:
                self.listener.on_event(ItemEvent(item, Log(source, text)))

        return LineWriter(write)

    def end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        """Tell of ends, if there is anything to tell."""
        self.left.difference_update([end.item for end in ends])
        if ends or idle:
            self.listener.on_end(ends, idle=idle)

    def fail(self, errors: Mapping[int, BaseException | str]) -> list[ItemEnd]:
        """Log why items fail, and return their ends."""
        ends = []
        for item, error in errors.items():
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.listener.on_event(ItemEvent(item, Log("stderr", f"{text}\n")))
            ends.append(ItemEnd(item, Failed(text)))
        return ends


class _Invocation:
    """One invocation of `run()` for some items of a call: their scopes and their logs."""

    def __init__(self, running: _Running, items: Sequence[int]) -> None:
        self.items = list(items)
        self._running = running
        self._writers: dict[int, LineWriter] = {}

    def begin(self) -> None:
        """Route prints and metrics to the items."""
        whole = self.items[0] if len(self.items) == 1 else ALL
        _writer.set(self._writer_of(whole))
        set_scope(self._scope_of(whole))

    def end(self) -> None:
        """Let partial lines out."""
        for writer in self._writers.values():
            writer.end()

    @contextlib.contextmanager
    def open_item(self, place: int) -> Iterator[Scope]:
        """Make the item at a place the current one."""
        item = self.items[place]
        before = _writer.set(self._writer_of(item))
        scope = self._scope_of(item)
        token = set_scope(scope)
        yield scope
        reset_scope(token)
        _writer.reset(before)

    def _writer_of(self, item: int) -> LineWriter:
        return self._writers.setdefault(item, self._running.writer(item))

    def _scope_of(self, item: int) -> Scope:
        call, listener = self._running.call, self._running.listener

        def emit(name: str, value: Any, mode: MetricMode) -> None:
            listener.on_event(ItemEvent(item, Metric(name, value, mode)))

        if item == ALL:
            return Scope(prediction_id=call.id, emit=emit, open_item=self.open_item)
        own = call.items[item]
        return Scope(
            prediction_id=own.id,
            context=own.context,
            parameters=own.parameters,
            emit=emit,
            open_item=self.open_item if len(call.items) > 1 else None,
        )


class FakeWorker:
    """`geartrain.service.ports.WorkerPort`, as promised there.

    `runner` may have `setup`, `healthcheck` and a hook `say(text, source)` for its prints; its `run` is a coroutine
    function or an async generator of an input `{"name": value}`. If that is `@batched`, it takes calls of several
    items, without tensors and files, and its inputs are lists of what the items have.
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
        owner = type(self.runner).__name__
        batching = None
        if decorator_value(self.runner.run, BATCHED_ATTRIBUTE) is None:
            signature = read_signature(self.runner.run, owner_name=owner)
            parameters = read_parameters(self.runner.run, owner_name="run()")
        else:
            parameters, signature, batching = read_batched(self.runner.run, owner_name=owner, settings={})
        has_healthcheck = self._own("healthcheck") is not None
        info = WorkerInfo(signature, self._slots, is_async=True, has_healthcheck=has_healthcheck, batching=batching)
        self._is_batched = batching is not None
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
        self._binder = ArgumentBinder(parameters)
        self._tensors = tensor_outputs(signature.output)
        self._is_ready = True
        return info

    is_debugged = False

    @property
    def may_prefetch(self) -> bool:
        """Its runs are async: each begins at once."""
        return False

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Run a call on an idle slot."""
        assert self._is_batched or len(call.items) == 1, "this model takes one at a time"
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

    pids = ()

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
        again: list[int] = sorted(running.left)
        ends: list[ItemEnd] = []
        while again:
            invocation = _Invocation(running, again)
            ends = []
            again = []
            began = time.perf_counter()
            try:
                given = {} if running.canceled else await self._call(running, invocation)
                took = time.perf_counter() - began
                ends = [ItemEnd(item, Succeeded(output, took), files) for item, (output, files) in given.items()]
            except ItemError as error:  # the others are run again
                blamed = {invocation.items[place]: reason for place, reason in error.reasons.items()}
                ends = [] if running.canceled else running.fail(blamed)
                again = [item for item in invocation.items if item not in blamed]
            except BaseException as error:  # noqa: BLE001 - the author's code may raise anything
                ends = [] if running.canceled else running.fail(dict.fromkeys(invocation.items, error))
            if self._running.get(slot) is not running:  # the worker has died
                return
            invocation.end()
            if running.canceled:
                break
            if again:
                running.end(ends, idle=False)
        self._finish(slot, running, ends)

    def _finish(self, slot: int, running: _Running, ends: Sequence[ItemEnd]) -> None:
        del self._running[slot]
        if running.detached:
            running.listener.on_idle()
        elif running.canceled:
            running.end([ItemEnd(item, Canceled()) for item in sorted(running.left)], idle=True)
        else:
            running.end(ends, idle=True)

    async def _call(self, running: _Running, invocation: _Invocation) -> Mapping[int, _Given]:
        """Run the author's code; return the value of each item that has not failed, or nothing after a stream."""
        inputs = running.call.items
        invocation.begin()
        bound = {item: self._binder.bind(inputs[item].input, inputs[item].tensors or ()) for item in invocation.items}
        if self._is_batched:
            value = self.runner.run(
                **{name: [own[name] for own in bound.values()] for name in bound[invocation.items[0]]}
            )
        else:
            value = self.runner.run(**bound[0])
        if not isinstance(value, AsyncIterable):
            return self._parts(await value, running, invocation)
        async with contextlib.aclosing(value) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                for item, (output, files) in self._parts(chunk, running, invocation).items():
                    if output != b"null" or not self._is_batched:
                        running.listener.on_event(ItemEvent(item, Output(output, running.next_index(item)), files))
        return dict.fromkeys([item for item in invocation.items if item in running.left], (None, ()))

    def _parts(self, value: Any, running: _Running, invocation: _Invocation) -> dict[int, _Chunk]:
        """Split what `run()` gave. An item whose part is an exception fails."""
        inputs, items = running.call.items, invocation.items
        if not self._is_batched:
            return {0: self._encode(value, inputs[0])}
        if not isinstance(value, list) or len(value) != len(items):
            raise TypeError(f"{len(items)} results were expected")
        own = {item: part for item, part in zip(items, value, strict=True) if item in running.left}
        failures = {item: part for item, part in own.items() if isinstance(part, BaseException)}
        running.end(running.fail(failures), idle=False)
        return {item: self._encode(part, inputs[item]) for item, part in own.items() if item not in failures}

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
