"""One connection of HTTP/2, as its server sees it: the codec (RFC 9113).

Requests are read by `RequestReader`, frames of the connection as a whole (sections 6.5 to 6.9) by `ControlReader`, and
answers are written by `AnswerSender`. The table of takers says which frames may come when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from geartrain.transport.http2.frames import (
    ACK,
    CONTINUATION,
    KINDS,
    LARGEST_MAX_FRAME,
    MAX_STREAM,
    PING,
    SETTINGS,
    SMALLEST_MAX_FRAME,
    ConnectionFaultError,
    FrameReader,
    StreamFaultError,
    frame,
    goaway_frame,
    read_settings,
    read_word,
    settings_frame,
    window_frame,
)
from geartrain.transport.http2.interface import (
    PREFACE,
    Buffer,
    ConnectionEnded,
    ErrorCode,
    Event,
    Http2Limits,
    PingAnswered,
)
from geartrain.transport.http2.requests import BLOCK_FACTOR, Phase, RequestReader, Shared
from geartrain.transport.http2.streams import DEFAULT_WINDOW, MAX_WINDOW, Flood, Step

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

_MAX_SETTINGS: Final = 64  # in one frame
_SETTING_SIZE: Final = 6
_PING_SIZE: Final = 8
_WINDOW_SIZE: Final = 4
_SMALLEST_GOAWAY: Final = 8
_MAX_PINGS: Final = 16  # of the driver, without an answer
_SHUTDOWN_PING: Final = b"shutdown"  # the ping whose answer says that the first GOAWAY has been read
_DEFAULT_TABLE: Final = 4096
_ACKNOWLEDGED: Final = frame(SETTINGS, ACK, 0)
_Take = Callable[[int, int, Buffer], None]
_OVER: Final = Phase.OVER
_PREFACE: Final = Phase.PREFACE
_LONGEST_REASON: Final = 256  # bytes in a GOAWAY frame


class ControlReader:
    """Takes the frames of stream 0, and WINDOW_UPDATE of any."""

    __slots__ = ("_awaits_ping", "_is_acknowledged", "_is_shut_down", "_pings", "_requests", "_shared", "_table_size")

    def __init__(self, shared: Shared, requests: RequestReader) -> None:
        self._shared = shared
        self._requests = requests
        self._table_size = _DEFAULT_TABLE  # of the dynamic table that the client keeps for what it receives
        self._is_acknowledged = False  # true if the client knows the server's settings
        self._pings: deque[bytes] = deque(maxlen=_MAX_PINGS)  # of the driver, without an answer
        self._is_shut_down = False  # by the driver
        self._awaits_ping = False  # true if the client has still to answer the ping of the shutdown

    def send_settings(self) -> None:
        """Send the server's settings."""
        limits = self._shared.limits
        settings = [
            (HEADER_TABLE_SIZE, limits.table_size),
            (MAX_CONCURRENT_STREAMS, limits.max_streams),
            (INITIAL_WINDOW_SIZE, limits.stream_window),
            (MAX_FRAME_SIZE, limits.max_frame_size),
            (MAX_HEADER_LIST_SIZE, limits.max_head_size),
        ]
        output = self._shared.output
        output.write(settings_frame(settings))
        if limits.connection_window > DEFAULT_WINDOW:
            output.write(window_frame(0, limits.connection_window - DEFAULT_WINDOW))

    def shut_down(self) -> None:
        """Say that no stream will be accepted soon, and ask when the client has read it."""
        if self._is_shut_down:
            return
        self._is_shut_down = self._awaits_ping = True
        output = self._shared.output
        output.write(goaway_frame(MAX_STREAM, ErrorCode.NO_ERROR))
        output.write(frame(PING, 0, 0, payload=_SHUTDOWN_PING))

    def ping(self, payload: bytes) -> None:
        """Ask for an answer."""
        self._pings.append(payload)
        self._shared.output.write(frame(PING, 0, 0, payload=payload))

    # frames

    def first_settings(self, flags: int, number: int, payload: Buffer) -> None:
        """Take the first frame of a connection."""
        if flags & ACK:
            refuse_first(flags, number, payload)
        self._shared.phase = Phase.FRAMES
        self.settings(flags, number, payload)

    def settings(self, flags: int, number: int, payload: Buffer) -> None:
        """Take a SETTINGS frame."""
        if number:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A SETTINGS frame must not name a stream.")
        self._shared.floods.count(Flood.SETTINGS)
        size = len(payload)
        if size % _SETTING_SIZE or (flags & ACK and size):
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, f"A SETTINGS frame cannot have {size} bytes.")
        if flags & ACK:
            if not self._is_acknowledged:
                self._is_acknowledged = True
                self._shared.take_acknowledgement()
                self._requests.limit_table()
            return
        if size > _MAX_SETTINGS * _SETTING_SIZE:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "A SETTINGS frame has too many settings.")
        for name, value in read_settings(payload):
            self._change(name, value)
        self._shared.output.reply(_ACKNOWLEDGED)

    def _change(self, name: int, value: int) -> None:
        shared = self._shared
        windows = shared.queue.windows
        if name == HEADER_TABLE_SIZE:
            if value < self._table_size:
                shared.output.drop_table()
            self._table_size = value
        elif name == ENABLE_PUSH and value > 1:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH must be 0 or 1.")
        elif name == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is too large.")
            shared.floods.count(Flood.SETTINGS)  # once more: it is work for every stream
            shared.queue.change_initial(value, shared.streams)
        elif name == MAX_FRAME_SIZE:
            if not SMALLEST_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of its range.")
            windows.max_frame_size = value

    def pinged(self, flags: int, number: int, payload: Buffer) -> None:
        """Take a PING frame."""
        if number:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A PING frame must not name a stream.")
        if len(payload) != _PING_SIZE:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A PING frame must have 8 bytes.")
        shared = self._shared
        shared.floods.count(Flood.PINGS)
        content = bytes(payload)
        if not flags & ACK:
            shared.output.reply(frame(PING, ACK, 0, payload=content))
        elif content in self._pings:
            self._pings.remove(content)
            shared.events.append(PingAnswered(content))
        elif content == _SHUTDOWN_PING and self._awaits_ping:
            self._awaits_ping = False
            shared.accepts = False
            shared.output.write(goaway_frame(shared.last_accepted, ErrorCode.NO_ERROR))

    def goaway(self, _: int, number: int, payload: Buffer) -> None:
        """Take a GOAWAY frame: the streams that are open go on."""
        if number:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A GOAWAY frame must not name a stream.")
        if len(payload) < _SMALLEST_GOAWAY:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A GOAWAY frame must have 8 bytes or more.")
        self._shared.floods.count(Flood.IGNORED)
        self._shared.accepts = False

    def window_update(self, _: int, number: int, payload: Buffer) -> None:
        """Take a WINDOW_UPDATE frame."""
        if len(payload) != _WINDOW_SIZE:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A WINDOW_UPDATE frame must have 4 bytes.")
        shared = self._shared
        shared.floods.count(Flood.WINDOWS)
        increment = read_word(payload) & MAX_WINDOW
        if not number:
            shared.queue.windows.grow_connection(increment)
            return
        stream = shared.streams.get(number)
        if stream is None:
            shared.streams.step_of_other(number, Step.RECEIVE_WINDOW)
        else:
            shared.streams.step(stream, Step.RECEIVE_WINDOW)
            shared.queue.grow(stream, increment)

    def unknown(self, _flags: int, _number: int, _payload: Buffer) -> None:
        """Take a frame of a kind that is not known, which means nothing (section 5.5)."""
        self._shared.floods.count(Flood.IGNORED)


def refuse_first(_flags: int, _number: int, _payload: Buffer) -> None:
    """Refuse a client that begins with another frame."""
    raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "The first frame of a client must be SETTINGS.")


class ServerConnection:
    """One connection, as its server sees it. The methods raise nothing, whatever the client does.

    To begin, `take_output` of its sender has the settings of the server.
    """

    __slots__ = ("_begin", "_control", "_reader", "_requests", "_shared", "_streams", "_takers", "sender")

    def __init__(self, limits: Http2Limits | None = None) -> None:
        limits = limits or Http2Limits()
        self._shared = Shared(limits)
        self._streams = self._shared.streams
        self._requests = RequestReader(self._shared)
        self._control = ControlReader(self._shared, self._requests)
        self._reader = FrameReader(limits.max_frame_size, BLOCK_FACTOR * limits.max_head_size)
        self._begin = b""  # of the preface
        self._takers = self._takers_by_phase()
        self.sender = self._shared.sender
        self._control.send_settings()

    @property
    def stream_count(self) -> int:
        """Streams that are open: whose request or answer is not complete."""
        return len(self._streams)

    @property
    def is_reading_head(self) -> bool:
        """True if the preface, the first settings or a head has come in part, or not at all yet."""
        phase = self._shared.phase
        return phase is not _OVER and (phase is not Phase.FRAMES or self._reader.is_holding)

    @property
    def is_closing(self) -> bool:
        """True if no stream will be accepted any more."""
        return not self._shared.accepts

    @property
    def awaits_resets(self) -> bool:
        """True if a stream has been reset whose client may not know of it yet, and may still be sending."""
        return self._streams.has_reset

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take what has come. `now` in seconds on any clock that does not go back."""
        shared = self._shared
        events: list[Event] = []
        if shared.phase is _OVER:
            return events
        shared.events = events
        shared.floods.now = now
        takers = self._takers
        try:
            shared.output.check()
            if shared.phase is _PREFACE:
                data = self._read_preface(data)
            for kind, flags, number, payload in self._reader.read(data):
                try:
                    takers[shared.phase][kind](flags, number, payload)
                except StreamFaultError as fault:
                    shared.abort(number, fault.code)
        except ConnectionFaultError as fault:
            self.end(fault.code, str(fault))
            events.append(ConnectionEnded(fault.code, str(fault)))
        return events

    def acknowledge(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more. For a stream that is over it counts for the connection alone."""
        shared = self._shared
        if shared.phase is _OVER:
            return
        shared.acknowledge(size)
        found = self._streams.get(stream)
        if found is not None:
            shared.acknowledge_stream(found, size)

    def ping(self, payload: bytes) -> None:
        """Ask for an answer; `payload` has 8 bytes."""
        if self._shared.phase is not _OVER:
            self._control.ping(payload)

    def shut_down(self) -> None:
        """Accept no further stream (section 6.8): first say so, and after the time of a ping refuse what comes."""
        if self._shared.phase is not _OVER:
            self._control.shut_down()

    def end(self, code: ErrorCode, reason: str = "") -> None:
        """Say that the connection ends now, and why; all streams are over."""
        shared = self._shared
        if shared.phase is _OVER:
            return
        shared.phase = _OVER
        shared.accepts = False
        for stream in shared.streams:
            shared.queue.drop(stream)
        shared.streams.clear()
        shared.output.write(goaway_frame(shared.last_accepted, code, reason.encode()[:_LONGEST_REASON]))

    # which frames may come when

    def _takers_by_phase(self) -> tuple[tuple[_Take, ...], ...]:
        """Return a row for each phase, with a column for each kind of frame."""
        requests, control = self._requests, self._control
        frames: tuple[_Take, ...] = (
            *(requests.data, requests.headers, requests.priority, requests.reset, control.settings, _refuse_push),
            *(control.pinged, control.goaway, control.window_update, _refuse_continuation),
            *(control.unknown, requests.padding),
        )
        first: list[_Take] = [refuse_first] * KINDS
        inside: list[_Take] = [_refuse_inside] * KINDS
        first[SETTINGS] = control.first_settings
        inside[CONTINUATION] = requests.continuation
        nothing = (_ignore,) * KINDS
        return nothing, tuple(first), frames, tuple(inside), nothing

    def _read_preface(self, data: bytes) -> bytes:
        """Return the rest behind the preface (section 3.4)."""
        missing = len(PREFACE) - len(self._begin)
        self._begin += data[:missing]
        if not PREFACE.startswith(self._begin):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "The client does not begin as HTTP/2 does.")
        if len(self._begin) == len(PREFACE):
            self._shared.phase = Phase.SETTINGS
        return data[missing:]


def _refuse_inside(_flags: int, _number: int, _payload: Buffer) -> None:
    raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A field block must go on without another frame between.")


def _refuse_push(_flags: int, _number: int, _payload: Buffer) -> None:
    raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A client cannot push.")


def _refuse_continuation(_flags: int, _number: int, _payload: Buffer) -> None:
    raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A CONTINUATION frame has no field block to go on with.")


def _ignore(_flags: int, _number: int, _payload: Buffer) -> None:
    """Nothing is taken any more."""
