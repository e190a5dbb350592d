"""The parent's end of a slot, which carries one call at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from geartrain.bridge.call_messages import LONG_TEXT, wants_memory
from geartrain.bridge.call_socket import CallSocket
from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.slot_files import SlotFiles
from geartrain.bridge.slot_memory import SharedSlotMemory
from geartrain.bridge.slot_reports import NoListener, tell, tell_begin, tell_end, tell_reports
from geartrain.bridge.slot_state import TO_SLOT_STATE, SlotState
from geartrain.bridge.wakeup import Blocking, WakeupPolicy
from geartrain.domain.predictions import calls
from geartrain.ipc.messages import Inline, InputPayload, Payload, Received, Reports

logger = logging.getLogger(__name__)

# To read a member of an enumeration from its class takes several times as long as a global name.
_FREE, _RUNNING = SlotState.FREE, SlotState.RUNNING
_to_free, _to_running = TO_SLOT_STATE[_FREE], TO_SLOT_STATE[_RUNNING]


class SlotCall(msgspec.Struct, frozen=True, eq=False):
    """A call on a slot: its number among the calls of the slot, its id, its listener."""

    serial: int
    call_id: str
    listener: calls.CallListener
    packed: bool = False  # true if shared memory is of use to it
    source: calls.CallInput | None = None  # the worker may read it in place until the call is over


NO_CALL: Final = SlotCall(0, "", NoListener())


class SlotChannel:
    """Translates the messages of one slot into calls of the listener whose call runs on it."""

    def __init__(
        self, number: int, socket: CallSocket, folder: WorkerFolder, *, has_others: bool, shares_memory: bool
    ) -> None:
        """`number` is that of the slot. `has_others`: so the worker does, and calls that meet travel together.

        `shares_memory`: the worker can open memory of this process.
        """
        self.state = _FREE
        self.call = NO_CALL  # that runs
        self.wakeup: WakeupPolicy = Blocking()
        self.is_last = False  # the worker is to end after this call
        self.next_call = NO_CALL  # that was prefetched: the worker may have begun it before this end hears of it
        self._last_serial = 0
        self.memory = SharedSlotMemory(is_possible=shares_memory)
        self._has_others = has_others
        self._number = number
        self._socket = socket
        self._files = SlotFiles(number, folder, self.memory)
        socket.join(number, self._on_reports)

    # towards the worker

    def run(self, call: calls.CallInput, listener: calls.CallListener, *, alone: bool) -> asyncio.Task[None] | None:
        """Run a call on a free slot, or after the running one if it is prefetched.

        `alone`: the server may block until the call ends. Returns the task that writes its input to a file, if that is
        too large for a message.
        """
        self._last_serial = serial = self._last_serial + 1
        payload: InputPayload | None
        first = call.items[0]
        if first.tensors is None and len(call.items) == 1 and len(first.input) <= LONG_TEXT:  # nearly all
            slot_call, payload = SlotCall(serial, call.id, listener), Inline(first.input)
        else:
            slot_call = SlotCall(serial, call.id, listener, wants_memory(call))
            payload = self._files.place(call, may_share=slot_call.packed and not call.prefetch)
            if type(payload) is Received:
                slot_call = msgspec.structs.replace(slot_call, source=call)
        if call.prefetch:
            payload = payload or self._files.to_file(call)
            message = self._files.message(call, serial, payload, packed=slot_call.packed)
            self.next_call = slot_call
            self._socket.write(message)
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
                self.call = NO_CALL
                failure = calls.Failed(f"the input could not be handed to the worker: {error}")
                tell_end(slot_call.listener, (calls.ItemEnd(calls.ALL, failure),), idle=True)
            return
        if self.state is SlotState.LOADING:
            self._begin(call, slot_call, payload, alone=False)
        else:
            self._files.reader.discard(payload)

    def _begin(self, call: calls.CallInput, slot_call: SlotCall, payload: InputPayload, *, alone: bool) -> None:
        self.wakeup.before_send(alone=alone)
        message = self._files.message(call, slot_call.serial, payload, packed=slot_call.packed)
        self.state = _to_running(self.state)  # not before: a call that cannot be encoded leaves the slot free
        if self._has_others and not call.single_client:
            self._socket.write_soon(message)
        else:
            self._socket.write(message)
        tell_begin(slot_call.listener)
        if alone:
            self.wakeup.wait(self._poll)

    def _poll(self) -> bool:
        """Read what has come; return whether there is nothing more to wait for."""
        return self.state is not _RUNNING or self._socket.read() or self.state is not _RUNNING

    # an end from outside

    def detach(self, outcome: calls.Outcome) -> None:
        """End the call while the worker is still busy with it: `on_idle` follows, or never comes."""
        if self.state is _RUNNING:
            self.state = TO_SLOT_STATE[SlotState.DETACHED](self.state)
            tell_end(self.call.listener, (calls.ItemEnd(calls.ALL, outcome),), idle=False)

    def on_idle(self) -> None:
        """Free the slot: the worker is done with a call that was ended from outside."""
        if self.state is SlotState.DETACHED:
            self._files.temporary_files.clear()  # the worker has deleted them
            listener = self.call.listener
            self._free()
            tell(listener.on_idle)

    def fail(self, reason: str) -> None:
        """End what the slot has, because its worker has died or cannot be understood, and close it."""
        self._files.delete_temporary_files()
        state, call, following = self.state, self.call, self.next_call
        self.call = self.next_call = NO_CALL
        self.close()
        if state is _RUNNING:
            tell_end(call.listener, (calls.ItemEnd(calls.ALL, calls.Failed(reason)),), idle=False)
        elif state is SlotState.LOADING:
            tell(call.listener.on_unstarted)
        tell(following.listener.on_unstarted)

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

    def _on_reports(self, message: Reports) -> None:
        if message.serial != self.call.serial or self.state is not _RUNNING:
            self._files.discard(message.reports)
            if message.idle:
                logger.debug("a slot spoke of a call that does not run")
            return
        listener = self.call.listener
        ends = tell_reports(message.reports, listener, self._files)
        if message.idle:
            self.wakeup.on_end(ends)
            self._socket.before_end()
            self._files.temporary_files.clear()
            self._free()
            tell_end(listener, ends, idle=True)
            if self.is_last and self.state is _FREE:
                self.close()
        elif ends:
            self._socket.before_end()
            tell_end(listener, ends, idle=False)

    def _free(self) -> None:
        """Begin the prefetched call, or become free."""
        self.state = _to_free(self.state)
        self.call = following = self.next_call
        if following is not NO_CALL:
            self.next_call = NO_CALL
            self.state = _to_running(self.state)
            self.wakeup.before_send(alone=False)
            tell_begin(following.listener)
