"""Messages as they stand in a body, and the answers of calls.

A message is a flag, four bytes of length, and its bytes. An answer is one message in one piece, or several as they
come, within the time of the client. Source: the document "gRPC over HTTP2" (Length-Prefixed-Message).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, cast

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.scheduling.context import TimeLimit
from geartrain.transport import compression
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.heads import NO_TIMEOUT, CallHead
from geartrain.transport.grpc.status import (
    GZIP_HEADERS,
    HEADERS,
    HTTP_OK,
    OK_TRAILERS,
    CallError,
    Fields,
    failure,
    trailers,
)
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Answer, AnswerStream, Body, MessageStream, Responder

PREFIX_SIZE: Final = 5  # bytes
NO_LIMIT: Final = 0
SMALL_MESSAGE: Final = 262_144  # bytes of a message of any method but inference: the loop parses it

_PREFIX: Final = struct.Struct(">BI")
_PLAIN, _COMPRESSED = 0, 1  # the flag
_SMALL: Final = 8192  # bytes of a message that is cheaper to join than to send in parts
_LARGEST: Final = 2**32 - 1  # bytes of a message, which is what its length can say

read_prefix = _PREFIX.unpack_from
MIN_COMPRESSED: Final = 1024  # bytes of a message that is worth compressing
EXPIRED: Final = "Deadline Exceeded"
_TOO_LATE: Final = failure(GrpcStatus.DEADLINE_EXCEEDED, EXPIRED)
_NOTHING_SENT: Final = Answer(HTTP_OK, (), (*HEADERS, *OK_TRAILERS))


def announced(begin: Buffer) -> int:
    """Return the length of a body that holds one message, from its first bytes. See `Accepted.announced`."""
    return UNKNOWN_LENGTH if len(begin) < PREFIX_SIZE else PREFIX_SIZE + int(_PREFIX.unpack_from(begin)[1])


def too_large(limit: int) -> CallError:
    """Say that a message is larger than `limit` bytes."""
    text = f"Received message larger than the limit of {limit} bytes. "
    if limit == SMALL_MESSAGE:
        text += "It is that of all methods but ModelInfer and ModelStreamInfer."
    else:
        text += "The server's --grpc-max-message-size sets it."
    return CallError(GrpcStatus.RESOURCE_EXHAUSTED, text)


def is_compressed(body: Body) -> bool:
    """True if the one message of a body is flagged as compressed."""
    return body[:1] == b"\x01"


def check_whole(body: Body, path: str) -> None:
    """Check that a body is exactly one message, as the method at `path` takes it; raises `CallError`.

    Any other number of messages is UNIMPLEMENTED, as gRPC's table of status codes has it.
    """
    size = len(body)
    if size < PREFIX_SIZE:
        if not size:
            raise CallError(GrpcStatus.UNIMPLEMENTED, f"'{path}' requires exactly one request message.")
        raise _cut_off()
    flag, length = read_prefix(body)
    check_flag(flag)
    if size < PREFIX_SIZE + length:
        raise _cut_off()
    if size > PREFIX_SIZE + length:
        raise CallError(GrpcStatus.UNIMPLEMENTED, f"'{path}' requires exactly one request message.")


def check_flag(flag: int) -> None:
    """Raise `CallError` for an unknown flag."""
    if flag not in {_PLAIN, _COMPRESSED}:
        raise CallError(GrpcStatus.INTERNAL, f"A message has the flag {flag}: it is 0, or 1 for a compressed one.")


def _cut_off() -> CallError:
    return CallError(GrpcStatus.INTERNAL, "The request ends within a message.")


async def unpack(body: Body, path: str, head: CallHead, *, limit: int) -> Buffer:
    """Return the one message of a body, decompressed if it has to be; raises `CallError`."""
    check_whole(body, path)
    message = memoryview(body)[PREFIX_SIZE:]
    return await inflate(message, head, limit) if is_compressed(body) else message


async def inflate(message: Buffer, head: CallHead, limit: int) -> bytes:
    """Return a message that is flagged as compressed as it was before; raises `CallError`.

    A thread does what takes long. The document has INTERNAL for a message that names no encoding.
    """
    if head.encoding is None:
        raise CallError(GrpcStatus.INTERNAL, "A message is flagged as compressed, and there is no grpc-encoding.")
    try:
        return await compression.inflate(message, head.encoding, limit or _LARGEST)
    except GeartrainError as error:
        if error.code is Code.TOO_LARGE:
            raise too_large(limit or _LARGEST) from None
        raise CallError(GrpcStatus.INTERNAL, f"A message could not be decompressed: {error.message}") from None


def frame(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts of a message with its prefix; raises `TOO_LARGE` if no prefix can tell its length."""
    size = sum(map(len, parts))
    if size <= _SMALL:
        return [b"".join((_PREFIX.pack(_PLAIN, size), *parts))]
    if size > _LARGEST:
        raise GeartrainError(Code.TOO_LARGE, f"The response has {size} bytes, and gRPC's limit is {_LARGEST}.")
    return [_PREFIX.pack(_PLAIN, size), *parts]


def frame_compressed(message: bytes) -> list[Buffer]:
    """Return the parts of a message that has been compressed."""
    return [_PREFIX.pack(_COMPRESSED, len(message)), message]


def whole(parts: Sequence[Buffer]) -> Answer:
    """Return the answer that is one message; raises `TOO_LARGE` for one that gRPC cannot carry."""
    return Answer(HTTP_OK, frame(parts), HEADERS, OK_TRAILERS)


def whole_compressed(message: bytes) -> Answer:
    """Return the answer that is one message, which has been compressed with gzip."""
    return Answer(HTTP_OK, frame_compressed(message), GZIP_HEADERS, OK_TRAILERS)


def pack(parts: Sequence[Buffer], *, mirrors: bool) -> list[Buffer]:
    """Return the parts of a message with its prefix; raises `TOO_LARGE` for one that gRPC cannot carry.

    `mirrors`: what it answers was compressed, so that it is compressed with gzip if it is worth that.
    """
    if mirrors and sum(map(len, parts)) > MIN_COMPRESSED:
        return frame_compressed(compression.deflate(parts, "gzip"))
    return frame(parts)


async def pack_aside(parts: Sequence[Buffer]) -> list[Buffer]:
    """Pack a message that mirrors a compressed one; in a thread if it takes long."""
    if sum(map(len, parts)) > MIN_COMPRESSED:
        return frame_compressed(await compression.deflate_aside(parts, "gzip"))
    return frame(parts)


def start_timer(seconds: float, on_expiry: Callable[[], None]) -> TimeLimit:
    """Call `on_expiry` in so many seconds."""
    return TimeLimit(seconds, on_expiry)


class Deadline:
    """A `Responder` that gives the answer by itself when the time of its client is up."""

    __slots__ = ("_is_over", "_responder", "_timer", "record")

    def __init__(self, responder: Responder, seconds: float, on_expiry: Callable[[], None]) -> None:
        """`on_expiry` is called before that answer; what it leads to is not sent any more."""
        self.record = responder.record
        self._responder = responder
        self._is_over = False
        # Only the timer refers to `on_expiry`, whose exchange refers to this: a canceled timer drops it.
        self._timer = start_timer(seconds, partial(self._expire, on_expiry))

    @property
    def seconds_left(self) -> float:
        """The seconds until the time is up."""
        return self._timer.seconds_left

    def respond(self, answer: Answer) -> None:
        """Send the answer, unless the time is up."""
        if not self._is_over:
            self.close()
            self._responder.respond(answer)

    def open_stream(self, status: HTTPStatus, headers: Fields) -> AnswerStream:
        """Let the answer begin, which makes it timely."""
        self.close()
        return self._responder.open_stream(status, headers)

    def close(self) -> None:
        """Watch the time no longer."""
        self._is_over = True
        self._timer.cancel()

    def _expire(self, on_expiry: Callable[[], None]) -> None:
        self.close()
        on_expiry()
        self._responder.respond(_TOO_LATE)


class MessageAnswer:
    """The answer of a call that gives any number of messages. Its head is sent with the first of them."""

    __slots__ = ("_headers", "_is_open", "_responder", "_stream", "_timer", "ends_at", "is_over")

    _timer: TimeLimit
    _stream: MessageStream

    def __init__(
        self, responder: Responder, timeout: float, on_expiry: Callable[[], None], *, mirrors: bool = False
    ) -> None:
        """`timeout`: the seconds of the call, after which `on_expiry` is called and the answer ends.

        `mirrors`: messages may be compressed with gzip.
        """
        self._headers = GZIP_HEADERS if mirrors else HEADERS
        self._responder = responder
        self._is_open = False
        self.is_over = False
        self.ends_at = NO_TIMEOUT  # on the clock of `time.monotonic()`
        if timeout != NO_TIMEOUT:
            self._timer = start_timer(timeout, lambda: self._expire(on_expiry))
            self.ends_at = self._timer.ends_at

    @property
    def seconds_left(self) -> float:
        """The seconds until the time of the call is up; `NO_TIMEOUT` for one without an end."""
        if self.ends_at == NO_TIMEOUT:
            return NO_TIMEOUT
        return self._timer.seconds_left

    def send(self, *parts: Buffer) -> None:
        """Send a message with its prefix, unless the answer is over."""
        if self.is_over:
            return
        if not self._is_open:
            self._is_open = True
            # A request with `Head.has_trailers` is answered by a stream of messages.
            self._stream = cast("MessageStream", self._responder.open_stream(HTTP_OK, self._headers))
        self._stream.send(*parts)

    async def drained(self) -> None:
        """Wait while the client does not read. Raises `ClientGoneError`."""
        if self._is_open and not self.is_over:
            await self._stream.drained()

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the answer; do nothing if it is over."""
        if self.is_over:
            return
        self.close()
        if self._is_open:
            self._stream.end(trailers(status, text))
        else:
            self._responder.respond(_NOTHING_SENT if status is GrpcStatus.OK else failure(status, text))

    def close(self) -> None:
        """Send nothing more: the client has gone, or the answer has ended."""
        self.is_over = True
        if self.ends_at != NO_TIMEOUT:
            self._timer.cancel()

    def _expire(self, on_expiry: Callable[[], None]) -> None:
        on_expiry()
        self.finish(GrpcStatus.DEADLINE_EXCEEDED, EXPIRED)
