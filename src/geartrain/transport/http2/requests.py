"""The frames that make requests (RFC 9113, sections 6.1 to 6.4, 6.10 and 8.1): heads, bodies, and their ends.

`Shared` is the state of a connection that its parts have in common.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from geartrain.transport.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITISED,
    ConnectionFaultError,
    StreamFaultError,
    read_word,
    rst_frame,
    unpadded,
    window_frame,
)
from geartrain.transport.http2.headers import HeadReader, HeadTooLargeError, MalformedError
from geartrain.transport.http2.interface import (
    BodyReceived,
    Buffer,
    ErrorCode,
    Event,
    Http2Limits,
    RequestHead,
    RequestReceived,
    StreamAborted,
)
from geartrain.transport.http2.sending import AnswerSender, Output, SendQueue
from geartrain.transport.http2.streams import (
    DEFAULT_WINDOW,
    Flood,
    FloodGuard,
    ReceiveWindow,
    Step,
    Stream,
    Streams,
    StreamState,
)

_OPEN: Final = StreamState.OPEN
_REMEMBERED: Final = 2048  # streams that the server has reset
BLOCK_FACTOR: Final = 2  # times the limit of a head: bytes of a field block that are taken to decode them
_MAX_CONTINUATIONS: Final = 64
_TOO_LARGE: Final = 431
_RECEIVE_HEAD: Final = Step.RECEIVE_HEAD
_RECEIVE_WHOLE: Final = Step.RECEIVE_WHOLE
_RECEIVE_DATA: Final = Step.RECEIVE_DATA
_RECEIVE_END: Final = Step.RECEIVE_END


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


class RequestReader:
    """Turns frames into the events of requests."""

    __slots__ = ("_block", "_continuations", "_flags", "_heads", "_max_block", "_shared", "_stream", "_streams")

    def __init__(self, shared: Shared) -> None:
        limits = shared.limits
        self._shared = shared
        self._streams = shared.streams
        self._heads = HeadReader(
            max_size=limits.max_head_size, max_fields=limits.max_fields, table_size=limits.table_size
        )
        self._max_block = BLOCK_FACTOR * limits.max_head_size
        self._block = bytearray()  # a field block that has come in part
        self._stream = 0  # to which it belongs
        self._flags = 0
        self._continuations = 0

    def limit_table(self) -> None:
        """The client has acknowledged the settings."""
        self._heads.limit_table(self._shared.limits.table_size)

    def headers(self, flags: int, number: int, payload: Buffer) -> None:
        """Take a HEADERS frame."""
        if not number & 1:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"A client cannot open stream {number}.")
        if flags & (PADDED | PRIORITISED):
            payload = unpadded(flags, payload)
        if flags & END_HEADERS:
            self._read_block(number, flags & END_STREAM, payload)
            return
        self._block += payload
        self._stream = number
        self._flags = flags
        self._continuations = 0
        self._shared.phase = Phase.BLOCK

    def continuation(self, flags: int, number: int, payload: Buffer) -> None:
        """Take a CONTINUATION frame, while a block has come in part."""
        if number != self._stream:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A field block goes on in another stream.")
        if not payload and not flags & END_HEADERS:
            self._shared.floods.count(Flood.EMPTY)
        self._block += payload
        self._continuations += 1
        if len(self._block) > self._max_block or self._continuations > _MAX_CONTINUATIONS:
            raise ConnectionFaultError(
                ErrorCode.ENHANCE_YOUR_CALM, "A field block is too large, or in too many pieces."
            )
        if flags & END_HEADERS:
            self._shared.phase = Phase.FRAMES
            block = bytes(self._block)
            self._block.clear()
            self._read_block(number, self._flags & END_STREAM, block)

    def _read_block(self, number: int, end: int, block: Buffer) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self._read_trailers(stream, end, block)
        elif number > self._streams.highest:
            self._open(number, end, block)
        else:
            # Whatever is to happen to the frame, the dynamic table has to follow it.
            self._heads.decode(bytes(block))
            self._streams.step_of_other(number, _RECEIVE_WHOLE if end else _RECEIVE_HEAD)

    def _open(self, number: int, end: int, block: Buffer) -> None:
        shared = self._shared
        fault = ErrorCode.NO_ERROR
        status = 0
        try:
            head = self._heads.read_request(bytes(block), is_whole=bool(end))
        except MalformedError:
            head, fault = _NO_HEAD, ErrorCode.PROTOCOL_ERROR
        except HeadTooLargeError:
            head, status = _NO_HEAD, _TOO_LARGE
        windows = shared.queue.windows
        stream = Stream(number, inbound=shared.initial_window, outbound=windows.initial, expected=head.length)
        is_full = len(self._streams) >= shared.limits.max_streams
        self._streams.open(stream, _RECEIVE_WHOLE if end else _RECEIVE_HEAD)
        if not shared.accepts or is_full:
            fault = ErrorCode.REFUSED_STREAM
        else:
            shared.last_accepted = number
        if fault:
            shared.floods.count(Flood.RESETS)
            shared.sender.reset(number, fault)
        elif status:
            shared.sender.head(number, status, (), is_last=True)
        else:
            shared.events.append(RequestReceived(number, head, bool(end)))

    def _read_trailers(self, stream: Stream, end: int, block: Buffer) -> None:
        fault = ErrorCode.NO_ERROR
        try:
            self._heads.read_trailers(bytes(block))
        except MalformedError:
            fault = ErrorCode.PROTOCOL_ERROR
        except HeadTooLargeError:
            fault = ErrorCode.ENHANCE_YOUR_CALM
        self._streams.step(stream, _RECEIVE_WHOLE if end else _RECEIVE_HEAD)
        if fault:
            raise StreamFaultError(fault, "The trailers of a request are malformed or too large.")
        if stream.expected > 0:
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR, "A body is shorter than its head announces.")
        self._shared.events.append(BodyReceived(stream.id, b"", 0, is_last=True))

    def data(self, flags: int, number: int, payload: Buffer) -> None:
        """Take DATA, or a part of it."""
        shared = self._shared
        size = len(payload)
        window = shared.inbound
        window.left -= size
        stream = self._streams.get(number)
        if size and not flags & END_STREAM and stream is not None and stream.state is _OPEN:
            inbound = stream.inbound
            if size <= inbound.left and stream.expected < 0 <= window.left:  # a part of a large body: one of many
                inbound.left -= size
                shared.events.append(BodyReceived(number, payload, size, False))
                return
        if stream is None:
            self._streams.step_of_other(number, _RECEIVE_END if flags & END_STREAM else _RECEIVE_DATA)
            self._check_window()
            self._drop(size, flags)
            return
        try:
            if flags & END_STREAM:
                self._streams.step(stream, _RECEIVE_END)
            else:
                self._streams.step(stream, _RECEIVE_DATA)
            self._count(stream, flags, size)
        except StreamFaultError:
            self._check_window()
            shared.acknowledge(size)
            raise
        if window.left < 0:
            self._check_window()
        if size or flags & END_STREAM:
            shared.events.append(BodyReceived(number, payload, size, bool(flags & END_STREAM)))
        else:
            shared.floods.count(Flood.EMPTY)

    def padding(self, size: int, number: int, _: Buffer) -> None:
        """Take the padding of a DATA frame: it counts as its data does, and is used at once."""
        shared = self._shared
        stream = self._streams.get(number)
        if stream is None:
            self._streams.step_of_other(number, _RECEIVE_DATA)
        shared.inbound.left -= size
        self._check_window()
        shared.acknowledge(size)
        if stream is not None and stream.state is _OPEN:
            stream.inbound.left -= size
            if stream.inbound.left < 0:
                raise StreamFaultError(ErrorCode.FLOW_CONTROL_ERROR, "More has come than the window of its stream.")
            shared.acknowledge_stream(stream, size)

    def _check_window(self) -> None:
        if self._shared.inbound.left < 0:
            raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "More has come than the connection's window.")

    def _count(self, stream: Stream, flags: int, size: int) -> None:
        """Take from a stream's window, and from the length that its head has announced."""
        stream.inbound.left -= size
        if stream.inbound.left < 0:
            raise StreamFaultError(ErrorCode.FLOW_CONTROL_ERROR, "More has come than the window of its stream.")
        if stream.expected >= 0:
            stream.expected -= size
            if stream.expected < 0 or (stream.expected and flags & END_STREAM):
                raise StreamFaultError(ErrorCode.PROTOCOL_ERROR, "A body is not as long as its head announces.")

    def _drop(self, size: int, flags: int) -> None:
        """Take DATA of a stream that the server has reset."""
        self._shared.acknowledge(size)
        if not size and not flags & END_STREAM:
            self._shared.floods.count(Flood.EMPTY)

    def reset(self, _: int, number: int, payload: Buffer) -> None:
        """Take a RST_STREAM frame."""
        if len(payload) != 4:  # noqa: PLR2004
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A RST_STREAM frame must have 4 bytes.")
        self._shared.floods.count(Flood.RESETS)
        stream = self._streams.get(number)
        if stream is None:
            self._streams.step_of_other(number, Step.RECEIVE_RESET)
        else:
            self._streams.step(stream, Step.RECEIVE_RESET)
            self._shared.queue.drop(stream)
            self._shared.events.append(StreamAborted(number, read_word(payload)))

    def priority(self, _: int, number: int, payload: Buffer) -> None:
        """Take a PRIORITY frame: priorities of this kind are no longer used (section 5.3)."""
        if not number:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A PRIORITY frame must name a stream.")
        if len(payload) != 5:  # noqa: PLR2004
            text = "A PRIORITY frame must have 5 bytes."
            if self._streams.state_of(number) is StreamState.IDLE:  # there is nothing to be reset
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, text)
            raise StreamFaultError(ErrorCode.FRAME_SIZE_ERROR, text)
        self._shared.floods.count(Flood.IGNORED)


_NO_HEAD: Final = RequestHead("", "", b"", (), -1)
