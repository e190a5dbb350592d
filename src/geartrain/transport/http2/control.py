"""The frames that belong to a connection as a whole (RFC 9113, sections 6.5 to 6.9)."""

from __future__ import annotations

from collections import deque
from typing import Final

from geartrain.transport.http2.faults import ConnectionFaultError
from geartrain.transport.http2.floods import Flood
from geartrain.transport.http2.frames import (
    ACK,
    LARGEST_MAX_FRAME,
    MAX_STREAM,
    PING,
    SETTINGS,
    SMALLEST_MAX_FRAME,
    frame,
    goaway_frame,
    read_settings,
    read_word,
    settings_frame,
    window_frame,
)
from geartrain.transport.http2.interface import Buffer, ErrorCode, PingAnswered
from geartrain.transport.http2.requests import RequestReader
from geartrain.transport.http2.shared import Phase, Shared
from geartrain.transport.http2.streams import Step
from geartrain.transport.http2.windows import DEFAULT_WINDOW, MAX_WINDOW

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
