"""The connection of a slot, on the parent's side."""

from __future__ import annotations

import asyncio
import os

from geartrain.bridge.framing import FrameReader


class SlotSocket:
    """The connection of a slot: written to directly, since a call usually fits into what the socket takes at once."""

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.fd = -1
        self._transport: asyncio.Transport | None = None

    def open(self, transport: asyncio.Transport) -> None:
        """Take the connection."""
        self._transport = transport
        self.fd = transport.get_extra_info("socket").fileno()

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
        """Close the connection, if there is one."""
        if self._transport is not None:
            self._transport.close()
            self.forget()

    def forget(self) -> None:
        """Never touch the descriptor again: its number is free to become another connection's, such as a client's."""
        self._transport = None
        self.fd = -1
