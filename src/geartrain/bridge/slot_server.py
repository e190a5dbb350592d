"""The slots of one worker by number, and the socket that they share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final

from geartrain.bridge.call_socket import CallSocket
from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.slot_memory import new_probe
from geartrain.bridge.slot_state import SlotState
from geartrain.bridge.slots import SlotChannel
from geartrain.bridge.wakeup import WakeupMode, effective_mode, new_policy
from geartrain.domain.predictions import calls
from geartrain.ipc.framing import frame
from geartrain.ipc.messages import SlotCancelled, SlotFailed, Withdraw, encode

_FEW: Final = 4  # slots


class SlotServer:
    """The slots of a worker, and the connection that they share."""

    def __init__(
        self, sock: socket.socket, folder: WorkerFolder, *, wakeup: WakeupMode, before_end: Callable[[], None]
    ) -> None:
        """`sock` is this end of the connection; needs no running loop.

        `before_end()` is called just before items end, so that whatever they have written to the descriptors comes
        first.
        """
        self.channels: dict[int, SlotChannel] = {}  # by slot, once the worker has said how many it has
        self.wakeup = effective_mode(wakeup)
        self.probe = new_probe()  # memory that the worker tries to open
        self.folder = folder
        self._before_end = before_end
        self._loading: set[asyncio.Task[None]] = set()  # inputs that are being written to files
        self.calls = CallSocket(sock, drain=before_end, on_garbage=self._fail)

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
        """Run a call on an idle slot, or lay it behind the one that runs if it is prefetched."""
        loading = self.channels[slot].run(call, listener, alone=call.single_client and _are_free(self.channels))
        if loading is not None:
            self._loading.add(loading)
            loading.add_done_callback(self._loading.discard)

    def withdraw(self, slot: int, call_id: str) -> int:
        """Have the worker not begin a prefetched call, and return the call's serial number.

        Of the call that runs only the number is returned. 0: the slot has no such call.
        """
        channel = self.channels[slot]
        running, following = channel.call, channel.next_call
        if following.call_id == call_id:
            self.calls.write(frame(encode(Withdraw(following.serial))))
            return following.serial
        return running.serial if running.call_id == call_id else 0

    def detach(self, message: SlotCancelled | SlotFailed) -> None:
        """End a call that the worker is still busy with, or will never end."""
        channel = self.channels[message.slot]
        if isinstance(message, SlotFailed):
            self._before_end()
            channel.detach(calls.Failed(message.error))
        elif channel.call.call_id == message.id:
            self._before_end()
            channel.detach(calls.Canceled())

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
        for channel in self.channels.values():
            channel.close()
        self.calls.close()

    def _fail(self, reason: str) -> None:
        for channel in self.channels.values():
            channel.fail(reason)
        self.calls.close()

    def _close_probe(self) -> None:
        if self.probe is not None:
            self.probe.close()


def _are_free(channels: Mapping[int, SlotChannel]) -> bool:
    """True if no call runs. With many slots that is not worth a look at each of them, and the answer is no."""
    return len(channels) <= _FEW and all(slot.state is SlotState.FREE for slot in channels.values())
