"""The streams of a connection: their states (RFC 9113, section 5.1), their windows (5.2), and limits by rate.

Each kind of frame that costs the client little and the server more has a bucket of tokens. It fills with time, and with
the work that is done for the client: an answer, or a frame of its body. So a client that pings with every call is free
to do so, and one that only pings is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from geartrain.transport.http2.frames import ConnectionFaultError, StreamFaultError
from geartrain.transport.http2.interface import Buffer, ErrorCode, Fields

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
_GAPS: Final = 16


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


class Flood(IntEnum):
    """Counted events."""

    RESETS = 0  # streams that the client resets, or that it makes the server reset
    SETTINGS = 1
    PINGS = 2
    EMPTY = 3  # DATA and CONTINUATION that carry nothing
    WINDOWS = 4  # WINDOW_UPDATE
    IGNORED = 5  # without a meaning here: PRIORITY, unknown frames, GOAWAY again


class Rate(msgspec.Struct, frozen=True):
    """Allowed rate of events.

    Attributes:
        second: tokens that come with a second.
        burst: tokens that a bucket holds.
        work: tokens that come with an answer, or with a frame of its body.
    """

    second: float
    burst: float
    work: float = 0


RATES: Final[Mapping[Flood, Rate]] = {
    Flood.RESETS: Rate(second=200, burst=4096, work=0.1),
    Flood.SETTINGS: Rate(second=20, burst=100),
    Flood.PINGS: Rate(second=200, burst=4096, work=2),
    Flood.EMPTY: Rate(second=100, burst=1000),
    Flood.WINDOWS: Rate(second=10_000, burst=20_000, work=4),
    Flood.IGNORED: Rate(second=1000, burst=5000, work=4),
}


class Bucket:
    """Tokens of one kind."""

    __slots__ = ("_at", "_rate", "_tokens", "_work")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._tokens = 0.0
        self._at = float("-inf")  # when tokens were added last; never, so that the bucket is full at first
        self._work = 0

    def take(self, now: float, work: int) -> bool:
        """Take a token; return whether there was one. `work`: all that has been done so far."""
        rate = self._rate
        tokens = self._tokens + (now - self._at) * rate.second + (work - self._work) * rate.work
        self._at = now
        self._work = work
        self._tokens = min(rate.burst, tokens) - 1
        return self._tokens >= 0


class FloodGuard:
    """The buckets of a connection."""

    __slots__ = ("_buckets", "now", "work")

    def __init__(self, rates: Mapping[Flood, Rate] = RATES) -> None:
        self._buckets = [Bucket(rates[kind]) for kind in Flood]
        self.now = 0.0  # seconds, as the driver has given them last
        self.work = 0  # answers, and frames of their bodies

    def count(self, kind: Flood) -> None:
        """Count one; raise `ConnectionFaultError` if there are too many."""
        if not self._buckets[kind].take(self.now, self.work):
            text = f"The client exceeds a limit by rate: {kind.name.lower()}."
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text)


class StreamState(IntEnum):
    """State of a stream."""

    IDLE = 0
    OPEN = 1  # the request is coming
    HALF_CLOSED = 2  # the request is complete, and the answer is not
    RESET = 3  # reset by the server: what the client has sent before it knew is tolerated
    CLOSED = 4
    SKIPPED = 5  # closed because a higher one was opened


class Step(IntEnum):
    """Steps of a stream."""

    RECEIVE_HEAD = 0
    RECEIVE_WHOLE = 1  # HEADERS with END_STREAM: a request without a body, or trailers
    RECEIVE_DATA = 2
    RECEIVE_END = 3  # DATA with END_STREAM
    RECEIVE_RESET = 4
    RECEIVE_WINDOW = 5
    RECEIVE_PRIORITY = 6
    SEND_END = 7
    SEND_RESET = 8


class Illegal(msgspec.Struct, frozen=True):
    """Consequence of an illegal step."""

    code: ErrorCode
    is_fatal: bool  # for the connection


_S = StreamState
_E = ErrorCode
_RESET: Final = StreamState.RESET
_CLOSED: Final = StreamState.CLOSED
_NEVER_OPENED: Final = Illegal(_E.PROTOCOL_ERROR, is_fatal=True)
_OVER: Final = Illegal(_E.STREAM_CLOSED, is_fatal=True)
_COMPLETE: Final = Illegal(_E.STREAM_CLOSED, is_fatal=False)
_NO_TRAILERS: Final = Illegal(_E.PROTOCOL_ERROR, is_fatal=False)
_OURS: Final = Illegal(_E.INTERNAL_ERROR, is_fatal=True)

# A row for each state, a column for each step, in the order above. To change the machine, change this table.
STEPS: Final[dict[StreamState, tuple[StreamState | Illegal, ...]]] = {
    _S.IDLE: (
        *(_S.OPEN, _S.HALF_CLOSED, _NEVER_OPENED, _NEVER_OPENED),
        *(_NEVER_OPENED, _NEVER_OPENED, _S.IDLE, _OURS, _OURS),
    ),
    # An answer that ends before the request does is followed by a reset (section 8.1).
    _S.OPEN: (
        *(_NO_TRAILERS, _S.HALF_CLOSED, _S.OPEN, _S.HALF_CLOSED),
        *(_S.CLOSED, _S.OPEN, _S.OPEN, _S.RESET, _S.RESET),
    ),
    _S.HALF_CLOSED: (
        *(_COMPLETE, _COMPLETE, _COMPLETE, _COMPLETE),
        *(_S.CLOSED, _S.HALF_CLOSED, _S.HALF_CLOSED, _S.CLOSED, _S.RESET),
    ),
    # Frames that the client sends before it learns of the reset come in any order, and in any part of a frame.
    _S.RESET: (
        *(_S.RESET, _S.RESET, _S.RESET, _S.RESET),
        *(_S.CLOSED, _S.RESET, _S.RESET, _OURS, _OURS),
    ),
    _S.CLOSED: (
        *(_OVER, _OVER, _OVER, _OVER),
        *(_S.CLOSED, _S.CLOSED, _S.CLOSED, _OURS, _OURS),
    ),
    _S.SKIPPED: (
        *(_NEVER_OPENED, _NEVER_OPENED, _OVER, _OVER),
        *(_S.SKIPPED, _S.SKIPPED, _S.SKIPPED, _OURS, _OURS),
    ),
}


class Answer(IntEnum):
    """Progress of a driver's answer."""

    NONE = 0
    BODY = 1  # the head has been given
    LAST = 2  # the last part of the body too
    TRAILERS = 3  # the trailers too


class Stream:
    """A stream that is open.

    Attributes:
        id: its number.
        tag: the same, as it is written.
        state: changed by `Streams` alone.
        answer: how far the driver has come.
        inbound: what the client may send.
        expected: bytes of the body that are still to come, or `UNKNOWN_LENGTH`.
        window: bytes that may be sent; below zero after a change of settings.
        parts: of the answer's body, which are held.
        held: their bytes.
        sent: bytes of the answer's body that have been sent.
        trailers: fields that follow the body.
    """

    __slots__ = (
        *("answer", "expected", "held", "id", "inbound", "parts", "sent", "state", "tag", "trailers", "window"),
    )

    def __init__(self, number: int, *, inbound: int, outbound: int, expected: int) -> None:
        self.id = number
        self.tag = number.to_bytes(4, "big")
        self.state = _S.IDLE
        self.answer = Answer.NONE
        self.inbound = ReceiveWindow(inbound)
        self.expected = expected
        self.window = outbound
        self.parts: deque[Buffer] = _NO_PARTS
        self.held = 0
        self.sent = 0
        self.trailers: Fields = ()


_NO_PARTS: Final[deque[Buffer]] = deque(maxlen=0)
"""Stands for the parts of an answer that has not been held yet."""


class Streams:
    """The open streams of a connection, and what has to be remembered of the others.

    A step raises `StreamFaultError` or `ConnectionFaultError` if the client must not take it.
    """

    __slots__ = ("_forgotten", "_gaps", "_open", "_remembered", "_reset", "get", "highest")

    def __init__(self, remembered: int) -> None:
        """`remembered`: streams that the server has reset, at most."""
        self._open: dict[int, Stream] = {}
        self.get = self._open.get  # an open stream by its number
        self.highest = 0  # number that the client has used
        self._remembered = remembered
        self._reset: dict[int, None] = {}
        self._forgotten = 0  # a number: streams that were reset up to here are no longer known by themselves
        self._gaps: deque[range] = deque(maxlen=_GAPS)  # numbers that the client has left out lately

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._open.values())

    @property
    def has_reset(self) -> bool:
        """True if the server has reset a stream, and the client has not done so as well."""
        return bool(self._reset or self._forgotten)

    def open(self, stream: Stream, step: Step) -> None:
        """Add a stream, whose number is higher than all before; those between are closed by that."""
        first = self.highest + 2 if self.highest else 1
        if stream.id > first:
            self._gaps.append(range(first, stream.id, 2))
        self.highest = stream.id
        self._open[stream.id] = stream
        self.step(stream, step)

    def step(self, stream: Stream, step: Step) -> None:
        """Take a step of an open stream."""
        found = STEPS[stream.state][step]
        if type(found) is Illegal:
            raise _fault(stream.id, stream.state, found)
        if found is not stream.state:
            stream.state = found  # type: ignore[assignment] # it is no `Illegal`
            if found is _CLOSED or found is _RESET:
                del self._open[stream.id]
                if found is _RESET:
                    self._remember(stream.id)

    def step_of_other(self, number: int, step: Step) -> StreamState:
        """Take a step of a stream that is not open; return its state."""
        state = self.state_of(number)
        found = STEPS[state][step]
        if isinstance(found, Illegal):
            raise _fault(number, state, found)
        if found is not state:
            self._reset.pop(number, None)
        return found

    def state_of(self, number: int) -> StreamState:
        """Return the state of a stream."""
        stream = self._open.get(number)
        if stream is not None:
            return stream.state
        if number > self.highest or not number & 1:  # the server opens none
            return _S.IDLE
        if number in self._reset:
            return _RESET
        if any(number in gap for gap in self._gaps):
            return _S.SKIPPED
        return _RESET if number <= self._forgotten else _CLOSED

    def clear(self) -> None:
        """Forget all: the connection is over."""
        self._open.clear()
        self._reset.clear()
        self._gaps.clear()

    def _remember(self, number: int) -> None:
        self._reset[number] = None
        if len(self._reset) > self._remembered:
            oldest = next(iter(self._reset))
            del self._reset[oldest]
            self._forgotten = max(self._forgotten, oldest)


def _fault(number: int, state: StreamState, found: Illegal) -> ConnectionFaultError | StreamFaultError:
    text = f"A frame has come on stream {number}, which is {state.name.lower().replace('_', '-')}."
    return ConnectionFaultError(found.code, text) if found.is_fatal else StreamFaultError(found.code, text)
