"""The parent's ends of the slots' channels: what is accepted while the listener closes is not lost."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

import pytest
import uvloop

from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.slots import SlotChannel, stop_accepting


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("steps", range(6))
def test_connection_that_comes_while_the_listener_closes_is_closed_too(
    tmp_path: Path, new_loop: type[asyncio.AbstractEventLoop], steps: int
) -> None:
    """At whichever step of the loop: accepted or not, the peer reads the end, and no open socket is left behind."""

    async def connect_and_close() -> None:
        folder = WorkerFolder()
        channels: list[SlotChannel] = []

        def make() -> SlotChannel:
            channels.append(SlotChannel(folder, on_attach=lambda *_: True, before_end=lambda: None))
            return channels[-1]

        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as peer:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            server = await asyncio.get_running_loop().create_unix_server(make, sock=listener)
            peer.settimeout(10)
            peer.connect(str(tmp_path / "s"))
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.gather(stop_accepting(server, listener), stop_accepting(server, listener))
            await stop_accepting(server, listener)
            for channel in channels:
                channel.close()
            try:
                assert await asyncio.to_thread(peer.recv, 1) == b""
            except ConnectionResetError:  # it was never accepted
                assert not channels
        folder.close(now=True)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(connect_and_close())
    gc.collect()
