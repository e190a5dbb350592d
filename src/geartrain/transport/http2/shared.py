"""Shared parts of a codec."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from geartrain.transport.http2.floods import Flood, FloodGuard
from geartrain.transport.http2.frames import rst_frame, window_frame
from geartrain.transport.http2.interface import ErrorCode, Event, Http2Limits, StreamAborted
from geartrain.transport.http2.output import Output
from geartrain.transport.http2.send_queue import SendQueue
from geartrain.transport.http2.sending import AnswerSender
from geartrain.transport.http2.streams import Stream, Streams, StreamState
from geartrain.transport.http2.windows import DEFAULT_WINDOW, ReceiveWindow

_OPEN: Final = StreamState.OPEN
_REMEMBERED: Final = 2048  # streams that the server has reset


class Phase(IntEnum):
    """Phase of a connection: the frames that may come next."""

    PREFACE = 0
    SETTINGS = 1  # the first frame
    FRAMES = 2
    BLOCK = 3  # CONTINUATION: a field block has come in part
    OVER = 4


class Shared:
    """The state of a connection that more than one of its parts changes."""

    __slots__ = (
        *("accepts", "events", "floods", "inbound", "initial_window", "last_accepted"),
        *("limits", "output", "phase", "sender", "streams", "queue"),
    )

    def __init__(self, limits: Http2Limits) -> None:
        self.limits = limits
        self.phase = Phase.PREFACE
        self.events: list[Event] = []
        self.floods = FloodGuard()
        self.streams = Streams(max(_REMEMBERED, 2 * limits.max_streams))
        self.queue = SendQueue()
        self.output = Output()
        self.sender = AnswerSender(self.streams, queue=self.queue, output=self.output, floods=self.floods)
        self.inbound = ReceiveWindow(max(limits.connection_window, DEFAULT_WINDOW))
        # A client may use the window of the protocol until it knows of ours.
        self.initial_window = max(limits.stream_window, DEFAULT_WINDOW)
        self.accepts = True  # streams that the client opens
        self.last_accepted = 0

    def abort(self, number: int, code: ErrorCode) -> None:
        """Reset a stream that its client has broken, and tell the driver."""
        self.floods.count(Flood.RESETS)
        if self.streams.get(number) is None:
            self.output.reply(rst_frame(number, code))
        else:
            self.sender.reset(number, code)
            self.events.append(StreamAborted(number, code))

    def acknowledge(self, size: int) -> None:
        """Give credit for bytes of the connection that have been used."""
        credit = self.inbound.acknowledge(size)
        if credit:
            self.output.write(window_frame(0, credit))

    def acknowledge_stream(self, stream: Stream, size: int) -> None:
        """Give credit for bytes of a stream that have been used, if more can come."""
        credit = stream.inbound.acknowledge(size)
        if credit and stream.state is _OPEN:
            self.output.write(window_frame(stream.id, credit))

    def take_acknowledgement(self) -> None:
        """Hold the client to the window of a stream that it knows of now (section 6.9.2)."""
        change = self.limits.stream_window - self.initial_window
        if change:
            self.initial_window += change
            for stream in self.streams:
                stream.inbound.resize(change)
                self.acknowledge_stream(stream, 0)
