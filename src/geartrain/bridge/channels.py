"""The parent's ends of a worker's connections: one for calls, one for control."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Final, cast

from geartrain.ipc.framing import FrameError, FrameReader, frame
from geartrain.ipc.messages import (
    ControlToParent,
    ControlToWorker,
    ModelCall,
    ModelCallEnd,
    ModelRunEnd,
    Reports,
    decode_call_to_parent,
    decode_control_to_parent,
    encode,
)

logger = logging.getLogger(__name__)

_CHUNK: Final = 65_536  # bytes


class CallSocket(asyncio.Protocol):
    """The connection of all slots of a worker.

    It is written to directly, since calls usually fit into what the socket takes at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        drain: Callable[[], None],
        on_garbage: Callable[[str], None],
        on_model_call: Callable[[ModelCall | ModelCallEnd | ModelRunEnd], None],
    ) -> None:
        """`drain()` delivers what the worker has written to its descriptors. `on_model_call` takes calls of models.

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
        self._on_model_call = on_model_call

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
                message = decode_call_to_parent(payload)
                if type(message) is Reports:
                    self._receivers[message.slot](message)
                else:
                    self._on_model_call(message)
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
        if self._held:  # nothing has been written meanwhile
            self.write(b"")

    def write(self, data: bytes) -> None:
        """Write what is held and this data now, or leave it to the transport as far as the socket does not take it."""
        transport, held = self._transport, self._held
        if held:
            data = b"".join((*held, data))
            held.clear()
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


class ControlChannel:
    """Small messages both ways.

    Usable for sending before there is a loop. A worker that does not read is not waited for: what it has not taken
    stays in a buffer here.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[ControlToParent], None],
        *,
        on_garbage: Callable[[str], None],
    ) -> None:
        """`on_garbage` hears, as a sentence, that something has come that is no message; nothing more is read then."""
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive from now on."""
        self._loop = loop
        loop.add_reader(self._socket, self._on_readable)
        if self._unsent:
            loop.add_writer(self._socket, self._flush)

    def send(self, message: ControlToWorker) -> None:
        """Send a message; what the worker does not take now stays in a buffer. A worker that is gone is ignored."""
        if self._closed:
            return
        waiting = bool(self._unsent)
        self._unsent += frame(encode(message))
        if not waiting:
            self._flush()

    def drain(self) -> None:
        """Receive all that is there."""
        while not self._closed and self._on_readable():
            pass

    def close(self) -> None:
        """Close the channel: the worker ends then, as at the death of its parent."""
        if not self._closed:
            self._stop_reading()
            self._closed = True
            self._socket.close()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()  # the exit of the worker is reported elsewhere
        if self._loop is not None:
            if self._unsent:
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)

    def _on_readable(self) -> bool:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._stop_reading()
            return False
        try:
            for payload in self._reader.feed(data):
                self._on_message(decode_control_to_parent(payload))
        except (FrameError, ValueError):  # msgspec's errors are ValueErrors
            logger.exception("the control channel carried something that is no message; closing it")
            self._stop_reading()
            self._on_garbage("the worker's message could not be read")
            return False
        return True

    def _stop_reading(self) -> None:
        if self._loop is not None and not self._closed:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
