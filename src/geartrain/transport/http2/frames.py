"""Frames of HTTP/2 (RFC 9113, sections 4 and 6), and the faults of clients that break its rules (section 5.4).

A frame is a plain tuple of its kind, its flags, its stream and its payload: one is read for every few dozen bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

from geartrain.transport.http2.interface import Buffer, ErrorCode

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9
UNKNOWN: Final = 0xA  # stands for every other kind; its payload is not kept
PADDING: Final = 0xB  # no kind of frame: the padding of a DATA frame. Where the flags stand is the count of bytes
KINDS: Final = 0xC

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

MAX_STREAM: Final = 2**31 - 1
SMALLEST_MAX_FRAME: Final = 2**14
LARGEST_MAX_FRAME: Final = 2**24 - 1
HEADER_SIZE: Final = 9
VIEW_FROM: Final = 2048  # bytes of DATA; fewer are cheaper to copy than to look at through a view

Frame = tuple[int, int, int, Buffer]

_HEADER: Final = Struct(">HBBBI")  # the length is of 24 bits
_unpack: Final = _HEADER.unpack_from
_SETTING: Final = Struct(">HI")
_WORD: Final = Struct(">I")
_TWO_WORDS: Final = Struct(">II")
_ALL_KINDS: Final = 256


class ConnectionFaultError(Exception):
    """The connection has to end."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamFaultError(Exception):
    """One stream has to be reset; the others go on."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class FrameReader:
    """Finds the frames in what a client sends.

    DATA is given as it comes, in parts; the last part has the flags. Any other frame is given when it is whole.
    """

    __slots__ = ("_end", "_held", "_left", "_limits", "_needed", "_skipped", "_stream")

    def __init__(self, max_size: int, max_held: int) -> None:
        """`max_size`: the largest payload of all; `max_held`: of a frame that is kept until it is whole."""
        self._limits = _limits(max_size, max_held)
        self._held = bytearray()  # the beginning of a header, or of a frame that is given whole
        self._needed = 0  # bytes in `_held` with which reading can go on
        self._left = 0  # data bytes of a DATA frame that has begun
        self._skipped = 0  # bytes to skip: padding behind the data, or an unknown frame
        self._end = -1  # the flags of the DATA frame that has begun; -1 while there is none
        self._stream = 0

    @property
    def is_holding(self) -> bool:
        """True if a frame other than DATA has come in part."""
        return bool(self._held)

    def read(self, data: bytes) -> Iterator[Frame]:  # noqa: C901, PLR0912, PLR0915 - one loop is faster
        """Yield the frames that can be given now; raise `ConnectionFaultError` for one whose size is wrong."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        size = len(data)
        at = 0
        if self._end >= 0 or self._skipped:
            at, frames = self._go_on(data, 0)
            yield from frames
        limits = self._limits
        while size - at >= HEADER_SIZE:
            high, low, kind, flags, stream = _unpack(data, at)
            begin = at + HEADER_SIZE
            length = high << 8 | low
            end = begin + length
            if length > limits[kind]:
                raise _too_large(kind, length, limits[DATA])
            stream &= MAX_STREAM
            if end <= size and (kind or not flags & PADDED) and kind < UNKNOWN:
                if kind or length < VIEW_FROM:
                    yield kind, flags, stream, data[begin:end]
                else:
                    yield DATA, flags, stream, memoryview(data)[begin:end]
                at = end
            elif kind and kind < UNKNOWN:
                self._hold(data[at:], HEADER_SIZE + length)
                return
            elif kind:
                self._skipped = length
                yield UNKNOWN, flags, stream, b""
                at, _ = self._go_on(data, begin)
            elif flags & PADDED and length and size == begin:
                self._hold(data[at:], HEADER_SIZE + 1)
                return
            else:
                begin, frames = self._begin_data(data, at, length)
                yield from frames
                at, frames = self._go_on(data, begin)
                yield from frames
        if at < size:
            self._hold(data[at:], HEADER_SIZE)

    def _hold(self, data: bytes, needed: int) -> None:
        self._held += data
        self._needed = needed

    def _begin_data(self, data: bytes, at: int, length: int) -> tuple[int, list[Frame]]:
        """Note what is to come of a DATA frame; return where its data begins, and its padding."""
        _, _, _, self._end, stream = _unpack(data, at)
        self._stream = stream & MAX_STREAM
        begin = at + HEADER_SIZE
        self._left = length
        if not self._end & PADDED:
            return begin, []
        if not length:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A padded DATA frame has no length of its padding.")
        self._skipped = data[begin]
        self._left -= 1 + self._skipped
        if self._left < 0:
            raise _overpadded()
        return begin + 1, [(PADDING, 1 + self._skipped, self._stream, b"")]

    def _go_on(self, data: bytes, at: int) -> tuple[int, list[Frame]]:
        """Take what belongs to the frame that has begun; return where it ends, and the part of its data."""
        end = min(at + self._left, len(data))
        self._left -= end - at
        behind = min(end + self._skipped, len(data)) if not self._left else end
        self._skipped -= behind - end
        if self._end < 0:
            return behind, []
        is_whole = not self._left and not self._skipped
        flags = self._end if is_whole else 0
        if is_whole:
            self._end = -1
        if end == at and not is_whole:
            return behind, []
        part = memoryview(data)[at:end] if end - at >= VIEW_FROM else data[at:end]
        return behind, [(DATA, flags, self._stream, part)]


@lru_cache(maxsize=16)
def _limits(max_size: int, max_held: int) -> tuple[int, ...]:
    """Return the largest payload for each kind of frame."""
    held = min(max_size, max_held)
    return tuple(held if DATA < kind < UNKNOWN else max_size for kind in range(_ALL_KINDS))


def _too_large(kind: int, length: int, max_size: int) -> ConnectionFaultError:
    code = ErrorCode.FRAME_SIZE_ERROR if length > max_size else ErrorCode.ENHANCE_YOUR_CALM
    return ConnectionFaultError(code, f"A frame of kind {kind} has {length} bytes, which is too many.")


def _overpadded() -> ConnectionFaultError:
    return ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "A frame has more padding than payload.")


def unpadded(flags: int, payload: Buffer) -> Buffer:
    """Return the field block of a HEADERS frame without padding and priority (section 6.2)."""
    begin, end = 0, len(payload)
    if flags & PADDED:
        if not end:
            raise ConnectionFaultError(
                ErrorCode.FRAME_SIZE_ERROR, "A padded HEADERS frame has no length of its padding."
            )
        begin, end = 1, end - payload[0]
    if flags & PRIORITISED:
        begin += 5
        if begin > len(payload):
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "A HEADERS frame is too short for its priority.")
    if begin > end:
        raise _overpadded()
    return payload[begin:end]


def read_word(payload: Buffer) -> int:
    """Return the first 32 bits."""
    return int(_WORD.unpack_from(payload)[0])


def read_settings(payload: Buffer) -> list[tuple[int, int]]:
    """Return the settings in a payload, whose size is a multiple of 6."""
    return list(_SETTING.iter_unpack(payload))


def frame(kind: int, flags: int, stream: int, *, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def data_header(length: int, flags: int, stream: int) -> bytes:
    """Return the header of a DATA frame whose payload has `length` bytes."""
    return _HEADER.pack(length >> 8, length & 0xFF, DATA, flags, stream)


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, payload=b"".join(_SETTING.pack(*setting) for setting in settings))


def rst_frame(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, payload=_WORD.pack(code))


def window_frame(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, payload=_WORD.pack(increment))


def goaway_frame(last: int, code: int, reason: bytes = b"") -> bytes:
    """Return a GOAWAY frame: `last` is the highest stream that is answered."""
    return frame(GOAWAY, 0, 0, payload=_TWO_WORDS.pack(last, code) + reason)
