"""Sequences of HTTP/2 frames, most of them good, and what two servers make of them: geartrain's codec, and h2.

Both are given the same frames, one after the other, and answer the same requests at the same time. What each makes of a
frame is a `Step`. Where two steps differ without a reason that stands in the table, one of both is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import hpack
import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from geartrain.transport.http2 import interface as ours
from geartrain.transport.http2.connection import ServerConnection
from geartrain.transport.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

_LIMITS: Final = ours.Http2Limits(
    max_streams=100,
    stream_window=65_535,
    connection_window=65_535,
    max_frame_size=16_384,
    max_head_size=65_536,
    max_fields=1000,
)
_HEADER_SIZE: Final = 9
_LARGE: Final = 1 << 20
ALIVE: Final = -1


class Piece(msgspec.Struct, frozen=True):
    """What is sent at once, and whether the requests that are complete, or all of them, are answered behind it."""

    data: bytes
    answers: bool = False
    answers_early: bool = False


class Step(msgspec.Struct):
    """What a server makes of a piece.

    Attributes:
        heads: stream, method, path and the other fields of each request.
        bodies: bytes of bodies by stream.
        ended: streams whose requests are complete.
        aborted: streams that the client has reset.
        resets: streams that the server has reset, with their codes.
        pings: that it has answered.
        settings: how many frames of them it has acknowledged.
        end: the code with which it ends the connection, or -1.
    """

    heads: list[tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]] = []
    bodies: dict[int, bytes] = {}
    ended: list[int] = []
    aborted: list[int] = []
    resets: list[tuple[int, int]] = []
    pings: list[bytes] = []
    settings: int = 0
    end: int = ALIVE


Frame = tuple[int, int, int, bytes]


def frames_of(data: bytes) -> tuple[list[Frame], bytes]:
    """Return the frames in some bytes, and what is left."""
    found: list[Frame] = []
    while len(data) >= _HEADER_SIZE:
        end = _HEADER_SIZE + int.from_bytes(data[:3], "big")
        if len(data) < end:
            break
        stream = int.from_bytes(data[5:9], "big") & 0x7FFFFFFF
        found.append((data[3], data[4], stream, data[_HEADER_SIZE:end]))
        data = data[end:]
    return found, data


def _read_output(step: Step, data: bytes) -> None:
    for kind, flags, stream, payload in frames_of(data)[0]:
        if kind == RST_STREAM:
            step.resets.append((stream, int.from_bytes(payload, "big")))
        elif kind == PING and flags & ACK:
            step.pings.append(payload)
        elif kind == SETTINGS and flags & ACK:
            step.settings += 1
        elif kind == GOAWAY:
            step.end = int.from_bytes(payload[4:8], "big")


# making them

_METHODS: Final = [b"GET", b"POST", b"POST", b"PUT"]
_FIELDS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"user-agent", b"fuzz"), (b"a", b""),
    (b"a", b"b" * 90), (b"cookie", b"a=b"), (b"cookie", b"c=d"), (b"accept", b"*/*"), (b"grpc-timeout", b"1S"),
    (b"x-y_z", b"\xff"),
)  # fmt: skip
_BAD_FIELDS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"Upper", b"x"), (b"te", b"gzip"), (b"connection", b"close"), (b"transfer-encoding", b"chunked"),
    (b":status", b"200"), (b"", b"x"), (b"a b", b"x"), (b"a", b" x"), (b"a", b"x\n"), (b"a", b"\0"), (b":path", b"/"),
    (b"host", b"other"),
    (b"content-length", b"x"), (b"content-length", b"1"), (b"upgrade", b"x"), (b"keep-alive", b"1"), (b"a", b"\x01"),
    (b":x", b"y"), (b"x:", b"y"), (b"content-length", b"0"), (b"\x80", b"y"),
)  # fmt: skip


class Maker:
    """Makes one sequence: knows which streams are open, and what the client's table is."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.encoder = hpack.Encoder()
        self.next = 1
        self.open: list[int] = []
        self.used: list[int] = []

    def sequence(self) -> list[Piece]:
        """Return some pieces; each is a frame, as it should be or not."""
        chance = self.chance
        settings = frame(SETTINGS, 0, 0, payload=b"".join(self._setting() for _ in range(chance.randrange(3))))
        pieces = [Piece(ours.PREFACE + settings)]
        fault = chance.choice([0.0, 0.0, 0.05, 0.2])
        for _ in range(chance.randint(1, 20)):
            made = self._wrong() if chance.random() < fault else self._good()
            if chance.random() < fault / 4:
                made = self._mutated(made)
            answers = chance.random()
            pieces.append(Piece(made, answers=answers < 0.3, answers_early=answers < 0.05))  # noqa: PLR2004
        return pieces

    def _setting(self) -> bytes:
        name, value = self.chance.choice(
            [(1, 4096), (1, 0), (2, 0), (3, 100), (4, 65_535), (4, 1), (4, 2**31 - 1), (5, 16_384), (6, 9), (0xAB, 7)]
        )
        return name.to_bytes(2, "big") + value.to_bytes(4, "big")

    def _stream(self) -> int:
        return self.chance.choice(self.open) if self.open else self.next

    def _any_stream(self) -> int:
        return self.chance.choice([0, 1, 2, 3, self.next, self.next + 2, self._stream(), *self.used[-3:]])

    def _good(self) -> bytes:
        chance = self.chance
        kinds: list[Callable[[], bytes]] = [self._request, self._request, self._request, self._control]
        if self.open:
            kinds += [self._data] * 4 + [self._trailers, self._reset]
        return chance.choice(kinds)()

    def _control(self) -> bytes:
        chance = self.chance
        makers: list[Callable[[], bytes]] = [
            lambda: frame(PING, 0, 0, payload=chance.randbytes(8)),
            lambda: frame(SETTINGS, 0, 0, payload=self._setting()),
            lambda: frame(SETTINGS, ACK, 0),
            lambda: frame(WINDOW_UPDATE, 0, 0, payload=chance.randint(1, 99).to_bytes(4, "big")),
            lambda: frame(WINDOW_UPDATE, 0, self._stream(), payload=b"\0\0\0\x09") if self.open else b"",
            lambda: frame(PRIORITY, 0, self.next + 2, payload=b"\0\0\0\0\x09"),
            lambda: frame(0x20 + chance.randrange(9), chance.randrange(256), self._any_stream(), payload=b"x" * 9),
        ]
        return chance.choice(makers)()

    def _head(self, bad: int = 0) -> bytes:
        chance = self.chance
        fields = [
            (b":method", chance.choice(_METHODS)),
            (b":scheme", b"http"),
            (b":path", chance.choice([b"/", b"/a?b", b"/predictions"])),
            (b":authority", b"localhost"),
        ]
        fields += chance.sample(_FIELDS, chance.randrange(4))
        for _ in range(bad):
            kind = chance.randrange(4)
            if kind == 0:
                del fields[chance.randrange(len(fields))]
            elif kind == 1:
                fields.insert(chance.randrange(len(fields) + 1), chance.choice(_BAD_FIELDS))
            elif kind == 2:  # noqa: PLR2004
                fields.append(chance.choice(fields or [(b"a", b"b")]))
            else:
                chance.shuffle(fields)
        return self._encoded(fields)

    def _encoded(self, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
        chance = self.chance
        given = [(name, value, chance.random() < 0.3) for name, value in fields]  # noqa: PLR2004
        return self.encoder.encode(given, huffman=chance.random() < 0.5)  # noqa: PLR2004

    def _request(self, bad: int = 0) -> bytes:
        chance = self.chance
        stream = self.next
        self.next += chance.choice([2, 2, 2, 2, 4])
        self.used.append(stream)
        end = chance.random() < 0.4  # noqa: PLR2004
        if not end:
            self.open.append(stream)
        return self._fields(stream, self._head(bad), END_STREAM if end else 0)

    def _fields(self, stream: int, block: bytes, flags: int) -> bytes:
        chance = self.chance
        first, rest = block, []
        if chance.random() < 0.15:  # noqa: PLR2004
            at = chance.randint(0, len(block))
            first, rest = block[:at], [block[at:]]
        kind = chance.random()
        if kind < 0.1:  # noqa: PLR2004
            flags |= PRIORITISED
            first = b"\0\0\0\0\x10" + first
        if 0.05 < kind < 0.15:  # noqa: PLR2004
            flags |= PADDED
            first = b"\x03" + first + bytes(3)
        flags |= 0 if rest else END_HEADERS
        return frame(HEADERS, flags, stream, payload=first) + b"".join(
            frame(CONTINUATION, END_HEADERS, stream, payload=piece) for piece in rest
        )

    def _data(self) -> bytes:
        chance = self.chance
        stream = self._stream()
        flags = 0
        if chance.random() < 0.4:  # noqa: PLR2004
            flags |= END_STREAM
            self.open.remove(stream)
        size = chance.choice([0, 1, 10, 100, 3000, 16_000])
        payload = chance.randbytes(1) * size
        if chance.random() < 0.1:  # noqa: PLR2004
            flags |= PADDED
            padding = chance.randrange(200)
            payload = bytes((padding,)) + payload + bytes(padding)
        return frame(DATA, flags, stream, payload=payload)

    def _trailers(self) -> bytes:
        stream = self._stream()
        self.open.remove(stream)
        return self._fields(stream, self._encoded([(b"a-trailer", b"x")]), END_STREAM)

    def _reset(self) -> bytes:
        stream = self._stream()
        self.open.remove(stream)
        return frame(RST_STREAM, 0, stream, payload=self.chance.randrange(14).to_bytes(4, "big"))

    def _wrong(self) -> bytes:
        """Return a frame that is not, or need not be, as it should be."""
        chance = self.chance
        stream = self._any_stream()
        kind = chance.randrange(12)
        if kind < 4:  # noqa: PLR2004
            return self._request(bad=chance.randint(1, 2))
        if kind == 4:  # noqa: PLR2004
            return self._fields(stream, self._head(), chance.choice([0, END_STREAM]))
        if kind == 5:  # noqa: PLR2004
            return frame(DATA, chance.choice([0, END_STREAM]), stream, payload=b"x" * chance.choice([0, 9, 16_384]))
        if kind == 6:  # noqa: PLR2004
            made = self._request()
            return made[:-1] + bytes([chance.randrange(256)])
        number = chance.choice([0, 1, 65_536, 2**31 - 1, 2**31]).to_bytes(4, "big")
        payload = chance.choice([number, number, b"", bytes(5), bytes(8), number + number[:2], b"\0\4" + number])
        flags = chance.choice([0, 1, 4, 5, 8, 32, 255])
        kinds = [DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION]
        return frame(chance.choice(kinds), flags, stream, payload=payload)

    def _mutated(self, data: bytes) -> bytes:
        chance = self.chance
        changed = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(changed) + 1)
            kind = chance.randrange(4)
            if kind == 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            elif kind == 1:
                changed[at : at + chance.randint(1, 4)] = b""
            elif kind == 2:  # noqa: PLR2004
                changed[at:at] = chance.randbytes(chance.randint(1, 3))
            else:
                changed += bytes(changed)
        return bytes(changed)


def make_sequence(chance: random.Random) -> list[Piece]:
    """Return a sequence; the same for the same chance."""
    return Maker(chance).sequence()


# what geartrain says


def run_ours(pieces: Sequence[Piece]) -> Iterator[Step]:
    """Yield what the codec makes of each piece, until it ends the connection."""
    codec = ServerConnection(_LIMITS)
    codec.sender.take_output(_LARGE)
    waiting: dict[int, bool] = {}
    for now, piece in enumerate(pieces):
        step = Step()
        for event in codec.receive(piece.data, float(now)):
            _note(event, step, waiting)
        _read_output(step, b"".join(codec.sender.take_output(_LARGE)))
        yield step
        if step.end != ALIVE:
            return
        for stream in _to_answer(piece, waiting):
            codec.sender.head(stream, 200, (), is_last=True)
        codec.sender.take_output(_LARGE)


def _note(event: ours.Event, step: Step, waiting: dict[int, bool]) -> None:
    if isinstance(event, ours.RequestReceived):
        head = event.head
        step.heads.append((event.stream, head.method.encode(), head.path, sorted(head.fields)))
        waiting[event.stream] = event.is_whole
        if event.is_whole:
            step.ended.append(event.stream)
    elif isinstance(event, ours.BodyReceived):
        step.bodies[event.stream] = step.bodies.get(event.stream, b"") + bytes(event.data)
        if event.is_last:
            step.ended.append(event.stream)
            if event.stream in waiting:
                waiting[event.stream] = True
    elif isinstance(event, ours.StreamAborted):
        waiting.pop(event.stream, None)
        step.aborted.append(event.stream)
    elif isinstance(event, ours.ConnectionEnded):
        assert event.reason


def _to_answer(piece: Piece, waiting: dict[int, bool]) -> list[int]:
    """Take the streams that are answered now."""
    found = [stream for stream, is_whole in waiting.items() if piece.answers_early or (piece.answers and is_whole)]
    for stream in found:
        del waiting[stream]
    return found


# what h2 says


def run_h2(pieces: Sequence[Piece]) -> Iterator[Step]:
    """Yield what h2 makes of each piece, until it ends the connection."""
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    connection.data_to_send()
    waiting: dict[int, bool] = {}
    for piece in pieces:
        step = Step()
        try:
            events: list[Any] = connection.receive_data(piece.data)
        except ProtocolError as error:
            step.end = int(error.error_code)
            yield step
            return
        for event in events:
            _note_h2(event, step, waiting)
        _read_output(step, connection.data_to_send())
        yield step
        for stream in _to_answer(piece, waiting):
            _answer_h2(connection, stream)
        connection.data_to_send()


def _note_h2(event: object, step: Step, waiting: dict[int, bool]) -> None:
    if isinstance(event, RequestReceived):
        fields = [(bytes(name), bytes(value)) for name, value in event.headers]
        pseudo = {name: value for name, value in fields if name[:1] == b":"}
        host = [(b"host", pseudo[b":authority"])] if b":authority" in pseudo else []
        rest = sorted([*host, *(each for each in fields if each[0][:1] != b":" and not (host and each[0] == b"host"))])
        step.heads.append((event.stream_id, pseudo[b":method"], pseudo[b":path"], rest))
        waiting[event.stream_id] = False
    elif isinstance(event, DataReceived):
        step.bodies[event.stream_id] = step.bodies.get(event.stream_id, b"") + event.data
    elif isinstance(event, StreamEnded):
        step.ended.append(event.stream_id)
        if event.stream_id in waiting:
            waiting[event.stream_id] = True
    elif isinstance(event, StreamReset):
        waiting.pop(event.stream_id, None)
        step.aborted.append(event.stream_id)


def _answer_h2(connection: H2Connection, stream: int) -> None:
    try:
        connection.send_headers(stream, [(":status", "200")], end_stream=True)
        if not connection.streams[stream].closed:
            connection.reset_stream(stream, ErrorCodes.NO_ERROR)
    except (ProtocolError, KeyError):
        pass  # it is over already
