"""The parent's end of a worker's control channel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from geartrain.ipc.framing import FrameError, FrameReader, frame
from geartrain.ipc.messages import ControlToParent, ControlToWorker, decode_control_to_parent, encode

logger = logging.getLogger(__name__)

_CHUNK = 65536  # bytes


class ControlChannel:
    """Small messages both ways.

    Usable for sending before there is a loop. A worker that does not read is not waited for: what it has not taken
    stays in a buffer here.
    """

    def __init__(self, sock: socket.socket, on_message: Callable[[ControlToParent], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
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
            logger.exception("the control channel carried nonsense; closing it")
            self._stop_reading()
            return False
        return True

    def _stop_reading(self) -> None:
        if self._loop is not None and not self._closed:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
