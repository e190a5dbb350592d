"""The answers of one connection on their way out: bodies that wait for a window, their turns, and the frames.

Frames that are small are joined to one buffer. A large part of a body is never copied: the frames around it are buffers
of their own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from geartrain.transport.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SMALLEST_MAX_FRAME,
    VIEW_FROM,
    ConnectionFaultError,
    data_header,
    frame,
    rst_frame,
)
from geartrain.transport.http2.headers import encode, encode_once, framed, head_frame
from geartrain.transport.http2.interface import Buffer, ErrorCode, Fields
from geartrain.transport.http2.streams import (
    Answer,
    FloodGuard,
    SendWindows,
    Step,
    Stream,
    Streams,
    StreamState,
    grown,
    shifted,
)

_LARGEST_FRAME: Final = 128 * 1024  # of one stream, before it is the turn of the next
_MAX_REPLIES: Final = 4096  # control frames that answer the client and have not been taken
_MAX_READY: Final = 64 * 1024  # pieces of frames that have not been taken when more comes from the client
_NO_TABLE: Final = b"\x20"  # the dynamic table has no bytes (RFC 7541, section 6.3)
_DIRECT: Final = 64 * 1024  # bytes of small bodies that go out without a turn
_FRAME: Final = 64  # bytes for which each of them counts besides
_WORTH: Final = 1024  # bytes of a frame that count as work, if it does not complete what is held
_LAST_INFORMATIONAL: Final = 199
_BODY: Final = Answer.BODY
_OPEN: Final = StreamState.OPEN


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


class Output:
    """The frames of a connection that can be written, in their order.

    Attributes:
        ready: frames, or pieces of them; the taker empties the list.
        replies: frames among them that the client has asked for.
    """

    __slots__ = ("_resizes_table", "ready", "replies")

    def __init__(self) -> None:
        self.ready: list[Buffer] = []
        self.replies = 0
        self._resizes_table = False  # true if the next block has to announce an empty dynamic table

    def write(self, written: bytes) -> None:
        """Append a frame that no window holds back."""
        self.ready.append(written)

    def reply(self, written: bytes) -> None:
        """Append a frame that the client has asked for; raise `ConnectionFaultError` if it asks and does not read."""
        self.ready.append(written)
        self.replies += 1
        if self.replies > _MAX_REPLIES:
            text = "The client asks for more control frames than it reads."
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text)

    def check(self) -> None:
        """Raise `ConnectionFaultError` if the client sends and sends, and does not read."""
        if len(self.ready) > _MAX_READY:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "The client does not read its answers.")

    def drop_table(self) -> None:
        """Tell the client with the next field block that its dynamic table is not used (RFC 7541, section 4.2)."""
        self._resizes_table = True

    def write_fields(
        self, stream: Stream, status: int, fields: Fields, *, own: Fields = (), is_last: bool = False
    ) -> None:
        """Append a head or, where `status` is 0, trailers; `own`: as of `AnswerSender.head`."""
        if self._resizes_table:
            self._resizes_table = False
            prefix, block = framed(_NO_TABLE + encode(status, (*fields, *own)), is_last=is_last)
        elif own:
            known = head_frame(status, fields if type(fields) is tuple else tuple(fields), is_last)[1]
            prefix, block = framed(known + encode_once(own), is_last=is_last)
        else:
            prefix, block = head_frame(status, fields if type(fields) is tuple else tuple(fields), is_last)
        if len(block) <= SMALLEST_MAX_FRAME:
            self.ready += (prefix, stream.tag, block)
            return
        flags = END_STREAM if is_last else 0
        pieces = [block[at : at + SMALLEST_MAX_FRAME] for at in range(0, len(block), SMALLEST_MAX_FRAME)]
        self.ready.append(frame(HEADERS, flags, stream.id, payload=pieces[0]))
        self.ready += [frame(CONTINUATION, 0, stream.id, payload=piece) for piece in pieces[1:-1]]
        self.ready.append(frame(CONTINUATION, END_HEADERS, stream.id, payload=pieces[-1]))


class AnswerSender:
    """The answers on one connection. The methods raise nothing and do nothing for a stream that is over."""

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
        """Begin an answer; `is_last`: it has neither a body nor trailers. Below status 200 another head follows.

        `own`: further fields, which no other answer has: their encoding is not remembered.
        """
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
        """Append to the body of an answer. It is held until the client's windows let it go."""
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
        """Complete an answer behind its body."""
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
        """End a stream at once, and drop what is held for it."""
        found = self._streams.get(stream)
        if found is not None:
            self._streams.step(found, Step.SEND_RESET)
            self._queue.drop(found)
            self._ready.append(rst_frame(stream, code))

    @property
    def held(self) -> int:
        """Bytes of answers that are held, of all streams."""
        return self._queue.held

    def unsent(self, stream: int) -> int:
        """Return the bytes of an answer that are held."""
        found = self._streams.get(stream)
        return 0 if found is None else found.held

    def stalled(self) -> Sequence[tuple[int, int]]:
        """Return the streams whose bodies are held, each with the count of bytes that have been sent of it so far."""
        return [(stream.id, stream.sent) for stream in self._streams if stream.held]

    def take_output(self, size: int) -> list[Buffer]:
        """Return the next bytes to write, about `size` bytes of bodies at most, fairly of all streams.

        Empty if there is nothing that may be sent now.
        """
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
