"""Receives a large body where it is to stay: the kernel writes there, and nothing is copied on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from geartrain.transport.wire.bodies import Places
from geartrain.transport.wire.intake import Intake

_BEGINNING: Final = 16_384  # bytes of a request that are read before its head is known; the body among them is copied


class BodyReceiver(asyncio.BufferedProtocol):
    """Takes the place of the protocol of a connection which receives large bodies.

    While there is a place for a body it is read there, and never more than that; anything else goes to the connection.
    """

    def __init__(
        self, connection: asyncio.Protocol, intake: Intake, *, places: Places, on_received: Callable[[int], None]
    ) -> None:
        """`on_received` hears how many bytes have been received where the body of the `intake` is to stay."""
        self._intake = intake
        self._scratch = places.scratch
        self._beginning = places.scratch[:_BEGINNING]
        self._on_received = on_received
        self._is_filling = False  # and not reading into `_scratch`
        self._connection = connection

    def receive_from(self, transport: asyncio.Transport) -> None:
        """Receive from now on what comes."""
        is_reading = transport.is_reading()
        transport.pause_reading()  # a transport that reads does not look whether it has another protocol
        transport.set_protocol(self)
        if is_reading:
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Tell the connection."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as of `BufferedProtocol`
        """Return the place of what comes next."""
        room = self._intake.place.room
        self._is_filling = len(room) > 0
        if self._is_filling:
            return room
        return self._beginning if self._intake.is_complete else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Go on with what has come."""
        if self._is_filling:
            self._on_received(nbytes)
        else:
            self._connection.data_received(bytes(self._scratch[:nbytes]))
