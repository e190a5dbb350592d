"""The bodies that wait for a window, and whose turn it is to be sent."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from geartrain.transport.http2.frames import VIEW_FROM
from geartrain.transport.http2.interface import Buffer
from geartrain.transport.http2.streams import Stream
from geartrain.transport.http2.windows import SendWindows, grown, shifted

_LARGEST_FRAME: Final = 128 * 1024  # of one stream, before it is the turn of the next


class SendQueue:
    """The streams that have something to send, in the order of their turns; those without a window stand aside."""

    __slots__ = ("_waiting", "held", "windows")

    def __init__(self) -> None:
        self.windows = SendWindows()
        self.held = 0  # bytes of all streams
        self._waiting: OrderedDict[int, Stream] = OrderedDict()

    @property
    def largest_frame(self) -> int:
        """Bytes of a body in one frame, at most."""
        return min(self.windows.max_frame_size, _LARGEST_FRAME)

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, stream: Stream, parts: Sequence[Buffer], size: int) -> None:
        """Append to what a stream holds; `size`: bytes of the parts."""
        if not stream.held:
            stream.parts = deque()
        for part in parts:
            view = memoryview(part)
            if view.nbytes >= VIEW_FROM:
                stream.parts.append(view.cast("B"))
            elif view.nbytes:
                stream.parts.append(bytes(view))
        stream.held += size
        self.held += size
        self._add(stream)

    def grow(self, stream: Stream, increment: int) -> None:
        """Take an increment of a stream's window; raise `StreamFaultError`."""
        stream.window = grown(stream.window, increment)
        self._add(stream)

    def change_initial(self, size: int, streams: Iterable[Stream]) -> None:
        """Take the size with which windows begin, and shift those that are open; raise `ConnectionFaultError`."""
        change = size - self.windows.initial
        self.windows.initial = size
        for stream in streams:
            stream.window = shifted(stream.window, change)
            if stream.window <= 0:
                self._waiting.pop(stream.id, None)
            self._add(stream)

    def drop(self, stream: Stream) -> None:
        """Forget what a stream holds."""
        self._waiting.pop(stream.id, None)
        stream.parts = deque()
        self.held -= stream.held
        stream.held = 0

    def next(self, most: int) -> tuple[Stream, list[Buffer], int] | None:
        """Return a stream, what it sends in its turn, and the bytes of that; None if nothing may be sent.

        A turn is a frame. A stream that has the connection for itself sends up to `most` bytes, in several frames.
        """
        windows = self.windows
        if not self._waiting or windows.connection <= 0:
            return None
        number, stream = next(iter(self._waiting.items()))
        turn = most if len(self._waiting) == 1 else self.largest_frame
        size = min(stream.held, stream.window, windows.connection, turn)
        pieces = _take(stream.parts, size)
        stream.held -= size
        self.held -= size
        stream.window -= size
        stream.sent += size
        windows.connection -= size
        if stream.held and stream.window > 0:
            self._waiting.move_to_end(number)
        else:
            del self._waiting[number]
        return stream, pieces, size

    def _add(self, stream: Stream) -> None:
        if stream.held and stream.window > 0:
            self._waiting.setdefault(stream.id, stream)


def _take(parts: deque[Buffer], size: int) -> list[Buffer]:
    """Take so many bytes from the left, in pieces."""
    pieces: list[Buffer] = []
    while size:
        part = parts[0]
        if len(part) <= size:
            parts.popleft()
        else:
            part, parts[0] = part[:size], part[size:]
        pieces.append(part)
        size -= len(part)
    return pieces
