"""The parent's end of a slot, which carries one call at a time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec

from geartrain.bridge.channels import CallSocket
from geartrain.bridge.model_calls import WorkerModelCalls
from geartrain.bridge.payloads import LONG_TEXT, SlotFiles, SlotMemory, WorkerFolder, new_probe, wants_memory
from geartrain.bridge.wakeup import Blocking, WakeupMode, WakeupPolicy, effective_mode, new_policy
from geartrain.domain.predictions import calls
from geartrain.domain.state_machine import steps_to
from geartrain.ipc.framing import frame
from geartrain.ipc.messages import (
    Inline,
    ModelCall,
    ModelCallEnd,
    ModelRunEnd,
    Payload,
    Reports,
    SlotCancelled,
    SlotFailed,
    Withdraw,
    encode,
)
from geartrain.ipc.payload import discard


class SlotState(StrEnum):
    """State of a slot."""

    FREE = "free"
    LOADING = "loading"  # the input of its call is being written to a file
    RUNNING = "running"
    DETACHED = "detached"  # its call has been ended from outside, and the worker is still busy with it
    CLOSED = "closed"


SLOT_STEPS: Final[dict[SlotState, frozenset[SlotState]]] = {
    SlotState.FREE: frozenset({SlotState.LOADING, SlotState.RUNNING, SlotState.CLOSED}),
    SlotState.LOADING: frozenset({SlotState.RUNNING, SlotState.FREE, SlotState.CLOSED}),
    SlotState.RUNNING: frozenset({SlotState.FREE, SlotState.DETACHED, SlotState.CLOSED}),
    SlotState.DETACHED: frozenset({SlotState.FREE, SlotState.CLOSED}),
    SlotState.CLOSED: frozenset(),
}
TO_SLOT_STATE: Final = steps_to("a slot", SLOT_STEPS)


logger = logging.getLogger(__name__)


def tell(listener: Callable[..., None], *arguments: object, **named: object) -> None:
    """Call a listener. What it raises is a bug in the server: it is logged, and reaches neither the slot nor others."""
    try:
        listener(*arguments, **named)
    except Exception:
        logger.exception("the listener of a call has failed")


# Python 3.11 calls a function to read a member of an enumeration from its class: 0.2 µs, 1 % of a chunk.
_FREE, _RUNNING = SlotState.FREE, SlotState.RUNNING
_to_free, _to_running = TO_SLOT_STATE[_FREE], TO_SLOT_STATE[_RUNNING]


class SlotCall(msgspec.Struct, frozen=True, eq=False):
    """A call on a slot: its number among the calls of the slot, its id, its listener."""

    serial: int
    call_id: str
    listener: calls.CallListener
    packed: bool = False  # true if shared memory is of use to it
    source: calls.CallInput | None = None  # the worker may read it in place until the call is over


class SlotChannel:
    """Translates the messages of one slot into calls of the listener whose call runs on it."""

    def __init__(
        self, number: int, socket: CallSocket, folder: WorkerFolder, *, has_others: bool, shares_memory: bool
    ) -> None:
        """`number` is that of the slot. `has_others`: so the worker does, and calls that meet travel together.

        `shares_memory`: the worker can open memory of this process.
        """
        self.state = _FREE
        self.call: SlotCall | None = None  # that runs
        self.wakeup: WakeupPolicy = Blocking()
        self.is_last = False  # the worker is to end after this call
        self.following: deque[SlotCall] = deque()  # prefetched, in their order: the worker may have begun them
        self._last_serial = 0
        self.memory = SlotMemory(is_possible=shares_memory)
        self._has_others = has_others
        self._number = number
        self._socket = socket
        self._files = SlotFiles(number, folder, self.memory)
        socket.join(number, self._on_reports)

    # towards the worker

    def run(self, call: calls.CallInput, listener: calls.CallListener, *, alone: bool) -> asyncio.Task[None] | None:
        """Run a call on a free slot, or after those that the slot has if it is prefetched.

        `alone`: the server may block until the call ends. Returns the task that writes its input to a file, if that is
        too large for a message.
        """
        self._last_serial = serial = self._last_serial + 1
        payload: Payload | None
        first = call.items[0]
        if first.tensors is None and len(call.items) == 1 and len(first.input) <= LONG_TEXT:  # nearly all
            slot_call, payload = SlotCall(serial, call.id, listener), Inline(first.input)
        else:
            packed = wants_memory(call)
            payload = self._files.received(call)
            slot_call = SlotCall(serial, call.id, listener, packed, None if payload is None else call)
            if payload is None:
                payload = self._files.place(call, may_share=packed and not call.prefetch)
        if call.prefetch:
            payload = payload or self._files.to_file(call)
            message = self._files.message(call, serial, payload, packed=slot_call.packed)
            send = self._socket.write_soon if self.following else self._socket.write
            self.following.append(slot_call)
            send(message)
            return None
        self.call = slot_call
        if payload is None:
            self.state = TO_SLOT_STATE[SlotState.LOADING](self.state)
            return asyncio.ensure_future(self._load(call, slot_call))
        self._begin(call, slot_call, payload, alone=alone)
        return None

    async def _load(self, call: calls.CallInput, slot_call: SlotCall) -> None:
        try:
            payload: Payload = await asyncio.to_thread(self._files.to_file, call)
        except OSError as error:
            if self.state is SlotState.LOADING:
                self.state = _to_free(self.state)
                self.call = None
                failure = calls.Failed(f"the input could not be handed to the worker: {error}")
                tell(slot_call.listener.on_end, (calls.ItemEnd(calls.ALL, failure),), idle=True)
            return
        if self.state is SlotState.LOADING:
            self._begin(call, slot_call, payload, alone=False)
        else:
            discard(payload)

    def _begin(self, call: calls.CallInput, slot_call: SlotCall, payload: Payload, *, alone: bool) -> None:
        self.wakeup.before_send(alone=alone)
        message = self._files.message(call, slot_call.serial, payload, packed=slot_call.packed)
        self.state = _to_running(self.state)  # not before: a call that cannot be encoded leaves the slot free
        if self._has_others and not call.single_client:
            self._socket.write_soon(message)
        else:
            self._socket.write(message)
        tell(slot_call.listener.on_begin)
        if alone:
            self.wakeup.wait(self._poll)

    def _poll(self) -> bool:
        """Read what has come; return whether there is nothing more to wait for."""
        return self.state is not _RUNNING or self._socket.read() or self.state is not _RUNNING

    # an end from outside

    def detach(self, outcome: calls.Outcome) -> None:
        """End the call while the worker is still busy with it: `on_idle` follows, or never comes."""
        if self.state is _RUNNING and self.call is not None:
            self.state = TO_SLOT_STATE[SlotState.DETACHED](self.state)
            tell(self.call.listener.on_end, (calls.ItemEnd(calls.ALL, outcome),), idle=False)

    def on_idle(self) -> None:
        """Free the slot: the worker is done with a call that was ended from outside."""
        if self.state is SlotState.DETACHED and self.call is not None:
            self._files.temporary_files.clear()  # the worker has deleted them
            listener = self.call.listener
            self._free()
            tell(listener.on_idle)

    def fail(self, reason: str) -> None:
        """End what the slot has, because its worker has died or cannot be understood, and close it."""
        self._files.delete_temporary_files()
        state, call, following = self.state, self.call, tuple(self.following)
        self.call = None
        self.following.clear()
        self.close()
        if call is not None and state is _RUNNING:
            tell(call.listener.on_end, (calls.ItemEnd(calls.ALL, calls.Failed(reason)),), idle=False)
        elif call is not None and state is SlotState.LOADING:
            tell(call.listener.on_unstarted)
        for each in reversed(following):  # each goes to the front of the queue
            tell(each.listener.on_unstarted)

    def shut_down(self) -> None:
        """Close the slot when its call is over, at once if there is none."""
        self.is_last = True
        if self.state is _FREE:
            self.close()

    def close(self) -> None:
        """Take no more calls. The connection is closed with the last slot. Repeating it is harmless."""
        if self.state is not SlotState.CLOSED:
            self.state = TO_SLOT_STATE[SlotState.CLOSED](self.state)
        self.memory.close()
        self.wakeup.close()
        self._socket.leave(self._number)

    # from the worker

    def on_model_call(self, message: ModelCall, models: WorkerModelCalls) -> None:
        """Pass a call of another model to the listener of the call that makes it, unless that is over."""
        call = self.call
        if call is None or message.serial != call.serial or self.state is not _RUNNING:
            models.refuse(message, "the prediction that called it is over")
            return
        self.memory.is_for_calls = True
        self._files.answers = models
        models.begin(
            message,
            partial(tell, call.listener.on_model_call),
            read=self._files.read_input,
            may_share=self.memory.is_possible,
        )
        self.wakeup.resume()

    def _on_reports(self, message: Reports) -> None:
        """Pass the events of a call to its listener, then the ends of its items."""
        files, call = self._files, self.call
        if call is None or message.serial != call.serial or self.state is not _RUNNING:
            files.discard(message)
            if message.idle:
                logger.debug("a slot reported on a call that does not run")
            return
        listener = call.listener
        ends: list[calls.ItemEnd] = []
        for report in files.read(message) if message.shared else message.reports:
            if report.files:
                files.take(report.files)
            if type(report) is calls.ItemEnd:
                ends.append(report)
            else:
                tell(listener.on_event, report)
        if message.idle:
            self._end(listener, ends)
        elif ends:
            self._socket.before_end()
            tell(listener.on_end, ends, idle=False)

    def _end(self, listener: calls.CallListener, ends: Sequence[calls.ItemEnd]) -> None:
        """End the call that runs: the worker is done with it."""
        if len(self.following) <= 1:  # with several there is nothing to wait for
            self.wakeup.on_end(ends)
        self._socket.before_end()
        self._files.temporary_files.clear()
        self._free()
        tell(listener.on_end, ends, idle=True)
        if self.is_last and self.state is _FREE:
            self.close()

    def _free(self) -> None:
        """Begin the next prefetched call, or become free."""
        if self.memory.is_to_trim:
            self.memory.trim()
        self.state = _to_free(self.state)
        self.call = None
        if self.following:
            self.call = following = self.following.popleft()
            self.state = _to_running(self.state)
            if not self.following:
                self.wakeup.before_send(alone=False)
            tell(following.listener.on_begin)


_FEW: Final = 4  # slots


class SlotServer:
    """The slots of a worker, and the connection that they share."""

    def __init__(
        self,
        sock: socket.socket,
        folder: WorkerFolder,
        *,
        wakeup: WakeupMode,
        before_end: Callable[[], None],
        on_setup_call: Callable[[calls.ModelCallPort], None],
    ) -> None:
        """`sock` is this end of the connection; needs no running loop. `on_setup_call` takes calls of models by setup.

        `before_end()` is called just before items end, so that whatever they have written to the descriptors comes
        first.
        """
        self.channels: dict[int, SlotChannel] = {}  # by slot, once the worker has said how many it has
        self.wakeup = effective_mode(wakeup)
        self.probe = new_probe()  # memory that the worker tries to open
        self.folder = folder
        self._before_end = before_end
        self._loading: set[asyncio.Task[None]] = set()  # inputs that are being written to files
        self.calls = CallSocket(sock, drain=before_end, on_garbage=self._fail, on_model_call=self._on_model_call)
        self.models = WorkerModelCalls(self.calls, folder.new_input)
        self._on_setup_call = on_setup_call

    async def open(self) -> None:
        """Send and receive from now on."""
        await self.calls.open()

    def add(self, count: int, *, shares_memory: bool) -> None:
        """Note how many slots the worker has, and whether it can open the memory of this process."""
        self._close_probe()
        for slot in range(count):
            self.channels[slot] = SlotChannel(
                slot, self.calls, self.folder, has_others=count > 1, shares_memory=shares_memory
            )

    def begin_service(self, *, one_by_one: bool) -> None:
        """Wait for reports as the wakeup mode says; `one_by_one`: the worker runs one call after another."""
        loop = asyncio.get_running_loop()
        # With many slots no call is taken to be alone, so nothing would be awaited on the spot.
        mode = self.wakeup if len(self.channels) <= _FEW else "blocking"
        for channel in self.channels.values():
            channel.wakeup = new_policy(mode, loop, one_by_one=one_by_one)
            channel.memory.share(len(self.channels))

    def run(self, slot: int, call: calls.CallInput, listener: calls.CallListener) -> None:
        """Run a call on an idle slot, or lay it behind those that the slot has if it is prefetched."""
        loading = self.channels[slot].run(call, listener, alone=call.single_client and _are_free(self.channels))
        if loading is not None:
            self._loading.add(loading)
            loading.add_done_callback(self._loading.discard)

    def withdraw(self, slot: int, call_id: str) -> int:
        """Have the worker not begin a prefetched call, and return the call's serial number.

        Of the call that runs only the number is returned. 0: the slot has no such call.
        """
        channel = self.channels[slot]
        for following in channel.following:
            if following.call_id == call_id:
                self.calls.write(frame(encode(Withdraw(following.serial))))
                return following.serial
        running = channel.call
        return running.serial if running is not None and running.call_id == call_id else 0

    def detach(self, message: SlotCancelled | SlotFailed) -> None:
        """End a call that the worker is still busy with, or will never end."""
        channel = self.channels[message.slot]
        if isinstance(message, SlotFailed):
            self._before_end()
            channel.detach(calls.Failed(message.error))
        elif channel.call is not None and channel.call.call_id == message.id:
            self._before_end()
            channel.detach(calls.Canceled())

    def _on_model_call(self, message: ModelCall | ModelCallEnd | ModelRunEnd) -> None:
        if type(message) is ModelCallEnd:
            self.models.end(message.number)
        elif type(message) is ModelRunEnd:
            self.models.end_run(message)
        elif type(message) is ModelCall and message.slot < 0:
            self.models.begin(message, partial(tell, self._on_setup_call), read=None, may_share=False)
        elif type(message) is ModelCall:
            self.channels[message.slot].on_model_call(message, self.models)

    # at the end

    def shut_down(self) -> None:
        """Close each slot when its call is over."""
        for channel in self.channels.values():
            channel.shut_down()

    async def drain(self, time_limit: float) -> None:
        """Read what a dead worker has left in the socket, at most so many seconds."""
        await self.calls.wait_lost(time_limit)

    async def fail(self, reason: str) -> None:
        """End what the slots have, because their worker has died."""
        self._fail(reason)
        if self._loading:
            await asyncio.wait(self._loading)  # they are writing into the folder

    def close(self) -> None:
        """Close everything. Repeating it is harmless."""
        self._close_probe()
        self.models.close()
        for channel in self.channels.values():
            channel.close()
        self.calls.close()

    def _fail(self, reason: str) -> None:
        self.models.close()
        for channel in self.channels.values():
            channel.fail(reason)
        self.calls.close()

    def _close_probe(self) -> None:
        if self.probe is not None:
            self.probe.close()


def _are_free(channels: Mapping[int, SlotChannel]) -> bool:
    """True if no call runs. With many slots that is not worth a look at each of them, and the answer is no."""
    return len(channels) <= _FEW and all(slot.state is SlotState.FREE for slot in channels.values())
