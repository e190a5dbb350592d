"""One connection of HTTP/2, as its server sees it: the codec (RFC 9113).

What comes is read by `RequestReader` and `ControlReader`, what goes is written by `AnswerSender`; here is which frames
may come when, and what becomes of faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from geartrain.transport.http2.control import ControlReader, refuse_first
from geartrain.transport.http2.faults import ConnectionFaultError, StreamFaultError
from geartrain.transport.http2.frames import (
    CONTINUATION,
    KINDS,
    SETTINGS,
    FrameReader,
    goaway_frame,
)
from geartrain.transport.http2.interface import (
    PREFACE,
    Buffer,
    ConnectionEnded,
    ErrorCode,
    Event,
    Http2Limits,
    Sender,
)
from geartrain.transport.http2.requests import BLOCK_FACTOR, RequestReader
from geartrain.transport.http2.shared import Phase, Shared

_Take = Callable[[int, int, Buffer], None]
_OVER: Final = Phase.OVER
_PREFACE: Final = Phase.PREFACE
_LONGEST_REASON: Final = 256  # bytes in a GOAWAY frame


class ServerConnection:
    """A `Codec`. To begin, `take_output` of its sender has the settings of the server."""

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
        self.sender: Sender = self._shared.sender
        self._control.send_settings()

    @property
    def stream_count(self) -> int:
        """See `Codec`."""
        return len(self._streams)

    @property
    def is_reading_head(self) -> bool:
        """See `Codec`."""
        phase = self._shared.phase
        return phase is not _OVER and (phase is not Phase.FRAMES or self._reader.is_holding)

    @property
    def is_closing(self) -> bool:
        """See `Codec`."""
        return not self._shared.accepts

    @property
    def awaits_resets(self) -> bool:
        """See `Codec`."""
        return self._streams.has_reset

    def receive(self, data: bytes, now: float) -> list[Event]:
        """See `Codec`."""
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
        """See `Codec`."""
        shared = self._shared
        if shared.phase is _OVER:
            return
        shared.acknowledge(size)
        found = self._streams.get(stream)
        if found is not None:
            shared.acknowledge_stream(found, size)

    def ping(self, payload: bytes) -> None:
        """See `Codec`."""
        if self._shared.phase is not _OVER:
            self._control.ping(payload)

    def shut_down(self) -> None:
        """See `Codec`."""
        if self._shared.phase is not _OVER:
            self._control.shut_down()

    def end(self, code: ErrorCode, reason: str = "") -> None:
        """See `Codec`."""
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
