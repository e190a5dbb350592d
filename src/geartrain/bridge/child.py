"""A worker as the service sees it: `start`, `run`, `cancel`, `healthcheck`, `stop`, with a child process behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from geartrain.bridge.borrowing import Borrowing, Lender
from geartrain.bridge.channels import ControlChannel
from geartrain.bridge.payloads import WorkerFolder
from geartrain.bridge.process import SPARE, WorkerProcess, describe_exit
from geartrain.bridge.slots import SlotServer
from geartrain.bridge.stdio import RawOutput
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.predictions import calls
from geartrain.domain.predictions.calls import HealthVerdict
from geartrain.domain.state_machine import StateMachine
from geartrain.ipc.messages import (
    PROTOCOL_VERSION,
    BackendChoice,
    Cancel,
    ControlToParent,
    Debugging,
    DroppedLogs,
    Fatal,
    Healthcheck,
    HealthcheckResult,
    Idle,
    Init,
    Loaded,
    OwnMetrics,
    Ready,
    SetupLog,
    Shutdown,
    SlotCancelled,
    SlotFailed,
    TerminalReturned,
    TerminalWanted,
    WorkerLog,
)


class HealthChecks:
    """Sends the question, and gives each asker its answer."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self._asked: dict[int, asyncio.Future[HealthVerdict]] = {}
        self._last = 0

    async def ask(self) -> HealthVerdict:
        """Have the author's healthcheck run; wait for it as long as it takes."""
        self._last += 1
        check: asyncio.Future[HealthVerdict] = asyncio.get_running_loop().create_future()
        self._asked[self._last] = check
        self._control.send(Healthcheck(self._last))
        return await check

    def on_result(self, message: HealthcheckResult) -> None:
        """Answer the waiting healthchecks."""
        check = self._asked.pop(message.id, None)
        if check is not None and not check.done():
            check.set_result(HealthVerdict(healthy=message.status == "healthy", error=message.error))

    def fail(self, reason: str) -> None:
        """Answer everybody: the worker is gone."""
        asked, self._asked = self._asked, {}
        for check in asked.values():
            if not check.done():
                check.set_result(gone(reason))


def gone(reason: str) -> HealthVerdict:
    """Return the verdict on a worker that is gone."""
    return HealthVerdict(healthy=False, error=f"Healthcheck error: {reason}")


logger = logging.getLogger(__name__)

_DRAIN_LIMIT = 0.5  # seconds to read what a dead worker has left in its sockets
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class SetupError(Exception):
    """The worker could not be made ready; the message says why. What it printed went to the observer."""


class Launch(msgspec.Struct, frozen=True):
    """Program of a worker. `slots` None leaves their number to the model; a `backend` runs a file instead of code.

    `environment` are variables that the process is started with, `placement` those that it gets before it loads the
    model.
    """

    runner: str
    root: Path
    environment: Mapping[str, str] = {}
    slots: int | None = None
    mode: Literal["predict", "train"] = "predict"
    weights: str | None = None
    inspect: bool = False  # no setup and no calls: it says what it is, and ends
    backend: BackendChoice | None = None
    batching: Mapping[str, Any] | None = None  # settings of `domain.predictions.batching.BatchPolicy`
    prompt: str = ""  # see `Init`
    chat_template: str = ""  # see `Init`
    wakeup: WakeupMode = "adaptive"
    cpus: tuple[int, ...] = ()  # the processors that it is pinned to; none: it may use those of the server
    debugging: Debugging = Debugging()  # its terminal is that of the lender
    placement: Mapping[str, str] = {}


class ChildState(StrEnum):
    """State of a worker's process."""

    SPAWNED = "spawned"
    STARTING = "starting"  # its start is awaited
    SERVING = "serving"
    STOPPING = "stopping"  # it has been told to end
    DEAD = "dead"


CHILD_STEPS: Final[dict[ChildState, frozenset[ChildState]]] = {
    ChildState.SPAWNED: frozenset({ChildState.STARTING, ChildState.STOPPING}),
    ChildState.STARTING: frozenset({ChildState.SERVING, ChildState.STOPPING, ChildState.DEAD}),
    ChildState.SERVING: frozenset({ChildState.STOPPING, ChildState.DEAD}),
    ChildState.STOPPING: frozenset({ChildState.DEAD}),
    ChildState.DEAD: frozenset(),
}


_cleaning: Final[set[asyncio.Task[None]]] = set()  # a loop by itself would forget its tasks
_DEAD = ChildState.DEAD  # Python 3.11 calls a function to read it from its class


class _Setup:
    """Result of a worker's load and setup; the first one counts."""

    def __init__(self, *, inspects: bool) -> None:
        """`inspects`: the worker only says what it is, and runs no setup."""
        self.inspects = inspects
        self.infos: list[calls.WorkerInfo] = []  # self-description of the worker after it loaded its model
        self._is_over = asyncio.Event()
        self._faults: list[str] = []

    def succeed(self) -> None:
        """The worker, which has loaded its model, is ready."""
        if self.infos:
            self._is_over.set()

    def fail(self, reason: str) -> None:
        """The worker will not be ready; after a success this changes nothing."""
        if not self._is_over.is_set():
            self._faults.append(reason)
            self._is_over.set()

    async def result(self) -> calls.WorkerInfo:
        """Wait until it is over; raise `SetupError` if it has failed."""
        await self._is_over.wait()
        for reason in self._faults:
            raise SetupError(reason)
        return self.infos[-1]


class ChildWorker:
    """A worker in a child process. The child is spawned at once, so that it starts while the parent imports."""

    def __init__(self, launch: Launch, observer: calls.WorkerObserver, lender: Lender | None = None) -> None:
        """`lender` has the terminal for the debuggers of the worker."""
        self._life = StateMachine("the process of a worker", CHILD_STEPS, ChildState.SPAWNED)
        self._observer = observer
        folder = WorkerFolder()
        terminal = None if lender is None else lender.descriptor
        self._process = _process_for(launch, () if terminal is None else (terminal,))
        self.pids: tuple[int, ...] = (self._process.pid,)  # until it is dead
        self._output = RawOutput(self._process.stdout, self._process.stderr, observer.on_setup_log)
        self._slots = SlotServer(
            self._process.calls,
            folder,
            wakeup=launch.wakeup,
            before_end=self._output.pipes.drain,
            on_setup_call=observer.on_model_call,
        )
        self._control = ControlChannel(self._process.control, self._on_control, on_garbage=self.kill)
        self._output.pipes.before_read = self._control.drain  # until setup is over
        debugging = msgspec.structs.replace(launch.debugging, terminal=terminal)
        self._control.send(_init_of(launch, self._slots, debugging))
        self._borrowing = Borrowing(
            lender, self._process.pid, self._control.send, has_editor=bool(launch.debugging.port)
        )
        self._checks = HealthChecks(self._control)
        self._setup = _Setup(inspects=launch.inspect)
        self._has_exited = asyncio.Event()
        self._reason = ""  # reason of a kill, or of the death

    # the port

    async def start(self) -> calls.WorkerInfo:
        """Wait until setup is done; raise `SetupError` with the reason if it fails.

        The observer has heard before what the model takes and gives. A worker that only inspects has no setup to wait
        for.
        """
        self._life.step(ChildState.STARTING)
        loop = asyncio.get_running_loop()
        self._output.pipes.attach(loop)
        self._control.attach(loop)
        self._process.watch(lambda code: _call_soon_threadsafe(loop, self._on_exit, code))
        await self._slots.open()
        info = await self._setup.result()
        if self._life.state is not ChildState.STARTING:  # it died between its last word of setup and here
            if self._setup.inspects:  # expected: the description has come
                return info
            raise SetupError(self._reason or "the worker has been stopped")
        self._output.pipes.drain()  # output of setup past Python belongs to setup
        self._life.step(ChildState.SERVING)
        self._output.pipes.before_read = None
        self._output.begin_service(self._slots.channels)
        self._slots.begin_service(one_by_one=not info.is_async)
        return info

    def run(self, slot: int, call: calls.CallInput, listener: calls.CallListener) -> None:
        """Run a call on an idle slot; `listener` hears of it until its end."""
        if self._life.state is _DEAD:
            listener.on_unstarted()
        else:
            self._output.calls += 1
            self._slots.run(slot, call, listener)

    @property
    def may_prefetch(self) -> bool:
        """True if a call may be handed to a busy slot; see `RawOutput`."""
        return self._output.is_quiet

    @property
    def is_debugged(self) -> bool:
        """True if a debugger asks a person, or could, in an editor."""
        return self._borrowing.is_debugged

    def discard(self, files: Sequence[calls.FileRef]) -> None:
        """Remove the files of an output: they have been read, or are not needed."""
        self._slots.folder.discard(files)

    def cancel(self, slot: int, call_id: str) -> None:
        """Ask the worker to stop the call, or not to begin it, if the slot still has it."""
        serial = self._slots.withdraw(slot, call_id)
        if serial:
            self._control.send(Cancel(slot, serial))  # a prefetched call may have begun just now

    def kill(self, reason: str) -> None:
        """End the process at once; its calls fail for that reason."""
        self._reason = reason
        self._process.kill()

    async def healthcheck(self) -> calls.HealthVerdict:
        """Run the author's healthcheck; wait for it as long as it takes."""
        if self._borrowing.is_open:  # it cannot answer now
            return calls.HealthVerdict(healthy=True)
        return gone(self._reason) if self._life.state is _DEAD else await self._checks.ask()

    async def stop(self, grace: float) -> None:
        """End the worker: ask, wait `grace` seconds, kill. No process of it is left afterwards."""
        if self._life.state is ChildState.SPAWNED:  # no loop watches it
            self._life.step(ChildState.STOPPING)
            self._process.kill()
            self._process.reap()
            self._has_exited.set()
            self._close(now=True)
            return
        if self._life.state in {ChildState.STARTING, ChildState.SERVING}:
            self._life.step(ChildState.STOPPING)
        self._control.send(Shutdown())
        self._slots.shut_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._has_exited.wait()
        self._process.kill()
        await self._has_exited.wait()
        self._close(now=True)

    # from the child

    def _on_control(self, message: ControlToParent) -> None:  # noqa: C901, PLR0912 - one arm per message
        match message:
            case Loaded():
                self._on_loaded(message)
            case Ready():
                self._setup.succeed()
            case SetupLog(source, data):
                self._output.pipes.flush()
                self._observer.on_setup_log(source, data)
            case WorkerLog(target, level, text):
                if target == "model":
                    self._output.log.add(text)
                else:
                    logger.log(_LEVELS[level], text, extra={"worker_target": target, "pid": self._process.pid})
            case Fatal(reason):
                self._reason = reason
                self._output.pipes.drain()
                self._setup.fail(reason)
            case SlotCancelled() | SlotFailed():
                self._slots.detach(message)
            case Idle(slot):
                self._slots.channels[slot].on_idle()
            case HealthcheckResult():
                self._checks.on_result(message)
            case OwnMetrics(reports):
                self._observer.on_own_metrics(reports)
            case TerminalWanted() | TerminalReturned():
                self._output.pipes.drain()  # earlier output is shown before the prompt
                self._borrowing.on_message(message)
            case DroppedLogs(count, interval):
                logger.warning("the worker dropped %d log messages in %d ms", count, interval)
            case _:
                logger.debug("worker is shutting down", extra={"pid": self._process.pid})

    def _on_loaded(self, message: Loaded) -> None:
        info = calls.WorkerInfo(
            signature=message.signature,
            slots=len(message.slots),
            is_async=message.is_async,
            has_healthcheck=message.has_healthcheck,
            batching=message.batching,
            platform=message.platform or calls.PYTHON,
            calls=message.calls,
            cache=message.cache,
        )
        self._slots.add(len(message.slots), shares_memory=message.shares_memory)
        self._setup.infos.append(info)
        try:
            self._observer.on_loaded(info)
        except Exception as error:  # a fault of the server: without an end, the worker would stay without requests
            logger.exception("a loaded model could not be taken")
            self.kill(f"the server cannot serve the model: {error}")
            return
        if self._setup.inspects:
            self._setup.succeed()

    def _on_exit(self, code: int) -> None:
        cleaning = asyncio.ensure_future(self._clean_up(code))
        _cleaning.add(cleaning)
        cleaning.add_done_callback(_cleaning.discard)

    async def _clean_up(self, code: int) -> None:
        """Read what the dead worker has still sent, then end its calls."""
        self._process.kill()  # its process group: what it had started must not outlive it
        self._borrowing.end()
        await self._slots.drain(_DRAIN_LIMIT)
        self._output.pipes.drain()
        self._control.drain()
        reason = self._reason = f"{calls.WORKER_CRASHED}{self._reason or describe_exit(code)}"
        before = self._life.step(_DEAD)
        self.pids = ()
        self._setup.fail(reason)
        self._checks.fail(reason)
        await self._slots.fail(reason)
        if before is not ChildState.STOPPING:
            self._close(now=False)
        if before is ChildState.SERVING:
            self._observer.on_lost(reason)
        self._has_exited.set()

    def _close(self, *, now: bool) -> None:
        self._slots.close()
        self._control.close()
        self._output.close()
        self._slots.folder.close(now=now)


def _process_for(launch: Launch, inherited: Sequence[int]) -> WorkerProcess:
    """Return a process that has not been told what to run: one that has begun already, if that makes no difference."""
    if not (launch.environment or launch.cpus or inherited):
        for process in SPARE.take():
            return process
    return WorkerProcess(launch.root, launch.environment, launch.cpus, inherited=inherited)


def _init_of(launch: Launch, slots: SlotServer, debugging: Debugging) -> Init:
    """Return the message that tells a worker what to run."""
    return Init(
        protocol=PROTOCOL_VERSION,
        predictor_ref=launch.runner,
        root=str(launch.root),
        environment=dict(launch.placement),
        num_slots=launch.slots,
        mode=launch.mode,
        weights=launch.weights,
        inspect=launch.inspect,
        probe=None if slots.probe is None else slots.probe.path,
        backend=launch.backend,
        batching=None if launch.batching is None else dict(launch.batching),
        prompt=launch.prompt,
        chat_template=launch.chat_template,
        wakeup=slots.wakeup,
        debugging=debugging,
    )


def _call_soon_threadsafe(loop: asyncio.AbstractEventLoop, callback: object, code: int) -> None:
    # The loop may have been closed by the time a child that outlived it is reaped.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, code)  # type: ignore[arg-type]
