"""The answers of one connection on their way out: what may go at once, what waits for a window, and in which order.

Frames that are small are joined to one buffer. A large part of a body is never copied: the frames around it are buffers
of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from geartrain.transport.http2.floods import FloodGuard
from geartrain.transport.http2.frames import END_STREAM, SMALLEST_MAX_FRAME, VIEW_FROM, data_header, rst_frame
from geartrain.transport.http2.interface import Buffer, ErrorCode, Fields
from geartrain.transport.http2.output import Output
from geartrain.transport.http2.send_queue import SendQueue
from geartrain.transport.http2.streams import Answer, Step, Stream, Streams, StreamState

_DIRECT: Final = 64 * 1024  # bytes of small bodies that go out without a turn
_FRAME: Final = 64  # bytes for which each of them counts besides
_WORTH: Final = 1024  # bytes of a frame that count as work, if it does not complete what is held
_LAST_INFORMATIONAL: Final = 199
_BODY: Final = Answer.BODY
_OPEN: Final = StreamState.OPEN


class AnswerSender:
    """The `Sender` of a connection."""

    __slots__ = ("_direct", "_floods", "_output", "_queue", "_ready", "_streams", "_windows")

    def __init__(self, streams: Streams, *, queue: SendQueue, output: Output, floods: FloodGuard) -> None:
        self._streams = streams
        self._queue = queue
        self._windows = queue.windows
        self._output = output
        self._ready = output.ready
        self._floods = floods
        self._direct = 0  # bytes of bodies in the output, and of their frames

    def head(self, stream: int, status: int, fields: Fields, *, own: Fields = (), is_last: bool = False) -> None:
        """See `Sender`. A status below 200 begins no answer: another head follows."""
        found = self._streams.get(stream)
        if found is None:
            return
        if found.answer:
            self._misused(found)
            return
        self._output.write_fields(found, status, fields, own=own, is_last=is_last)
        if is_last:
            self._finish(found)
        elif status > _LAST_INFORMATIONAL:
            found.answer = _BODY

    def body(self, stream: int, parts: Sequence[Buffer], *, is_last: bool = False) -> None:
        """See `Sender`."""
        found = self._streams.get(stream)
        if found is None:
            return
        if found.answer is not _BODY:
            self._misused(found)
            return
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else memoryview(part).nbytes
        if found.held or (size and not self._is_free(found, size)):
            self._queue.hold(found, parts, size)
            if is_last:
                found.answer = Answer.LAST
            return
        if size:
            self._direct += size + _FRAME
            self._windows.connection -= size
            found.window -= size
            found.sent += size
            self._floods.work += 1
        if size or is_last:
            self._ready.append(data_header(size, END_STREAM if is_last else 0, stream))
            self._ready += parts
        if is_last:
            self._finish(found)

    def trailers(self, stream: int, fields: Fields) -> None:
        """See `Sender`."""
        found = self._streams.get(stream)
        if found is None:
            return
        if found.answer is not _BODY:
            self._misused(found)
        elif found.held:
            found.answer = Answer.TRAILERS
            found.trailers = fields
        else:
            self._output.write_fields(found, 0, fields, is_last=True)
            self._finish(found)

    def reset(self, stream: int, code: ErrorCode) -> None:
        """See `Sender`."""
        found = self._streams.get(stream)
        if found is not None:
            self._streams.step(found, Step.SEND_RESET)
            self._queue.drop(found)
            self._ready.append(rst_frame(stream, code))

    @property
    def held(self) -> int:
        """See `Sender`."""
        return self._queue.held

    def unsent(self, stream: int) -> int:
        """See `Sender`."""
        found = self._streams.get(stream)
        return 0 if found is None else found.held

    def stalled(self) -> Sequence[tuple[int, int]]:
        """See `Sender`."""
        return [(stream.id, stream.sent) for stream in self._streams if stream.held]

    def take_output(self, size: int) -> list[Buffer]:
        """See `Sender`."""
        taken = self._take_held(size) if self._queue else []
        if self._ready:
            taken.append(b"".join(self._ready))
            self._ready.clear()
        self._direct = self._output.replies = 0
        return taken

    # details

    def _is_free(self, stream: Stream, size: int) -> bool:
        """True if a part of a body can go out without a turn."""
        return (
            size <= SMALLEST_MAX_FRAME
            and size <= stream.window
            and size <= self._windows.connection
            and self._direct + size <= _DIRECT
            and not self._queue
        )

    def _take_held(self, size: int) -> list[Buffer]:
        """Write about so many bytes of the bodies that are held; return the buffers that are complete."""
        taken: list[Buffer] = []
        while size > 0 and (turn := self._queue.next(size)) is not None:
            stream, pieces, count = turn
            size -= count
            is_last = stream.answer is Answer.LAST and not stream.held
            self._write_frames(stream.id, pieces, count, taken=taken, is_last=is_last)
            if count >= _WORTH or not stream.held:
                self._floods.work += 1 + count // self._queue.largest_frame
            if is_last:
                self._finish(stream)
            elif stream.answer is Answer.TRAILERS and not stream.held:
                self._output.write_fields(stream, 0, stream.trailers, is_last=True)
                self._finish(stream)
        return taken

    def _write_frames(
        self, number: int, pieces: list[Buffer], count: int, *, taken: list[Buffer], is_last: bool
    ) -> None:
        """Write pieces of a body, of `count` bytes, in frames; append the buffers that are complete to `taken`."""
        ready = self._ready
        largest = self._queue.largest_frame
        header = data_header(largest, 0, number)
        left = 0  # bytes of the frame that has been begun
        for piece in pieces:
            at, size = 0, len(piece)
            while at < size:
                if not left:
                    left = min(count, largest)
                    count -= left
                    ends = is_last and not count
                    ready.append(header if left == largest and not ends else data_header(left, int(ends), number))
                end = min(at + left, size)
                part = piece if end - at == size else piece[at:end]
                left -= end - at
                at = end
                if len(part) < VIEW_FROM:
                    ready.append(part)
                else:
                    taken += (b"".join(ready), part) if ready else (part,)
                    ready.clear()

    def _finish(self, stream: Stream) -> None:
        """Note that an answer has been written whole; what still comes of its request is not wanted (section 8.1)."""
        self._floods.work += 1
        if stream.state is _OPEN:
            self._ready.append(rst_frame(stream.id, ErrorCode.NO_ERROR))
        self._streams.step(stream, Step.SEND_END)

    def _misused(self, stream: Stream) -> None:
        """The driver has no such step. An answer that would stay incomplete ends; one that is complete goes on."""
        if stream.answer <= _BODY:
            self.reset(stream.id, ErrorCode.INTERNAL_ERROR)
