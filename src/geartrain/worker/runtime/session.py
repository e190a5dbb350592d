"""The life of a worker, from the first message to its exit."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geartrain.authoring import nested
from geartrain.authoring.metrics import registry
from geartrain.domain.predictions.events import LogSource
from geartrain.ipc.messages import (
    PROTOCOL_VERSION,
    Fatal,
    Init,
    Loaded,
    Ready,
    SetupLog,
    WorkerLog,
    decode_control_to_worker,
)
from geartrain.ipc.waiting import wait_until_read
from geartrain.telemetry import author_spans
from geartrain.worker.channels import forks
from geartrain.worker.channels.cancellation import CancelRegion
from geartrain.worker.channels.channel import Channel, wakeup_of
from geartrain.worker.channels.slot import OpenedMemory, Slot, can_share
from geartrain.worker.debugging.aids import Aids
from geartrain.worker.errors import ChatTemplateError, describe_error, format_error
from geartrain.worker.loading import cog_alias
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load
from geartrain.worker.loading.setup import arguments_of_setup
from geartrain.worker.runtime.control import ControlThread
from geartrain.worker.runtime.model_calls import ModelCalls
from geartrain.worker.runtime.own_metrics import MetricsSender
from geartrain.worker.stdio.router import Router

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from geartrain.worker.calls.call import Call

_PR_SET_PDEATHSIG = 1
_LINE_BUFFERED = 1


def die_with_parent(alarm: int) -> None:
    """Have the kernel kill this process group when the parent ends, even while C code holds the interpreter.

    `alarm` is a pipe whose other end the parent alone holds, and that is never written to: when that end is closed, the
    owner of the pipe gets the signal set for it, and the owner is the group. A death signal (`PR_SET_PDEATHSIG`) would
    reach this process alone, and before that: processes that the model has started would be left. It is for where a
    sandbox has no other. Linux only; elsewhere the end of the control channel has to do.
    """
    os.set_inheritable(alarm, False)
    if sys.platform == "linux":
        try:
            fcntl.fcntl(alarm, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(alarm, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alarm, fcntl.F_SETFL, fcntl.fcntl(alarm, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def line_buffer_c_stdout() -> Callable[[], None]:
    """Have C's `stdout` written line by line, though it is a pipe; return a function that writes out the rest."""
    libc = ctypes.CDLL(None)
    try:
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    except ValueError:  # a C library that names it otherwise
        return lambda: None
    libc.setvbuf(stdout, None, _LINE_BUFFERED, 0)
    fflush = libc.fflush
    return lambda: fflush(stdout)


def _new_temporary_file() -> Path:
    """Return the path of a new file, for an input that fits no message."""
    descriptor, path = tempfile.mkstemp(prefix="geartrain-input-")
    os.close(descriptor)
    return Path(path)


class _SetupFailedError(Exception):
    """Load or setup failed; the message is the reason for the parent."""


def main() -> int:
    """Run the worker on the descriptors in `argv`, of both channels and the alarm; return the exit code."""
    descriptor, calls, alarm = map(int, sys.argv[1:4])
    die_with_parent(alarm)
    os.set_inheritable(descriptor, False)
    os.set_inheritable(calls, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    sys.argv = sys.argv[:1]
    faulthandler.enable(all_threads=False)  # the others are geartrain's own, and hide the author's frames
    forks.guard()
    control = Channel(socket.socket(fileno=descriptor))
    payload = control.receive()
    if payload is None:
        return 1
    init = decode_control_to_worker(payload)
    if not isinstance(init, Init) or init.protocol != PROTOCOL_VERSION:
        control.send(Fatal(f"the worker speaks protocol {PROTOCOL_VERSION}, the parent does not"))
        return 1
    try:
        os.chdir(init.root)
    except OSError as error:
        control.send(Fatal(f"the model's folder is gone: {error}"))
        return 1
    os.environ.update(init.environment)
    if init.debugging.terminal is not None:
        os.set_inheritable(init.debugging.terminal, False)
    return _Session(init, control, socket.socket(fileno=calls)).run()


class _Session:
    """One worker with one model."""

    def __init__(self, init: Init, control: Channel, calls: socket.socket) -> None:
        self._init = init
        self._control = control
        self._calls = calls
        self._region = CancelRegion()
        self._router = Router(self._setup_log)
        self._aids = Aids(init.debugging, control.send, self._region.shield)
        self._thread = ControlThread(control, self._aids.on_answer)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> int:
        """Load, set up, serve."""
        flush_c = line_buffer_c_stdout()
        self._router.install()
        cog_alias.install()
        self._thread.start()
        try:
            self._let_editors_attach()
            runner = self._load()
            number = self._number_of_slots(runner)
            if self._init.inspect:
                self._router.flush_ambient()
                flush_c()
                self._send_loaded(runner, number)
                return 0
            channel, models = self._begin_model_calls()
            self._send_loaded(runner, number)
            metrics = MetricsSender(registry, self._control.send, lambda: self._region.shield)
            metrics.attach()
            self._setup(runner, models)
            runner = self._with_chats(runner)
        except _SetupFailedError as error:
            self._router.flush_ambient()
            flush_c()
            self._control.send(Fatal(str(error)))
            return 1
        self._serve(runner, number, flush_c, channel=channel, models=models)
        metrics.flush()
        return 0

    # before Ready

    def _let_editors_attach(self) -> None:
        try:
            self._aids.let_editors_attach()
        except RuntimeError as error:
            msg = f"debugpy cannot listen: {error}"
            raise _SetupFailedError(msg) from error

    def _load(self) -> LoadedRunner:
        init = self._init
        try:
            if init.backend is not None:
                from geartrain.worker.loading.backend_runner import load_backend

                runner = load_backend(init.backend, init.batching)
                # Objects of libraries stay: collecting them again and again delays requests by 50 ms. An author's own
                # objects may be meant to be collected, so those of code are not frozen.
                gc.collect()
                gc.freeze()
                return runner
            return load(init.predictor_ref, Path(init.root), init.mode, batching=init.batching)
        except LoadError as error:
            if error.traceback:
                self._router.flush_ambient()
                self._setup_log("stderr", error.traceback)
            raise _SetupFailedError(str(error)) from error

    def _number_of_slots(self, runner: LoadedRunner) -> int:
        slots = self._init.num_slots or runner.max_concurrency or 1
        if slots > 1 and not runner.is_async:
            msg = (
                f"concurrency.max is {slots}, but run() is not async: a sync run() takes one prediction at a time. "
                "Make it `async def run(...)`, or set the concurrency to 1."
            )
            raise _SetupFailedError(msg)
        return slots

    def _send_loaded(self, runner: LoadedRunner, number: int) -> None:
        loaded = Loaded(
            slots=tuple(range(number)),
            signature=runner.signature,
            is_async=runner.is_async,
            has_healthcheck=runner.healthcheck is not None,
            batching=runner.batching,
            platform=runner.platform,
            shares_memory=can_share(self._init.probe),
            calls=runner.calls,
            cache=runner.cache,
        )
        self._control.send(loaded)

    def _begin_model_calls(self) -> tuple[Channel, ModelCalls]:
        """Return the connection of the calls, and the calls of other models over it, which begin in `setup()`."""
        channel = Channel(self._calls, shield=self._region.shield, wakeup=wakeup_of(self._init.wakeup, self._calls))
        models = ModelCalls(channel, _new_temporary_file)
        nested.provide(models)
        return channel, models

    def _setup(self, runner: LoadedRunner, models: ModelCalls) -> None:
        if runner.is_async:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        try:
            if runner.setup is not None:
                result = runner.setup(**arguments_of_setup(runner.setup_takes, self._init.weights))
                if hasattr(result, "__await__"):
                    self._await(result)
        except BaseException as error:
            self._router.flush_ambient()
            self._setup_log("stderr", format_error(error))
            msg = f"setup() failed: {describe_error(error)}"
            raise _SetupFailedError(msg) from error
        models.in_setup = False

    def _with_chats(self, runner: LoadedRunner) -> LoadedRunner:
        """Return a model whose prompt can be made of a chat, if it takes one."""
        if not runner.signature.inputs:
            return runner
        from geartrain.domain.signature.openai_view import openai_view  # late: with no inputs there is no prompt

        name = self._init.prompt or openai_view(runner.signature).prompt
        if not name:
            return runner
        from geartrain.worker.loading.chat_prompts import with_chats  # few models need it

        folders = [Path(folder) for folder in (self._init.root, self._init.weights) if folder]
        own = Path(self._init.root) / self._init.chat_template if self._init.chat_template else None
        try:
            parameters = with_chats(runner.parameters, name, instance=runner.instance, folders=folders, own=own)
        except ChatTemplateError as error:
            raise _SetupFailedError(str(error)) from error
        return runner._replace(parameters=parameters)

    def _await(self, awaitable: Any) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(awaitable)
        else:
            import asyncio

            asyncio.run(awaitable)

    def _setup_log(self, source: LogSource, data: str) -> None:
        wait_until_read(1, 2)  # output past Python comes first, in the order of writing
        self._control.send(SetupLog(source, data))

    # from Ready on

    def _warn(self, text: str) -> None:
        with self._region.shield:  # a chunk is checked where a cancel can strike
            self._control.send(WorkerLog("geartrain.worker", "warning", text))

    def _serve(self, runner: LoadedRunner, number: int, flush_c: Any, *, channel: Channel, models: ModelCalls) -> None:
        from geartrain.worker.calls.call import tools_of_model
        from geartrain.worker.values.call_files import CallFiles, CleanedCallFiles, TemporaryFiles, may_hold_files
        from geartrain.worker.values.faults import note_run
        from geartrain.worker.values.output_check import contract_of
        from geartrain.worker.values.outputs import OutputEncoder

        note_run(runner.run)
        signature = runner.signature
        contract = contract_of(runner.returns, for_cog=runner.for_cog, warn=self._warn)
        encoder = OutputEncoder(signature.output, None if signature.output.type.form else contract)
        tools = tools_of_model(
            runner.parameters,
            signature,
            runner.batching,
            encoder=encoder,
            router=self._router,
            control=self._control,
            compose=runner.compose,
        )
        memory = OpenedMemory()
        if may_hold_files(signature.output.type):
            temporary = TemporaryFiles(self._init.root)
            slots = [Slot(channel, CleanedCallFiles(temporary), memory, answers=models.answers) for _ in range(number)]
        else:
            slots = [Slot(channel, CallFiles(), memory, answers=models.answers) for _ in range(number)]
        models.slots = slots
        self._router.set_ambient(lambda _source, data: self._control.send(WorkerLog("model", "info", data)))
        flush_c()
        new_call, end_spans = self._trace()
        new_call = self._aids.kind_of_calls(new_call)
        if runner.is_async and self._loop is not None:
            from geartrain.worker.runtime.async_engine import AsyncEngine, close_loop

            models.loop = self._loop
            engine = AsyncEngine(runner.run, slots, self._control, models=models, loop=self._loop, new_call=new_call)
            self._thread.serve(engine, runner.healthcheck)
            self._control.send(Ready())
            engine.serve(tools, flush_c)
            close_loop(self._loop)
        else:
            from geartrain.worker.runtime.sync_engine import SyncEngine

            self._region.install()
            streams = signature.output.mode != "value"
            sync = SyncEngine(runner.run, slots[0], self._region, models=models, streams=streams, new_call=new_call)
            self._thread.serve(sync, runner.healthcheck)
            self._control.send(Ready())
            sync.serve(tools, flush_c)
        end_spans()

    def _trace(self) -> tuple[type[Call], Callable[[], None]]:
        """Return the kind of the calls, by whether the model may record spans, and what sends the last of its spans."""

        def warn(text: str) -> None:
            self._control.send(WorkerLog("geartrain.worker", "warning", text))

        end_spans = author_spans.provide(os.environ, warn)
        from geartrain.worker.calls.call import Call, traced

        return traced(Call) if author_spans.may_record(os.environ) else Call, end_spans
