"""Output beside the windows: frames of control, heads and trailers, and pieces of bodies that may go."""

from __future__ import annotations

from typing import Final

from geartrain.transport.http2.faults import ConnectionFaultError
from geartrain.transport.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SMALLEST_MAX_FRAME,
    frame,
)
from geartrain.transport.http2.headers import encode, encode_once, framed, head_frame
from geartrain.transport.http2.interface import Buffer, ErrorCode, Fields
from geartrain.transport.http2.streams import Stream

_MAX_REPLIES: Final = 4096  # control frames that answer the client and have not been taken
_MAX_READY: Final = 64 * 1024  # pieces of frames that have not been taken when more comes from the client
_NO_TABLE: Final = b"\x20"  # the dynamic table has no bytes (RFC 7541, section 6.3)


class Output:
    """The frames of a connection that can be written, in their order.

    Attributes:
        ready: frames, or pieces of them; the taker empties the list.
        replies: frames among them that the client has asked for.
    """

    __slots__ = ("_resizes_table", "ready", "replies")

    def __init__(self) -> None:
        self.ready: list[Buffer] = []
        self.replies = 0
        self._resizes_table = False  # true if the next block has to announce an empty dynamic table

    def write(self, written: bytes) -> None:
        """Append a frame that no window holds back."""
        self.ready.append(written)

    def reply(self, written: bytes) -> None:
        """Append a frame that the client has asked for; raise `ConnectionFaultError` if it asks and does not read."""
        self.ready.append(written)
        self.replies += 1
        if self.replies > _MAX_REPLIES:
            text = "The client asks for more control frames than it reads."
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text)

    def check(self) -> None:
        """Raise `ConnectionFaultError` if the client sends and sends, and does not read."""
        if len(self.ready) > _MAX_READY:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "The client does not read its answers.")

    def drop_table(self) -> None:
        """Tell the client with the next field block that its dynamic table is not used (RFC 7541, section 4.2)."""
        self._resizes_table = True

    def write_fields(
        self, stream: Stream, status: int, fields: Fields, *, own: Fields = (), is_last: bool = False
    ) -> None:
        """Append a head or, where `status` is 0, trailers; `own`: as of `Sender.head`."""
        if self._resizes_table:
            self._resizes_table = False
            prefix, block = framed(_NO_TABLE + encode(status, (*fields, *own)), is_last=is_last)
        elif own:
            known = head_frame(status, fields if type(fields) is tuple else tuple(fields), is_last)[1]
            prefix, block = framed(known + encode_once(own), is_last=is_last)
        else:
            prefix, block = head_frame(status, fields if type(fields) is tuple else tuple(fields), is_last)
        if len(block) <= SMALLEST_MAX_FRAME:
            self.ready += (prefix, stream.tag, block)
            return
        flags = END_STREAM if is_last else 0
        pieces = [block[at : at + SMALLEST_MAX_FRAME] for at in range(0, len(block), SMALLEST_MAX_FRAME)]
        self.ready.append(frame(HEADERS, flags, stream.id, payload=pieces[0]))
        self.ready += [frame(CONTINUATION, 0, stream.id, payload=piece) for piece in pieces[1:-1]]
        self.ready.append(frame(CONTINUATION, END_HEADERS, stream.id, payload=pieces[-1]))
