"""What a server of HTTP/2 has to do with the frames of a client: rows for the MUSTs of RFC 9113, sections 3 to 6 and 8.

The bytes are made here, apart from the code that they test. A row can be driven against the codec, or over a socket:
send `opening`, then `before` if there is one and wait until the answer to stream 1 is complete, then `sent` at once.
`reaction` is what has to come then, and no stream is reset by an error but the one of `Reset` and those of `resets`.
After any reaction but `Goaway` the connection is alive: it answers a ping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import hpack
import msgspec

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x2, 0x3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM = 0x5, 0x6, 0x7
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x9, 0xB

ANY_STATUS: Final = 0


class Goaway(msgspec.Struct, frozen=True):
    """The connection ends with a GOAWAY of this code."""

    code: int


class Reset(msgspec.Struct, frozen=True):
    """The stream is reset with this code."""

    stream: int
    code: int


class Answered(msgspec.Struct, frozen=True):
    """The stream is answered, with this status or, if it is `ANY_STATUS`, with any."""

    stream: int
    status: int = ANY_STATUS


class SettingsAcknowledged(msgspec.Struct, frozen=True):
    """A SETTINGS frame with ACK comes: one for the opening, and one more for each frame of SETTINGS sent."""

    count: int


class PingAcknowledged(msgspec.Struct, frozen=True):
    """A PING with ACK comes, with the same payload."""

    payload: bytes


Reaction = Goaway | Reset | Answered | SettingsAcknowledged | PingAcknowledged


class Row(msgspec.Struct, frozen=True):
    """One rule.

    Attributes:
        section: of RFC 9113, or of RFC 7541 where it says so.
        name: what the client does.
        sent: its frames.
        reaction: of the server.
        before: a request on stream 1 whose answer has come before the frames are sent.
        opening: what the client begins with.
        resets: streams that the server resets on the way to the reaction.
    """

    section: str
    name: str
    sent: bytes
    reaction: Reaction
    before: bytes = b""
    opening: bytes = b""
    resets: Sequence[int] = ()

    def __str__(self) -> str:
        return f"{self.section} {self.name}"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame; `stream` may have the reserved bit."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def word(number: int) -> bytes:
    """Return 32 bits."""
    return number.to_bytes(4, "big")


def settings(*given: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(name.to_bytes(2, "big") + word(value) for name, value in given))


Field = tuple[bytes, bytes]


def block(fields: Sequence[Field]) -> bytes:
    """Return a field block that does not touch the dynamic table."""
    return hpack.Encoder().encode([(name, value, True) for name, value in fields])


def head(method: bytes = b"POST", path: bytes = b"/predictions") -> list[Field]:
    """Return the fields of a good request."""
    return [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost")]


def changed(name: bytes, value: bytes | None, method: bytes = b"GET") -> list[Field]:
    """Return the fields of a good request but for one: another value, or none."""
    fields = [(each, value if each == name and value is not None else old) for each, old in head(method)]
    return [field for field in fields if value is not None or field[0] != name]


def request(
    stream: int, fields: Sequence[Field] | None = None, *, more: Sequence[Field] = (), end: bool = True
) -> bytes:
    """Return a HEADERS frame: a GET, unless `fields` say something else."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, block([*(head(b"GET") if fields is None else fields), *more]))


def post(stream: int, *more: Field) -> bytes:
    """Return the head of a request whose body is to come."""
    return request(stream, head(), more=more, end=False)


def in_frames(stream: int, fields: Sequence[Field], size: int = 16_384) -> bytes:
    """Return HEADERS with END_STREAM and its CONTINUATION frames."""
    whole = block(fields)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    kinds = [HEADERS, *[CONTINUATION] * (len(pieces) - 1)]
    flags = [*[0] * (len(pieces) - 1), END_HEADERS]
    flags[0] |= END_STREAM
    return b"".join(frame(*each[:2], stream, each[2]) for each in zip(kinds, flags, pieces, strict=True))


OPENING: Final = PREFACE + settings()
GET_1: Final = request(1)
POST_1: Final = post(1)
PING_A: Final = frame(PING, 0, 0, b"abcdefgh")
PONG_A: Final = PingAcknowledged(b"abcdefgh")
RESET_1: Final = frame(RST_STREAM, 0, 1, word(0x8))
_MALFORMED_OPEN: Final = request(1, [*head(), (b"Upper", b"x")], end=False)  # the server resets it; it is not complete
_HTTP_1: Final = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"

MALFORMED: Final = Reset(1, PROTOCOL_ERROR)


def _row(
    section: str,
    name: str,
    sent: bytes,
    reaction: Reaction,
    before: bytes = b"",
    resets: Sequence[int] = (),
) -> Row:
    return Row(section, name, sent, reaction, before, OPENING, resets)


def _bad(section: str, name: str, fields: Sequence[Field]) -> Row:
    """A request that is malformed."""
    return _row(section, name, request(1, fields), MALFORMED)


def _good(section: str, name: str, fields: Sequence[Field]) -> Row:
    return _row(section, name, request(1, fields), Answered(1))


def _block(name: str, bytes_of_block: bytes) -> Row:
    """A field block that cannot be decoded."""
    sent = frame(HEADERS, END_HEADERS | END_STREAM, 1, bytes_of_block)
    return _row("4.3", name, sent, Goaway(COMPRESSION_ERROR))


_BEGINNING: Final = [
    Row("3.4", "does not begin with the preface", b"", Goaway(PROTOCOL_ERROR), opening=_HTTP_1),
    Row("3.4", "begins with a damaged preface", b"", Goaway(PROTOCOL_ERROR), opening=PREFACE[:-1] + b"x" + settings()),
    Row("3.4", "sends a PING first", b"", Goaway(PROTOCOL_ERROR), opening=PREFACE + PING_A),
    Row("3.4", "sends a request first", b"", Goaway(PROTOCOL_ERROR), opening=PREFACE + GET_1),
    Row("3.4", "sends an unknown frame first", b"", Goaway(PROTOCOL_ERROR), opening=PREFACE + frame(0x16, 0, 0)),
    Row("3.4", "acknowledges settings first", b"", Goaway(PROTOCOL_ERROR), opening=PREFACE + frame(SETTINGS, ACK, 0)),
    Row("3.4", "begins as it should", b"", SettingsAcknowledged(1), opening=OPENING),
    Row("3.4", "sends frames before it has the settings", GET_1, Answered(1), opening=OPENING),
]

_FRAMES: Final = [
    _row("4.1", "sends an unknown frame", frame(0x16, 0xFF, 0, b"xyz") + PING_A, PONG_A),
    _row("4.1", "sends an unknown frame on an idle stream", frame(0xFE, 0, 5, b"xyz") + PING_A, PONG_A),
    _row("4.1", "sets flags that mean nothing", frame(PING, 0xFE, 0, b"abcdefgh"), PONG_A),
    _row("4.1", "sets the reserved bit of a stream", frame(PING, 0, 1 << 31, b"abcdefgh"), PONG_A),
    _row("4.1", "opens a stream with the reserved bit", request(1 + (1 << 31)), Answered(1)),
    _row(
        "4.2",
        "announces a DATA frame that is too large",
        POST_1 + b"\xff\xff\xff\0\0\0\0\0\1",
        Goaway(FRAME_SIZE_ERROR),
    ),
    _row("4.2", "announces a HEADERS frame that is too large", b"\xff\xff\xff\1\4\0\0\0\1", Goaway(FRAME_SIZE_ERROR)),
    _row("4.2", "announces a SETTINGS frame that is too large", b"\xff\xff\xff\4\0\0\0\0\0", Goaway(FRAME_SIZE_ERROR)),
    _row(
        "4.2", "announces an unknown frame that is too large", b"\xff\xff\xff\x16\0\0\0\0\0", Goaway(FRAME_SIZE_ERROR)
    ),
    _row("4.2", "sends as large a frame as any", POST_1 + frame(DATA, END_STREAM, 1, bytes(16_384)), Answered(1)),
    _block("uses index 0", b"\x80"),
    _block("uses an index beyond the table", b"\xff\x80\x01"),
    _block("uses a name by an index beyond the table", b"\x7f\x80\x01\x01a"),
    _block("ends in a name", b"\x00\x0aab"),
    _block("ends in a value", b"\x00\x01a\x0ab"),
    _block("ends in an integer", b"\xff\x80"),
    _block("has an integer that is too large", b"\xff" + b"\xff" * 12 + b"\x01"),
    _block("pads Huffman code with more than 7 bits", b"\x00\x01a\x82\x1f\xff"),
    _block("pads Huffman code with zeros", b"\x00\x01a\x81\x00"),
    _block("has the end of Huffman code in a value", b"\x00\x01a\x84\xff\xff\xff\xff"),
    _block("makes the table larger than it may be", b"\x3f\xe1\xff\x03"),
    _block("changes the table behind a field", b"\x82\x20"),
    _row("4.3", "splits a field block anywhere", in_frames(1, head(b"GET"), 1), Answered(1)),
    _row(
        "4.3",
        "uses the dynamic table of a request that was refused",
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block(head(b"GET")) + b"\x40\x01A\x01b")
        + frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x40\x01x\x01y" + block([(b":method", b"GET")]))
        + frame(HEADERS, END_HEADERS | END_STREAM, 5, block(head(b"GET")) + b"\xbe"),
        Answered(5),
        resets=[1, 3],
    ),
]
_KINDS: Final = "DATA HEADERS PRIORITY RST_STREAM SETTINGS PUSH_PROMISE PING GOAWAY WINDOW_UPDATE"
for _kind, _name in enumerate(_KINDS.split()):
    _sent = frame(HEADERS, END_STREAM, 1, block(head(b"GET"))) + frame(_kind, 0, 1, bytes(4))
    _FRAMES.append(_row("4.3", f"sends {_name} within a field block", _sent, Goaway(PROTOCOL_ERROR)))
_FRAMES.extend(
    [
        _row(
            "5.5",
            "sends an unknown frame within a field block",
            frame(HEADERS, END_STREAM, 1, block(head(b"GET"))) + frame(0x16, 0, 1),
            Goaway(PROTOCOL_ERROR),
        ),
        _row(
            "6.10",
            "goes on with the field block of another stream",
            frame(HEADERS, END_STREAM, 1, block(head(b"GET"))) + frame(CONTINUATION, END_HEADERS, 3),
            Goaway(PROTOCOL_ERROR),
        ),
    ]
)

_PRIORITY: Final = word(0) + b"\x10"

_STATES: Final = [
    _row("5.1", "sends DATA on an idle stream", frame(DATA, END_STREAM, 1, b"x"), Goaway(PROTOCOL_ERROR)),
    _row("5.1", "resets an idle stream", RESET_1, Goaway(PROTOCOL_ERROR)),
    _row("5.1", "gives credit to an idle stream", frame(WINDOW_UPDATE, 0, 1, word(1)), Goaway(PROTOCOL_ERROR)),
    _row("5.1", "sends CONTINUATION on an idle stream", frame(CONTINUATION, END_HEADERS, 1), Goaway(PROTOCOL_ERROR)),
    _row("5.1", "sends PRIORITY on an idle stream", frame(PRIORITY, 0, 1, _PRIORITY) + PING_A, PONG_A),
    _row("5.1", "sends DATA on a stream of the server", frame(DATA, 0, 2, b"x"), Goaway(PROTOCOL_ERROR)),
    # The request is complete.
    _row("5.1", "sends DATA behind the end", GET_1 + frame(DATA, 0, 1, b"x"), Reset(1, STREAM_CLOSED)),
    _row("5.1", "ends a stream twice", GET_1 + frame(DATA, END_STREAM, 1), Reset(1, STREAM_CLOSED)),
    _row("5.1", "sends HEADERS behind the end", GET_1 + GET_1, Reset(1, STREAM_CLOSED)),
    _row(
        "5.1", "sends CONTINUATION behind the end", GET_1 + frame(CONTINUATION, END_HEADERS, 1), Goaway(PROTOCOL_ERROR)
    ),
    _row("5.1", "gives credit behind the end", GET_1 + frame(WINDOW_UPDATE, 0, 1, word(1)), Answered(1)),
    _row("5.1", "sends PRIORITY behind the end", GET_1 + frame(PRIORITY, 0, 1, _PRIORITY), Answered(1)),
    _row("5.1", "resets behind the end", GET_1 + RESET_1 + PING_A, PONG_A),
    # Both ends are complete.
    _row("5.1", "sends DATA on a closed stream", frame(DATA, 0, 1, b"x"), Goaway(STREAM_CLOSED), GET_1),
    _row("5.1", "sends HEADERS on a closed stream", GET_1, Goaway(STREAM_CLOSED), GET_1),
    _row("5.1", "gives credit to a closed stream", frame(WINDOW_UPDATE, 0, 1, word(1)) + PING_A, PONG_A, GET_1),
    _row("5.1", "resets a closed stream", RESET_1 + PING_A, PONG_A, GET_1),
    _row("5.1", "sends PRIORITY on a closed stream", frame(PRIORITY, 0, 1, _PRIORITY) + PING_A, PONG_A, GET_1),
    # The client has reset.
    _row("5.1", "sends DATA behind its reset", POST_1 + RESET_1 + frame(DATA, 0, 1, b"x"), Goaway(STREAM_CLOSED)),
    _row("5.1", "sends HEADERS behind its reset", POST_1 + RESET_1 + GET_1, Goaway(STREAM_CLOSED)),
    _row(
        "5.1", "gives credit behind its reset", POST_1 + RESET_1 + frame(WINDOW_UPDATE, 0, 1, word(1)) + PING_A, PONG_A
    ),
    _row(
        "5.1", "sends PRIORITY behind its reset", POST_1 + RESET_1 + frame(PRIORITY, 0, 1, _PRIORITY) + PING_A, PONG_A
    ),
    _row("5.4.2", "resets twice", POST_1 + RESET_1 + RESET_1 + PING_A, PONG_A),
    # The server has reset.
    _row(
        "5.1",
        "sends DATA behind a reset of the server",
        _MALFORMED_OPEN + frame(DATA, 0, 1, b"x") + PING_A,
        PONG_A,
        b"",
        [1],
    ),
    _row("5.1", "sends trailers behind a reset of the server", _MALFORMED_OPEN + GET_1 + PING_A, PONG_A, b"", [1]),
    _row(
        "5.1",
        "fills the table behind a reset of the server",
        _MALFORMED_OPEN
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x01x\x01y")
        + frame(HEADERS, END_HEADERS | END_STREAM, 3, block(head(b"GET")) + b"\xbe"),
        Answered(3),
        resets=[1],
    ),
    # The numbers of streams.
    _row("5.1.1", "opens a stream with an even number", request(2), Goaway(PROTOCOL_ERROR)),
    _row("5.1.1", "opens a stream with a number that it has left out", request(5) + request(3), Goaway(PROTOCOL_ERROR)),
    _row(
        "5.1.1",
        "sends DATA on a stream that it has left out",
        request(5) + frame(DATA, 0, 3, b"x"),
        Goaway(STREAM_CLOSED),
    ),
    _row("5.1.1", "opens the highest stream", request(2**31 - 1), Answered(2**31 - 1)),
    _row("5.3", "lets a stream depend on itself", GET_1 + frame(PRIORITY, 0, 1, word(1) + b"\x10"), Answered(1)),
]

_BODIES: Final = [
    _row("6.1", "sends DATA without a stream", frame(DATA, 0, 0, b"x"), Goaway(PROTOCOL_ERROR)),
    _row("6.1", "pads DATA as it may", POST_1 + frame(DATA, PADDED | END_STREAM, 1, b"\x02{}\0\0"), Answered(1)),
    _row("6.1", "sends padding alone", POST_1 + frame(DATA, PADDED | END_STREAM, 1, b"\x02\0\0"), Answered(1)),
    _row("6.1", "pads DATA beyond its end", POST_1 + frame(DATA, PADDED, 1, b"\x02\0"), Goaway(PROTOCOL_ERROR)),
    _row("6.1", "pads DATA by all of its length", POST_1 + frame(DATA, PADDED, 1, b"\x01"), Goaway(PROTOCOL_ERROR)),
    _row("6.1", "pads DATA without a length", POST_1 + frame(DATA, PADDED, 1), Goaway(FRAME_SIZE_ERROR)),
    _row("6.1", "ends with an empty frame", POST_1 + frame(DATA, END_STREAM, 1), Answered(1)),
]

_HEADERS: Final = END_HEADERS | END_STREAM
_GET: Final = block(head(b"GET"))
_HEADS: Final = [
    _row("6.2", "sends HEADERS without a stream", request(0), Goaway(PROTOCOL_ERROR)),
    _row("6.2", "pads HEADERS", frame(HEADERS, _HEADERS | PADDED, 1, b"\x02" + _GET + b"\0\0"), Answered(1)),
    _row(
        "6.2", "sends HEADERS with a priority", frame(HEADERS, _HEADERS | PRIORITISED, 1, _PRIORITY + _GET), Answered(1)
    ),
    _row(
        "6.2",
        "sends HEADERS with a priority, padded",
        frame(HEADERS, _HEADERS | PRIORITISED | PADDED, 1, b"\x01" + _PRIORITY + _GET + b"\0"),
        Answered(1),
    ),
    _row(
        "6.2", "pads HEADERS beyond its end", frame(HEADERS, _HEADERS | PADDED, 1, b"\x05\x82"), Goaway(PROTOCOL_ERROR)
    ),
    _row("6.2", "pads HEADERS without a length", frame(HEADERS, _HEADERS | PADDED, 1), Goaway(FRAME_SIZE_ERROR)),
    _row(
        "6.2",
        "sends HEADERS too short for its priority",
        frame(HEADERS, _HEADERS | PRIORITISED, 1, b"\0\0"),
        Goaway(FRAME_SIZE_ERROR),
    ),
    _row("6.10", "sends CONTINUATION behind END_HEADERS", GET_1 + frame(CONTINUATION, 4, 1), Goaway(PROTOCOL_ERROR)),
    _row("6.10", "sends CONTINUATION without a stream", frame(CONTINUATION, 4, 0), Goaway(PROTOCOL_ERROR)),
    _row(
        "6.10",
        "sends an empty CONTINUATION",
        frame(HEADERS, END_STREAM, 1, _GET) + frame(CONTINUATION, 0, 1) + frame(CONTINUATION, END_HEADERS, 1),
        Answered(1),
    ),
]

_CONTROL: Final = [
    _row("6.3", "sends PRIORITY without a stream", frame(PRIORITY, 0, 0, _PRIORITY), Goaway(PROTOCOL_ERROR)),
    _row("6.3", "sends PRIORITY of 4 bytes", POST_1 + frame(PRIORITY, 0, 1, bytes(4)), Reset(1, FRAME_SIZE_ERROR)),
    _row("6.3", "sends PRIORITY of 6 bytes", POST_1 + frame(PRIORITY, 0, 1, bytes(6)), Reset(1, FRAME_SIZE_ERROR)),
    _row("6.3", "sends PRIORITY of 4 bytes, idle", frame(PRIORITY, 0, 1, bytes(4)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.4", "resets no stream", frame(RST_STREAM, 0, 0, word(8)), Goaway(PROTOCOL_ERROR)),
    _row("6.4", "resets with 3 bytes", POST_1 + frame(RST_STREAM, 0, 1, bytes(3)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.4", "resets with 5 bytes", POST_1 + frame(RST_STREAM, 0, 1, bytes(5)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.4", "resets with an unknown code", POST_1 + frame(RST_STREAM, 0, 1, word(0xFFFF)) + PING_A, PONG_A),
    _row("6.5", "sends SETTINGS with a stream", frame(SETTINGS, 0, 1), Goaway(PROTOCOL_ERROR)),
    _row("6.5", "acknowledges with settings", frame(SETTINGS, ACK, 0, bytes(6)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.5", "sends SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, bytes(5)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.5.2", "enables push with 2", settings((2, 2)), Goaway(PROTOCOL_ERROR)),
    _row("6.5.2", "disables push", settings((2, 0)), SettingsAcknowledged(2)),
    _row("6.5.2", "sets a window that is too large", settings((4, 2**31)), Goaway(FLOW_CONTROL_ERROR)),
    _row("6.5.2", "sets the largest window", settings((4, 2**31 - 1)), SettingsAcknowledged(2)),
    _row("6.5.2", "sets frames that are too small", settings((5, 16_383)), Goaway(PROTOCOL_ERROR)),
    _row("6.5.2", "sets frames that are too large", settings((5, 2**24)), Goaway(PROTOCOL_ERROR)),
    _row("6.5.2", "sets the largest frames", settings((5, 2**24 - 1)), SettingsAcknowledged(2)),
    _row("6.5.2", "sets what is unknown", settings((0xABCD, 1)), SettingsAcknowledged(2)),
    _row("6.5.3", "sends SETTINGS three times", settings((4, 1)) * 3, SettingsAcknowledged(4)),
    _row("6.5.3", "gives a value again in the same frame", settings((2, 0), (2, 2)), Goaway(PROTOCOL_ERROR)),
    _row("6.6", "pushes", POST_1 + frame(PUSH_PROMISE, 4, 1, word(2) + _GET), Goaway(PROTOCOL_ERROR)),
    _row("8.4", "pushes without a stream", frame(PUSH_PROMISE, 4, 0, word(2) + _GET), Goaway(PROTOCOL_ERROR)),
    _row("6.7", "pings", PING_A, PONG_A),
    _row("6.7", "answers a ping that there was not", frame(PING, ACK, 0, b"zzzzzzzz") + PING_A, PONG_A),
    _row("6.7", "pings a stream", frame(PING, 0, 1, bytes(8)), Goaway(PROTOCOL_ERROR)),
    _row("6.7", "pings with 7 bytes", frame(PING, 0, 0, bytes(7)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.7", "pings with 9 bytes", frame(PING, 0, 0, bytes(9)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.8", "sends GOAWAY with a stream", frame(GOAWAY, 0, 1, bytes(8)), Goaway(PROTOCOL_ERROR)),
    _row("6.8", "sends GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.8", "leaves, and waits for its answer", GET_1 + frame(GOAWAY, 0, 0, bytes(8) + b"bye"), Answered(1)),
]

_GROW: Final = frame(WINDOW_UPDATE, 0, 1, word(2**31 - 1))
_WINDOWS: Final = [
    _row("6.9", "gives no credit", frame(WINDOW_UPDATE, 0, 0, word(0)), Goaway(PROTOCOL_ERROR)),
    _row("6.9", "gives a stream no credit", POST_1 + frame(WINDOW_UPDATE, 0, 1, word(0)), Reset(1, PROTOCOL_ERROR)),
    _row(
        "6.9", "gives no credit but the reserved bit", frame(WINDOW_UPDATE, 0, 0, word(1 << 31)), Goaway(PROTOCOL_ERROR)
    ),
    _row("6.9", "gives credit with the reserved bit", frame(WINDOW_UPDATE, 0, 0, word(1 + (1 << 31))) + PING_A, PONG_A),
    _row("6.9", "gives credit with 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.9", "gives credit with 5 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(5)), Goaway(FRAME_SIZE_ERROR)),
    _row("6.9.1", "gives too much", frame(WINDOW_UPDATE, 0, 0, word(2**31 - 1)), Goaway(FLOW_CONTROL_ERROR)),
    _row("6.9.1", "gives a stream too much", POST_1 + _GROW, Reset(1, FLOW_CONTROL_ERROR)),
    _row(
        "6.9.2",
        "makes a window too large by a setting",
        POST_1 + frame(WINDOW_UPDATE, 0, 1, word(2**31 - 1 - 65_535)) + settings((4, 65_536)),
        Goaway(FLOW_CONTROL_ERROR),
    ),
    _row("6.9.2", "has no window when it asks", settings((4, 0)) + request(1) + settings((4, 65_535)), Answered(1)),
]

_TRAILERS: Final = END_HEADERS | END_STREAM
_MESSAGES: Final = [
    _row("8.1", "sends trailers", POST_1 + frame(HEADERS, _TRAILERS, 1, block([(b"a", b"b")])), Answered(1)),
    _row("8.1", "sends empty trailers", POST_1 + frame(HEADERS, _TRAILERS, 1), Answered(1)),
    _row(
        "8.1",
        "sends trailers that do not end",
        POST_1 + frame(HEADERS, END_HEADERS, 1, block([(b"a", b"b")])),
        MALFORMED,
    ),
    _row("8.1", "sends two heads", POST_1 + request(1, head()), MALFORMED),
    _row(
        "8.3",
        "has a pseudo-field in trailers",
        POST_1 + frame(HEADERS, _TRAILERS, 1, block([(b":path", b"/")])),
        MALFORMED,
    ),
    _row(
        "8.2.1", "has a bad field in trailers", POST_1 + frame(HEADERS, _TRAILERS, 1, block([(b"A", b"b")])), MALFORMED
    ),
    _row(
        "8.1.1",
        "sends less than content-length before trailers",
        post(1, (b"content-length", b"1")) + frame(HEADERS, _TRAILERS, 1),
        MALFORMED,
    ),
    _row("8.1.1", "sends no body of content-length", request(1, more=[(b"content-length", b"1")]), MALFORMED),
    _row("8.1.1", "sends no body of no bytes", request(1, more=[(b"content-length", b"0")]), Answered(1)),
    _row(
        "8.1.1",
        "sends less than content-length",
        post(1, (b"content-length", b"3")) + frame(DATA, 1, 1, b"{}"),
        MALFORMED,
    ),
    _row(
        "8.1.1",
        "sends more than content-length",
        post(1, (b"content-length", b"1")) + frame(DATA, 0, 1, b"{}"),
        MALFORMED,
    ),
    _row("8.1.1", "sends content-length", post(1, (b"content-length", b"2")) + frame(DATA, 1, 1, b"{}"), Answered(1)),
    _row(
        "8.1.1",
        "counts no padding in content-length",
        post(1, (b"content-length", b"2")) + frame(DATA, END_STREAM | PADDED, 1, b"\x01{}\0"),
        Answered(1),
    ),
]
for _value in (b"", b"-1", b"+1", b"1.0", b"0x1", b"one", b"1,1", b"9" * 19):
    _MESSAGES.append(
        _row("8.1.1", f"has the content-length {_value.decode()!r}", post(1, (b"content-length", _value)), MALFORMED)
    )
_MESSAGES.append(
    _row("8.1.1", "has two of content-length", post(1, (b"content-length", b"1"), (b"content-length", b"2")), MALFORMED)
)
for _bad_name in (b"Upper", b"with space", b"with:colon", b"", b"nul\0", b"\x7f", b"\xff", b"line\nfeed", b"bra(cket"):
    _MESSAGES.append(_bad("8.2.1", f"has a field with the name {_bad_name!r}", [*head(b"GET"), (_bad_name, b"x")]))
for _value in (b"\0", b"a\rb", b"a\nb", b"a\r\nb: c", b" a", b"a ", b"\ta", b"a\t", b" ", b"\n"):
    _MESSAGES.append(_bad("8.2.1", f"has a field with the value {_value!r}", [*head(b"GET"), (b"a", _value)]))
for _value in (b"", b"a b", b"a\tb", b"\xff\xfe", b"x" * 4000):
    _MESSAGES.append(_good("8.2.1", f"has a field with the value {_value[:9]!r}", [*head(b"GET"), (b"a", _value)]))
for _field in (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"):
    _MESSAGES.append(_bad("8.2.2", f"has the field {_field.decode()}", [*head(b"GET"), (_field, b"close")]))
_MESSAGES.extend(
    [
        _bad("8.2.2", "has te: gzip", [*head(b"GET"), (b"te", b"gzip")]),
        _bad("8.2.2", "has te: trailers, gzip", [*head(b"GET"), (b"te", b"trailers, gzip")]),
        _good("8.2.2", "has te: trailers", [*head(b"GET"), (b"te", b"trailers")]),
        _good("8.2.3", "splits a cookie", [*head(b"GET"), (b"cookie", b"a=b"), (b"cookie", b"c=d")]),
        _bad("8.3", "has a pseudo-field behind a field", [(b"a", b"b"), *head(b"GET")]),
        _bad("8.3", "has an unknown pseudo-field", [*head(b"GET"), (b":proto", b"x")]),
        _bad("8.3", "has a pseudo-field of an answer", [*head(b"GET"), (b":status", b"200")]),
        _bad("8.3.1", "has no pseudo-field", [(b"host", b"localhost")]),
        _bad("8.3.1", "has no field", []),
        *(_bad("8.3.1", f"has no {name.decode()}", changed(name, None)) for name in (b":method", b":scheme", b":path")),
        *(_bad("8.3.1", f"has {name.decode()} twice", [(name, value), *head(b"GET")]) for name, value in head(b"GET")),
        *(_bad("8.3.1", f"has an empty {name.decode()}", changed(name, b"")) for name, _ in head()),
        _bad("8.3.1", "has a method that is none", changed(b":method", b"GE T")),
        _bad("8.3.1", "has a path without a slash", changed(b":path", b"predictions")),
        _bad("8.3.1", "has a path with a space", changed(b":path", b"/a b")),
        _bad("8.3.1", "has a path with a fragment", changed(b":path", b"/a#b")),
        _bad("8.3.1", "has a path with a line feed", changed(b":path", b"/a\nb")),
        _bad("8.3.1", "has the path * without OPTIONS", changed(b":path", b"*")),
        _good("8.3.1", "has the path * with OPTIONS", changed(b":path", b"*", b"OPTIONS")),
        _bad("8.3.1", "has a user in its authority", changed(b":authority", b"me@localhost")),
        _bad("8.3.1", "has neither authority nor host", changed(b":authority", None)),
        _good("8.3.1", "has a host and no authority", [*changed(b":authority", None), (b"host", b"localhost")]),
        _good("8.3.1", "has a host as its authority", [*head(b"GET"), (b"host", b"localhost")]),
        _bad("8.3.1", "has another host than its authority", [*head(b"GET"), (b"host", b"elsewhere")]),
        _bad("8.3.1", "has two hosts", [*changed(b":authority", None), (b"host", b"a"), (b"host", b"a")]),
        _bad("8.5", "asks for a tunnel", [(b":method", b"CONNECT"), (b":authority", b"localhost:80")]),
        _row(
            "10.5.1",
            "has a head that is too large",
            in_frames(1, [*head(b"GET"), (b"a", b"b" * 40_000)]),
            Answered(1, 431),
        ),
        _row("10.5.1", "has too many fields", in_frames(1, [*head(b"GET"), *[(b"a", b"b")] * 200]), Answered(1, 431)),
        _row(
            "10.5.1",
            "has a head far too large",
            in_frames(1, [*head(b"GET"), *[(b"a", b"b" * 16_000)] * 12]),
            Goaway(ENHANCE_YOUR_CALM),
        ),
    ]
)

ROWS: Final[Sequence[Row]] = (
    *(*_BEGINNING, *_FRAMES, *_STATES, *_BODIES, *_HEADS),
    *(*_CONTROL, *_WINDOWS, *_MESSAGES),
)
