"""The connection that the calls of a worker travel on, on the parent's side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Final, cast

from geartrain.ipc.framing import FrameError, FrameReader
from geartrain.ipc.messages import Reports, decode_reports

logger = logging.getLogger(__name__)

_CHUNK: Final = 65_536  # bytes


class CallSocket(asyncio.Protocol):
    """The connection of all slots of a worker.

    It is written to directly, since calls usually fit into what the socket takes at once.
    """

    def __init__(self, sock: socket.socket, *, drain: Callable[[], None], on_garbage: Callable[[str], None]) -> None:
        """`drain()` delivers what the worker has written to its descriptors.

        `on_garbage` hears, as a sentence, that something has come that is no message.
        """
        self._receivers: dict[int, Callable[[Reports], None]] = {}  # by slot
        self._open: set[int] = set()  # slots
        self.fd = -1
        self._socket = sock
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []  # data that is to be written at the end of this turn
        self.lost = asyncio.Event()  # nothing more will come
        self._is_drained = False
        self._drain = drain
        self._on_garbage = on_garbage

    async def open(self) -> None:
        """Send and receive from now on."""
        self._loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=self._socket)

    def join(self, slot: int, on_reports: Callable[[Reports], None]) -> None:
        """Give what is reported of a slot to `on_reports` from now on."""
        self._receivers[slot] = on_reports
        self._open.add(slot)

    def leave(self, slot: int) -> None:
        """Note that a slot takes no more calls, and close the connection with the last one."""
        self._open.discard(slot)
        if not self._open:
            self.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self.fd = self._socket.fileno()

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that have come."""
        self._is_drained = False
        try:
            for payload in self._reader.feed(data):
                message = decode_reports(payload)
                self._receivers[message.slot](message)
        except (FrameError, LookupError, OSError, ValueError):  # msgspec's errors are ValueErrors
            logger.exception("a worker's channel carried something that is no message; closing it")
            self._on_garbage("the worker's report could not be read")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Note that nothing more will come."""
        self._forget()
        self.lost.set()

    def before_end(self) -> None:
        """Deliver what has been written to the descriptors: the items of a message that has come now end.

        For all messages that have come together, once is enough.
        """
        if not self._is_drained:
            self._is_drained = True
            self._drain()

    def read(self) -> bool:
        """Receive what has come without waiting for the loop; return whether that was the end."""
        try:
            data = os.read(self.fd, _CHUNK)
        except OSError:
            return False
        if not data:  # the transport will see it too
            return True
        self.data_received(data)
        return False

    def write_soon(self, data: bytes) -> None:
        """Write data at the end of this turn of the loop, together with all that comes in it."""
        held = self._held
        if not held:
            self._loop.call_soon(self._flush)
        held.append(data)

    def _flush(self) -> None:
        data = b"".join(self._held)
        self._held.clear()
        self.write(data)

    def write(self, data: bytes) -> None:
        """Write data now, or leave it to the transport as far as the socket does not take it."""
        transport = self._transport
        if transport is None:
            return
        if not transport.get_write_buffer_size():
            try:
                written = os.write(self.fd, data)
            except OSError:  # full, or broken: the transport will deal with it
                written = 0
            if written == len(data):  # nearly always
                return
            data = data[written:]
        transport.write(data)

    async def wait_lost(self, time_limit: float) -> None:
        """Wait until nothing more will come, at most so many seconds."""
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(time_limit):
                    await self.lost.wait()

    def close(self) -> None:
        """Close the connection. Repeating it is harmless."""
        if self._transport is None:
            self._socket.close()
        else:
            self._transport.close()
            self._forget()

    def _forget(self) -> None:
        """Forget the descriptor: its number may soon belong to another connection, such as a client's."""
        self._transport = None
        self.fd = -1
