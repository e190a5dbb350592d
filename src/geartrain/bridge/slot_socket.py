"""The connection of a slot, on the parent's side."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, cast

from geartrain.ipc.framing import FrameError, FrameReader
from geartrain.ipc.messages import Attach, Reports, decode_slot_to_parent

logger = logging.getLogger(__name__)

_CHUNK: Final = 65_536  # bytes


class SlotSocket(asyncio.Protocol):
    """The connection of a slot: written to directly, since a call usually fits into what the socket takes at once."""

    def __init__(
        self,
        *,
        on_reports: Callable[[Reports], None],
        on_attach: Callable[[Attach], None],
        on_garbage: Callable[[str], None],
    ) -> None:
        """`on_garbage` hears, as a sentence, that something has come that is no message."""
        self.fd = -1
        self.lost = asyncio.get_running_loop().create_future()  # nothing more will come
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self._on_reports = on_reports
        self._on_attach = on_attach
        self._on_garbage = on_garbage

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it if this end was closed meanwhile."""
        if self._is_closed:
            transport.close()
        else:
            self._transport = cast("asyncio.Transport", transport)
            self.fd = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that have come."""
        try:
            for payload in self._reader.feed(data):
                message = decode_slot_to_parent(payload)
                if type(message) is Reports:
                    self._on_reports(message)
                elif type(message) is Attach:
                    self._on_attach(message)
        except (FrameError, OSError, ValueError):  # msgspec's errors are ValueErrors
            logger.exception("a slot's channel carried something that is no message; closing it")
            self._on_garbage("the worker's report could not be read")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Note that nothing more will come."""
        self._forget()
        if not self.lost.done():
            self.lost.set_result(None)

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

    def write(self, data: bytes) -> None:
        """Write data, or leave it to the transport as far as the socket does not take it."""
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

    def close(self) -> None:
        """Close the connection, also one that is still to be made. Repeating it is harmless."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()
            self._forget()

    def _forget(self) -> None:
        """Forget the descriptor: its number may soon belong to another connection, such as a client's."""
        self._transport = None
        self.fd = -1
