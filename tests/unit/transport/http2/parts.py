"""A client of bytes: what it sends to a codec, and what it reads of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hpack
import msgspec

from geartrain.transport.http2.connection import ServerConnection
from geartrain.transport.http2.interface import BodyReceived, Event, Http2Limits, RequestReceived
from tests.support.http2_rows import CONTINUATION, HEADERS, OPENING

SIZE = 1 << 20


class Seen(msgspec.Struct, frozen=True):
    """A frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frames_of(data: bytes) -> Iterator[Seen]:
    """Yield the frames in some bytes, which end with one."""
    while data:
        size = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + size, "a frame is not complete"
        yield Seen(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size])
        data = data[9 + size :]


class Client:
    """Drives a codec with bytes. `now` is the time of the next `send`."""

    def __init__(self, limits: Http2Limits | None = None, opening: bytes = OPENING) -> None:
        self.codec = ServerConnection(limits)
        self.sender = self.codec.sender
        self.now = 0.0
        self.events: list[Event] = []
        self.decoder = hpack.Decoder()
        self.greeting = self.take()
        if opening:
            self.send(opening)
            self.acknowledged = self.take()

    def send(self, *pieces: bytes) -> list[Event]:
        """Send, and return what happens."""
        found: list[Event] = []
        for piece in pieces:
            found += self.codec.receive(piece, self.now)
        self.events += found
        return found

    def take(self, size: int = SIZE) -> list[Seen]:
        """Return the frames that the codec sends now."""
        return list(frames_of(b"".join(self.sender.take_output(size))))

    def take_all(self) -> list[Seen]:
        """Return the frames until there are none."""
        found = []
        while seen := self.take():
            found += seen
        return found

    def fields(self, seen: Sequence[Seen], stream: int) -> list[list[tuple[bytes, bytes]]]:
        """Return the field sections of a stream; all blocks have to be read in their order."""
        sections, block, owner = [], b"", 0
        for each in seen:
            if each.kind in {HEADERS, CONTINUATION}:
                owner = each.stream
                block += each.payload
                if each.flags & 4:
                    fields = [(bytes(name), bytes(value)) for name, value in self.decoder.decode(block, raw=True)]
                    if owner == stream:
                        sections.append(fields)
                    block = b""
        return sections

    def answer_all(self, events: Sequence[Event]) -> None:
        """Answer each request that is complete."""
        for event in events:
            if isinstance(event, BodyReceived):
                self.codec.acknowledge(event.stream, event.credit)
            if (isinstance(event, RequestReceived) and event.is_whole) or (
                isinstance(event, BodyReceived) and event.is_last
            ):
                self.sender.head(event.stream, 200, ((b"content-type", b"text/plain"),))
                self.sender.body(event.stream, [b"fine"], is_last=True)
