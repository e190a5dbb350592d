"""Interface of a codec of HTTP/2 to the connection that drives it.

The driver hands every byte that it receives to `Codec.receive` and acts on the events, in their order. It answers
with the methods of `Codec.sender`, in any turn, and then writes what `take_output` gives while its socket takes it.
Nothing here waits, reads a clock or touches a socket, so a codec can be tested with bytes alone.

Another codec, such as one that binds nghttp2, fits behind `Codec`: it has to give these events for these bytes, to hold
bodies until the windows of the peer let them go, and to keep the limits of `Http2Limits` by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Protocol

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
        credit: bytes that the driver has to give to `Codec.acknowledge` when it has used them: those of `data`, and
            padding.
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


class Sender(Protocol):
    """The answers on one connection. The methods raise nothing and do nothing for a stream that is over."""

    def head(self, stream: int, status: int, fields: Fields, *, own: Fields = (), is_last: bool = False) -> None:
        """Begin an answer; `is_last`: it has neither a body nor trailers. Below status 200 another head follows.

        `own`: further fields, which no other answer has: their encoding is not remembered.
        """

    def body(self, stream: int, parts: Sequence[Buffer], *, is_last: bool = False) -> None:
        """Append to the body of an answer. It is held until the client's windows let it go."""

    def trailers(self, stream: int, fields: Fields) -> None:
        """Complete an answer behind its body."""

    def reset(self, stream: int, code: ErrorCode) -> None:
        """End a stream at once, and drop what is held for it."""

    @property
    def held(self) -> int:
        """Bytes of answers that are held, of all streams."""

    def unsent(self, stream: int) -> int:
        """Return the bytes of an answer that are held."""

    def stalled(self) -> Sequence[tuple[int, int]]:
        """Return the streams whose bodies are held, each with the count of bytes that have been sent of it so far."""

    def take_output(self, size: int) -> list[Buffer]:
        """Return the next bytes to write, about `size` bytes of bodies at most, fairly of all streams.

        Empty if there is nothing that may be sent now.
        """


class Codec(Protocol):
    """One connection, as its server sees it. The methods raise nothing, whatever the client does."""

    sender: Sender

    @property
    def stream_count(self) -> int:
        """Streams that are open: whose request or answer is not complete."""

    @property
    def is_reading_head(self) -> bool:
        """True if the preface, the first settings or a head has come in part, or not at all yet."""

    @property
    def is_closing(self) -> bool:
        """True if no stream will be accepted any more."""

    @property
    def awaits_resets(self) -> bool:
        """True if a stream has been reset whose client may not know of it yet, and may still be sending."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take what has come. `now` in seconds on any clock that does not go back."""

    def acknowledge(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more. For a stream that is over it counts for the connection alone."""

    def ping(self, payload: bytes) -> None:
        """Ask for an answer; `payload` has 8 bytes."""

    def shut_down(self) -> None:
        """Accept no further stream (section 6.8): first say so, and after the time of a ping refuse what comes."""

    def end(self, code: ErrorCode, reason: str = "") -> None:
        """Say that the connection ends now, and why; all streams are over."""
