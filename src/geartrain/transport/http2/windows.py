"""Flow control (RFC 9113, section 5.2): how much may come, and how much may be sent."""

from __future__ import annotations

from typing import Final

from geartrain.transport.http2.faults import ConnectionFaultError, StreamFaultError
from geartrain.transport.http2.interface import ErrorCode

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1


class ReceiveWindow:
    """Bytes that the client may send: of one stream, or of all together."""

    __slots__ = ("_size", "_used", "left")

    def __init__(self, size: int) -> None:
        """`size`: bytes that the client may send before it is given more."""
        self.left = size
        self._size = size
        self._used = 0  # bytes that have been used, and for which no credit has been given

    def acknowledge(self, size: int) -> int:
        """Note that so many bytes have been used; return the credit that is to be given now, or 0."""
        self._used += size
        if 2 * self._used < self._size or not self._used:  # credit is given when half of the window has been used
            return 0
        credit, self._used = self._used, 0
        self.left += credit
        return credit

    def resize(self, change: int) -> None:
        """Make the window so much larger, or smaller."""
        self._size += change
        self.left += change


class SendWindows:
    """Bytes that the client lets the server send."""

    __slots__ = ("connection", "initial", "max_frame_size")

    def __init__(self) -> None:
        self.connection = DEFAULT_WINDOW  # bytes that may be sent on all streams together
        self.initial = DEFAULT_WINDOW  # with which a new stream begins
        self.max_frame_size = 16_384

    def grow_connection(self, increment: int) -> None:
        """Take an increment for all streams together; raise `ConnectionFaultError`."""
        if not increment:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A WINDOW_UPDATE has no increment.")
        if self.connection + increment > MAX_WINDOW:
            raise ConnectionFaultError(
                ErrorCode.FLOW_CONTROL_ERROR, "The window of the connection has grown too large."
            )
        self.connection += increment


def grown(window: int, increment: int) -> int:
    """Return the window of a stream after an increment; raise `StreamFaultError`."""
    if not increment:
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR, "A WINDOW_UPDATE has no increment.")
    if window + increment > MAX_WINDOW:
        raise StreamFaultError(ErrorCode.FLOW_CONTROL_ERROR, "The window of a stream has grown too large.")
    return window + increment


def shifted(window: int, change: int) -> int:
    """Return a stream's window after a change of the initial size (section 6.9.2); raise `ConnectionFaultError`."""
    if window + change > MAX_WINDOW:
        raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "A setting makes the window of a stream too large.")
    return window + change
