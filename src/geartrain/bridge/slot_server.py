"""The slots of one worker: the socket that they attach to, and their channels by number."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final

from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.slot_memory import new_probe
from geartrain.bridge.slot_socket import SlotSocket
from geartrain.bridge.slot_state import SlotState
from geartrain.bridge.slots import SlotChannel
from geartrain.bridge.wakeup import WakeupMode, effective_mode, new_policy
from geartrain.domain.predictions import calls
from geartrain.ipc.framing import frame
from geartrain.ipc.messages import SlotCancelled, SlotFailed, Withdraw, encode
from geartrain.ipc.shared_memory import kept_by_each

_FEW: Final = 4  # slots


class SlotServer:
    """Accepts the connections of a worker's slots, and hands calls to them."""

    def __init__(self, folder: WorkerFolder, *, wakeup: WakeupMode, before_end: Callable[[], None]) -> None:
        """Listen at the address of the folder; needs no running loop.

        `before_end()` is called just before items end, so that whatever they have written to the descriptors comes
        first.
        """
        self.channels: dict[int, SlotChannel] = {}  # that have attached, by slot
        self.wakeup = effective_mode(wakeup)
        self.probe = new_probe()  # memory that the worker tries to open
        self.folder = folder
        self._before_end = before_end
        self._connections: list[SlotChannel] = []  # also those that have not told yet which slot they are
        self._loading: set[asyncio.Task[None]] = set()  # inputs that are being written to files
        self._changed = asyncio.Event()
        self._is_given_up = False
        self._servers: list[asyncio.Server] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder.address))
        self._listener.listen(socket.SOMAXCONN)

    async def open(self) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._new_connection, sock=self._listener))

    async def wait(self, count: int) -> None:
        """Wait until so many slots have attached, or until they are given up."""
        while len(self.channels) < count and not self._is_given_up:
            self._changed.clear()
            await self._changed.wait()

    def give_up(self) -> None:
        """Let nobody wait for slots that will not come."""
        self._is_given_up = True
        self._changed.set()

    async def stop_accepting(self) -> None:
        """Close the listener; who has been accepted by then gets its channel."""
        if self.probe is not None:
            self.probe.close()
        for server in self._servers:
            if server.is_serving():
                # asyncio makes the transport of a connection in a task of its own. If the server were closed in
                # between, the task would fail and leave the connection open: so first the server stops accepting, then
                # that task has its turn.
                server.get_loop().remove_reader(self._listener)
                await asyncio.sleep(0)
                server.close()  # and the socket with it: closed by itself, its number would stay with the loop
        self._listener.close()

    def begin_service(self, *, one_by_one: bool) -> None:
        """Wait for reports as the wakeup mode says; `one_by_one`: each slot runs one call after another."""
        loop = asyncio.get_running_loop()
        kept = kept_by_each(len(self.channels))
        for channel in self.channels.values():
            channel.wakeup = new_policy(self.wakeup, loop, one_by_one=one_by_one)
            channel.memory.kept = kept

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
            channel.socket.write(frame(encode(Withdraw(following.serial))))
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
        """Read what a dead worker has left in its sockets, at most so many seconds."""
        if self.channels:
            await asyncio.wait([channel.socket.lost for channel in self.channels.values()], timeout=time_limit)

    async def fail(self, reason: str) -> None:
        """End what the slots have, because their worker has died."""
        for channel in self.channels.values():
            channel.fail(reason)
        if self._loading:
            await asyncio.wait(self._loading)  # they are writing into the folder

    async def close(self) -> None:
        """Close everything. Repeating it is harmless."""
        await self.stop_accepting()
        for channel in self._connections:
            channel.close()

    def _new_connection(self) -> SlotSocket:
        channel = SlotChannel(self.folder, on_attach=self._attach, before_end=self._before_end)
        self._connections.append(channel)
        return channel.socket

    def _attach(self, slot: int, channel: SlotChannel) -> bool:
        if slot in self.channels:
            return False
        self.channels[slot] = channel
        self._changed.set()
        return True


def _are_free(channels: Mapping[int, SlotChannel]) -> bool:
    """Whether no call runs. With many slots that is not worth a look at each of them, and the answer is no."""
    return len(channels) <= _FEW and all(slot.state is SlotState.FREE for slot in channels.values())
