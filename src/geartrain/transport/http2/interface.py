"""Events and limits of a codec of HTTP/2, as the connection that drives it sees them.

The driver hands every byte that it receives to `ServerConnection.receive` and acts on the events, in their order. It
answers with the methods of its `sender`, in any turn, and then writes what `take_output` gives while its socket takes
it. Nothing here waits, reads a clock or touches a socket, so the codec can be tested with bytes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

Buffer = bytes | bytearray | memoryview
Fields = Sequence[tuple[bytes, bytes]]  # names in lower case

UNKNOWN_LENGTH: Final = -1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class ErrorCode(IntEnum):
    """Reasons for the end of a stream or a connection (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection.

    Attributes:
        max_streams: open streams (SETTINGS_MAX_CONCURRENT_STREAMS); further ones are refused.
        stream_window: bytes of a body that may come before they are acknowledged.
        connection_window: bytes of all bodies together, likewise.
        max_frame_size: bytes of a frame's payload that are received.
        max_head_size: bytes of the fields of a request, each counted with 32 more (section 6.5.2).
        max_fields: of a head.
        table_size: bytes of the dynamic table that the client may fill.
    """

    max_streams: int = 1024
    stream_window: int = 4 * 1024**2
    connection_window: int = 16 * 1024**2
    max_frame_size: int = 1024**2
    max_head_size: int = 32 * 1024
    max_fields: int = 128
    table_size: int = 4096


class RequestHead(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The head of a request. A head that comes again, byte for byte, may be given as the same object.

    Attributes:
        method: such as `POST`.
        scheme: `http` or `https`.
        path: with its query, as it came. It begins with a slash, or is `*`.
        fields: all others. `:authority` stands first, as `host`, where there is one.
        length: `content-length` in bytes, 0 for a request without a body, `UNKNOWN_LENGTH` if nothing is said.
    """

    method: str
    scheme: str
    path: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    length: int


class RequestReceived(msgspec.Struct, frozen=True, gc=False):
    """A stream has been opened. `is_whole`: there is no body."""

    stream: int
    head: RequestHead
    is_whole: bool


class BodyReceived(msgspec.Struct, frozen=True, gc=False):
    """A part of a body has come; it is given as soon as it comes, be the frame complete or not.

    Attributes:
        stream: that it belongs to.
        data: may be empty. A view is valid as long as it is held.
        credit: bytes that the driver has to give to `ServerConnection.acknowledge` when it has used them: those of
            `data`, and padding.
        is_last: whether the body is complete. Its length is then what its head has announced.
    """

    stream: int
    data: Buffer
    credit: int
    is_last: bool

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """`data` as one of several parts may be."""
        return (self.data,)


class StreamAborted(msgspec.Struct, frozen=True, gc=False):
    """A stream is over before its time: reset by the client, or broken by it. Nothing more comes, and nothing is sent.

    Not given for a stream that the driver has reset, nor when its answer has been written whole.
    """

    stream: int
    code: int


class PingAnswered(msgspec.Struct, frozen=True, gc=False):
    """The client has answered a ping of the driver."""

    payload: bytes


class ConnectionEnded(msgspec.Struct, frozen=True, gc=False):
    """The connection cannot go on: the last event. All streams are over; what `take_output` gives says why.

    Attributes:
        code: what the client has been told.
        reason: a sentence for the log.
    """

    code: ErrorCode
    reason: str


Event = RequestReceived | BodyReceived | StreamAborted | PingAnswered | ConnectionEnded
