"""A worker as the service sees it: `start`, `run`, `cancel`, `healthcheck`, `stop`, with a child process behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from geartrain.bridge.capture import OutputPipes
from geartrain.bridge.control import ControlChannel
from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.messages import (
    PROTOCOL_VERSION,
    BackendChoice,
    Cancel,
    ControlToParent,
    DroppedLogs,
    Fatal,
    Healthcheck,
    HealthcheckResult,
    Idle,
    Init,
    Loaded,
    Ready,
    SetupLog,
    Shutdown,
    SlotCancelled,
    SlotFailed,
    WorkerLog,
)
from geartrain.bridge.process import WorkerProcess, describe_exit
from geartrain.bridge.slot_memory import new_probe
from geartrain.bridge.slot_state import SlotState
from geartrain.bridge.slots import SlotChannel, stop_accepting
from geartrain.bridge.wakeup import WakeupMode, effective_mode, new_policy
from geartrain.domain import work
from geartrain.domain.events import LogSource

logger = logging.getLogger(__name__)
model_logger = logging.getLogger("geartrain.model")

_FEW = 4  # slots
_LAST_WORDS = 0.5  # seconds to read what a dead worker has left in its sockets
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class SetupError(Exception):
    """The worker could not be made ready; the message says why. What it printed went to the observer."""


class Launch(msgspec.Struct, frozen=True):
    """What to run, and where. `slots` None leaves the number to the model; a `backend` runs a file instead of code."""

    runner: str
    root: Path
    environment: Mapping[str, str] = {}
    slots: int | None = None
    mode: Literal["predict", "train"] = "predict"
    weights: str | None = None
    inspect: bool = False  # no setup and no calls: it says what it is, and ends
    backend: BackendChoice | None = None
    batching: Mapping[str, Any] | None = None  # settings of `domain.batching.BatchPolicy`
    wakeup: WakeupMode = "adaptive"


class _Life:
    """What a started worker has reached: made on the loop that watches it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ready: asyncio.Future[work.WorkerInfo] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.attached = asyncio.Event()


class ChildWorker:
    """A worker in a child process. The child is spawned at once, so that it starts while the parent imports."""

    def __init__(self, launch: Launch, observer: work.WorkerObserver) -> None:
        self._observer = observer
        self._inspects = launch.inspect
        self._info: work.WorkerInfo | None = None
        self._folder = WorkerFolder()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder.address))
        self._listener.listen(socket.SOMAXCONN)
        self._process = WorkerProcess(launch.root, launch.environment)
        self._control = ControlChannel(self._process.control, self._on_control)
        self._probe = new_probe()
        self._wakeup = effective_mode(launch.wakeup)
        self._control.send(
            Init(
                protocol=PROTOCOL_VERSION,
                predictor_ref=launch.runner,
                root=str(launch.root),
                slot_address=str(self._folder.address),
                num_slots=launch.slots,
                mode=launch.mode,
                weights=launch.weights,
                inspect=launch.inspect,
                probe=None if self._probe is None else self._probe.path,
                backend=launch.backend,
                batching=None if launch.batching is None else dict(launch.batching),
                wakeup=self._wakeup,
            )
        )
        self._pipes = OutputPipes(self._process.stdout, self._process.stderr, self._on_raw_output)
        self._channels: list[SlotChannel] = []
        self._slots: dict[int, SlotChannel] = {}
        self._loading: set[asyncio.Task[None]] = set()  # inputs that are being written to files
        self._checks: dict[int, asyncio.Future[work.HealthVerdict]] = {}
        self._next_check = 0
        self._life: _Life | None = None
        self._server: asyncio.Server | None = None
        self._setting_up = True
        self._stopping = False
        self._fatal: str | None = None
        self._death: str | None = None

    # the port

    async def start(self) -> work.WorkerInfo:
        """Wait until setup is done and every slot is attached; raise `SetupError` with the reason if it fails.

        The observer has heard before what the model takes and gives. A worker that only inspects has neither setup nor
        slots to wait for.
        """
        loop = asyncio.get_running_loop()
        life = self._life = _Life(loop)
        self._pipes.attach(loop)
        self._control.attach(loop)
        self._process.watch(lambda code: _call_soon_threadsafe(loop, self._on_exit, code))
        self._server = await loop.create_unix_server(self._make_slot, sock=self._listener)
        try:
            info = await life.ready
            while len(self._slots) < info.slots and not self._inspects and self._death is None:
                life.attached.clear()
                await life.attached.wait()
        finally:
            await stop_accepting(self._server, self._listener)
            self._close_probe()
        if self._death is not None:  # it died between its last word of setup and here: nobody has been told yet
            raise SetupError(self._death)
        self._pipes.drain()  # what setup wrote past Python is setup's
        self._setting_up = False
        for channel in self._slots.values():
            channel.wakeup = new_policy(self._wakeup, loop, one_by_one=not info.is_async)
        return info

    def run(self, slot: int, call: work.CallInput, listener: work.CallListener) -> None:
        """Run a call on an idle slot; `listener` hears of it until its end."""
        if self._death is not None:
            listener.on_unstarted()
            return
        loading = self._slots[slot].run(call, listener, alone=call.lone and self._is_idle())
        if loading is not None:
            self._loading.add(loading)
            loading.add_done_callback(self._loading.discard)

    def _is_idle(self) -> bool:
        """Whether no call runs. With many slots that is not worth a look at each of them, and the answer is no."""
        return len(self._slots) <= _FEW and all(slot.state is SlotState.FREE for slot in self._slots.values())

    def discard(self, files: Sequence[work.FileRef]) -> None:
        """Remove the files of an output: they have been read, or nobody wants them."""
        self._folder.discard(files)

    def cancel(self, slot: int, call_id: str) -> None:
        """Ask the worker to stop the call, if the slot still runs it."""
        call = self._slots[slot].call
        if call.call_id == call_id:
            self._control.send(Cancel(slot, call.serial))

    def kill(self, reason: str) -> None:
        """End the process at once; its calls fail for that reason."""
        self._fatal = reason
        self._process.kill()

    async def healthcheck(self) -> work.HealthVerdict:
        """Run the author's healthcheck; wait for it as long as it takes."""
        if self._death is not None:
            return work.HealthVerdict(healthy=False, error=f"Healthcheck error: {self._death}")
        self._next_check += 1
        check: asyncio.Future[work.HealthVerdict] = asyncio.get_running_loop().create_future()
        self._checks[self._next_check] = check
        self._control.send(Healthcheck(self._next_check))
        return await check

    async def stop(self, grace: float) -> None:
        """End the worker: ask, wait `grace` seconds, kill. Nothing of it is left afterwards."""
        self._stopping = True
        life = self._life
        if life is None:  # never started: no loop has watched it
            self._process.kill()
            self._process.reap()
        else:
            self._control.send(Shutdown())
            for channel in self._slots.values():
                channel.shut_down()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await asyncio.shield(life.exited)
            self._process.kill()
            await life.exited
        await self._close(now=True)

    # from the child

    def _make_slot(self) -> SlotChannel:
        channel = SlotChannel(self._folder, on_attach=self._attach, before_end=self._pipes.drain)
        self._channels.append(channel)
        return channel

    def _attach(self, slot: int, channel: SlotChannel) -> bool:
        if slot in self._slots:
            return False
        self._slots[slot] = channel
        if self._life is not None:
            self._life.attached.set()
        return True

    def _on_control(self, message: ControlToParent) -> None:  # noqa: C901, PLR0912 - one arm per message
        match message:
            case Loaded():
                self._on_loaded(message)
            case Ready():
                self._on_ready()
            case SetupLog(source, data):
                self._observer.on_setup_log(source, data)
            case WorkerLog(target, level, text):
                if target == "model":
                    model_logger.log(_LEVELS[level], text.rstrip("\n"))
                else:
                    logger.log(_LEVELS[level], text, extra={"worker_target": target, "pid": self._process.pid})
            case Fatal(reason):
                self._fatal = reason
                self._pipes.drain()
                self._on_setup_failed(reason)
            case SlotCancelled(slot, call_id):
                if self._slots[slot].call.call_id == call_id:
                    self._detach(slot, work.Canceled())
            case SlotFailed(slot, error):
                self._detach(slot, work.Failed(error))
            case Idle(slot):
                self._slots[slot].on_idle()
            case HealthcheckResult(check_id, status, error):
                check = self._checks.pop(check_id, None)
                if check is not None and not check.done():
                    check.set_result(work.HealthVerdict(healthy=status == "healthy", error=error))
            case DroppedLogs(count, interval):
                logger.warning("the worker dropped %d log messages in %d ms", count, interval)
            case _:
                logger.debug("worker is shutting down", extra={"pid": self._process.pid})

    def _on_loaded(self, message: Loaded) -> None:
        self._info = work.WorkerInfo(
            signature=message.signature,
            slots=len(message.slots),
            is_async=message.is_async,
            has_healthcheck=message.has_healthcheck,
            batching=message.batching,
            platform=message.platform or work.PYTHON,
        )
        self._observer.on_loaded(self._info)
        if self._inspects:
            self._on_ready()

    def _on_ready(self) -> None:
        if self._info is not None and self._life is not None and not self._life.ready.done():
            self._life.ready.set_result(self._info)

    def _on_setup_failed(self, reason: str) -> None:
        if self._life is None:
            return
        self._life.attached.set()  # nobody is to wait for slots that will not come
        if not self._life.ready.done():
            self._life.ready.set_exception(SetupError(reason))

    def _detach(self, slot: int, outcome: work.Outcome) -> None:
        self._pipes.drain()
        self._slots[slot].detach(outcome)

    def _on_raw_output(self, source: LogSource, data: str) -> None:
        if self._setting_up:
            self._observer.on_setup_log(source, data)
            return
        running = [slot.call for slot in self._slots.values() if slot.state is SlotState.RUNNING]
        if len(running) == 1:
            running[0].listener.on_log(work.ALL, source, data)
        else:
            for line in data.splitlines():
                model_logger.info(line, extra={"source": source})

    def _on_exit(self, code: int) -> None:
        self._burial = asyncio.ensure_future(self._bury(code))

    async def _bury(self, code: int) -> None:
        """Let the dead worker's last words arrive, then end what it had left undone."""
        self._process.kill()  # its process group: what it had started must not outlive it
        if self._slots:
            await asyncio.wait([channel.lost for channel in self._slots.values()], timeout=_LAST_WORDS)
        self._pipes.drain()
        self._control.drain()
        reason = self._death = f"Worker crashed: {self._fatal or describe_exit(code)}"
        self._on_setup_failed(reason)
        for channel in self._slots.values():
            channel.fail(reason)
        for check in self._checks.values():
            if not check.done():
                check.set_result(work.HealthVerdict(healthy=False, error=f"Healthcheck error: {reason}"))
        self._checks.clear()
        if self._loading:
            await asyncio.wait(self._loading)  # they are writing into the folder
        if not self._stopping:
            await self._close(now=False)
            if not self._setting_up:
                self._observer.on_lost(reason)
        if self._life is not None:
            self._life.exited.set_result(code)

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()

    async def _close(self, *, now: bool) -> None:
        self._close_probe()
        await stop_accepting(self._server, self._listener)
        for channel in self._channels:  # also those that have not told yet which slot they are
            channel.close()
        self._control.close()
        self._pipes.close()
        self._folder.close(now=now)


def _call_soon_threadsafe(loop: asyncio.AbstractEventLoop, callback: object, code: int) -> None:
    # The loop may have been closed by the time a child that outlived it is reaped.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, code)  # type: ignore[arg-type]
