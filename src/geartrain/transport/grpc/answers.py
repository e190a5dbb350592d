"""The answers of calls: one message in one piece, or several as they come; within the time of the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, cast

from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.scheduling.context import TimeLimit
from geartrain.transport import compression
from geartrain.transport.grpc.framing import frame, frame_compressed
from geartrain.transport.grpc.heads import NO_TIMEOUT
from geartrain.transport.grpc.status import (
    GZIP_HEADERS,
    HEADERS,
    HTTP_OK,
    OK_TRAILERS,
    Fields,
    Status,
    failure,
    trailers,
)
from geartrain.transport.wire.exchange import Answer, AnswerStream, MessageStream, Responder

MIN_COMPRESSED: Final = 1024  # bytes of a message that is worth compressing
EXPIRED: Final = "Deadline Exceeded"
_TOO_LATE: Final = failure(Status.DEADLINE_EXCEEDED, EXPIRED)
_NOTHING_SENT: Final = Answer(HTTP_OK, (), (*HEADERS, *OK_TRAILERS))


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

    def finish(self, status: Status, text: str = "") -> None:
        """End the answer; do nothing if it is over."""
        if self.is_over:
            return
        self.close()
        if self._is_open:
            self._stream.end(trailers(status, text))
        else:
            self._responder.respond(_NOTHING_SENT if status is Status.OK else failure(status, text))

    def close(self) -> None:
        """Send nothing more: the client has gone, or the answer has ended."""
        self.is_over = True
        if self.ends_at != NO_TIMEOUT:
            self._timer.cancel()

    def _expire(self, on_expiry: Callable[[], None]) -> None:
        on_expiry()
        self.finish(Status.DEADLINE_EXCEEDED, EXPIRED)
