"""The reader and the writers of frames."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.transport.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PADDING,
    PING,
    PRIORITISED,
    RST_STREAM,
    SETTINGS,
    UNKNOWN,
    VIEW_FROM,
    WINDOW_UPDATE,
    ConnectionFaultError,
    Frame,
    FrameReader,
    data_header,
    frame,
    goaway_frame,
    read_settings,
    rst_frame,
    settings_frame,
    unpadded,
    window_frame,
)
from geartrain.transport.http2.interface import ErrorCode

MAX_SIZE = 16_384
MAX_HELD = 1024


def read(*pieces: bytes) -> list[Frame]:
    reader = FrameReader(MAX_SIZE, MAX_HELD)
    return [each for piece in pieces for each in reader.read(piece)]


def refused(*pieces: bytes) -> ErrorCode:
    with pytest.raises(ConnectionFaultError) as caught:
        read(*pieces)
    return caught.value.code


def test_frames_are_given_in_their_order() -> None:
    sent = (
        frame(PING, 1, 0, payload=b"abcdefgh") + frame(HEADERS, 5, 7, payload=b"\x82") + frame(DATA, 1, 7, payload=b"x")
    )
    assert read(sent) == [(PING, 1, 0, b"abcdefgh"), (HEADERS, 5, 7, b"\x82"), (DATA, 1, 7, b"x")]


def test_reserved_bit_is_dropped() -> None:
    assert read(b"\0\0\0\x01\x05\x80\0\0\x03") == [(HEADERS, 5, 3, b"")]


def test_frame_but_data_is_given_when_it_is_whole() -> None:
    sent = frame(HEADERS, 4, 1, payload=b"abc")
    reader = FrameReader(MAX_SIZE, MAX_HELD)
    for at in range(len(sent) - 1):
        assert list(reader.read(sent[at : at + 1])) == []
        assert reader.is_holding
    assert list(reader.read(sent[-1:])) == [(HEADERS, 4, 1, b"abc")]
    assert not reader.is_holding


def test_data_is_given_as_it_comes_and_flags_with_its_end() -> None:
    sent = frame(DATA, END_STREAM, 1, payload=b"abcdef")
    assert read(sent[:11], sent[11:14], sent[14:]) == [(DATA, 0, 1, b"ab"), (DATA, 0, 1, b"cde"), (DATA, 1, 1, b"f")]


def test_no_part_is_given_for_a_header_alone() -> None:
    sent = frame(DATA, END_STREAM, 1, payload=b"abc")
    assert read(sent[:9]) == []
    assert read(sent[:9], sent[9:]) == [(DATA, END_STREAM, 1, b"abc")]


def test_large_data_is_a_view_of_what_came() -> None:
    sent = frame(DATA, 0, 1, payload=bytes(VIEW_FROM))
    [(_, _, _, payload)] = read(sent)
    assert isinstance(payload, memoryview)
    assert payload.obj is sent


def test_small_data_is_no_view_so_that_it_holds_nothing_else() -> None:
    [(_, _, _, payload)] = read(frame(DATA, 0, 1, payload=bytes(VIEW_FROM - 1)))
    assert isinstance(payload, bytes)


def test_padding_is_counted_first() -> None:
    sent = frame(DATA, PADDED | END_STREAM, 1, payload=b"\x02abc\0\0")
    assert read(sent) == [(PADDING, 3, 1, b""), (DATA, PADDED | END_STREAM, 1, b"abc")]


def test_end_waits_for_the_padding() -> None:
    sent = frame(DATA, PADDED | END_STREAM, 1, payload=b"\x02abc\0\0")
    found = read(sent[:13], sent[13:14], sent[14:])
    assert found == [(PADDING, 3, 1, b""), (DATA, 0, 1, b"abc"), (DATA, PADDED | END_STREAM, 1, b"")]


def test_length_of_padding_may_come_later() -> None:
    sent = frame(DATA, PADDED, 1, payload=b"\x01a\0")
    assert read(sent[:9], sent[9:]) == [(PADDING, 2, 1, b""), (DATA, PADDED, 1, b"a")]


@pytest.mark.parametrize("payload", [b"\x01", b"\x02a", b"\xff" + bytes(254)])
def test_padding_cannot_be_longer_than_its_frame(payload: bytes) -> None:
    assert refused(frame(DATA, PADDED, 1, payload=payload)) is ErrorCode.PROTOCOL_ERROR


def test_padded_frame_without_a_length() -> None:
    assert refused(frame(DATA, PADDED, 1)) is ErrorCode.FRAME_SIZE_ERROR


def test_unknown_frame_is_told_at_once_and_its_payload_dropped() -> None:
    reader = FrameReader(MAX_SIZE, MAX_HELD)
    sent = frame(0xEE, 7, 3, payload=bytes(5000))
    assert list(reader.read(sent[:100])) == [(UNKNOWN, 7, 3, b"")]
    assert not reader.is_holding
    assert list(reader.read(sent[100:] + frame(PING, 0, 0, payload=bytes(8)))) == [(PING, 0, 0, bytes(8))]


@pytest.mark.parametrize("kind", [DATA, HEADERS, SETTINGS, PING, GOAWAY, 0x77])
def test_frame_that_is_too_large_is_refused_by_its_header(kind: int) -> None:
    header = (MAX_SIZE + 1).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 1))
    assert refused(header) is ErrorCode.FRAME_SIZE_ERROR


def test_frame_that_would_be_held_too_long_is_refused_by_its_header() -> None:
    header = (MAX_HELD + 1).to_bytes(3, "big") + bytes((HEADERS, 0, 0, 0, 0, 1))
    assert refused(header) is ErrorCode.ENHANCE_YOUR_CALM


def test_frames_before_a_fault_are_given() -> None:
    reader = FrameReader(MAX_SIZE, MAX_HELD)
    frames = reader.read(frame(PING, 0, 0, payload=bytes(8)) + b"\xff\xff\xff\0\0\0\0\0\1")
    assert next(frames) == (PING, 0, 0, bytes(8))
    with pytest.raises(ConnectionFaultError):
        next(frames)


def raw(kind: int, flags: int, stream: int, size: int) -> bytes:
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + (bytes(range(256)) * 20)[:size]


FRAMES = st.lists(
    st.builds(
        raw,
        st.integers(0, 12),
        st.sampled_from([0, 1, 4, 5, 8, 9, 0x20]),
        st.integers(0, 9),
        st.one_of(st.integers(0, 40), st.sampled_from([900, VIEW_FROM, 4000])),
    ),
    max_size=6,
)


def joined(frames: list[Frame]) -> list[tuple[int, int, int, bytes]]:
    found: list[tuple[int, int, int, bytes]] = []
    for kind, flags, stream, payload in frames:
        if kind == DATA and found and found[-1][0] == DATA and found[-1][2] == stream:
            _, known, _, before = found.pop()
            found.append((DATA, known | flags, stream, before + bytes(payload)))
        elif kind or flags or payload:
            found.append((kind, flags, stream, bytes(payload)))
    return found


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_are_the_same_in_pieces(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    def result(pieces: list[bytes]) -> object:
        reader = FrameReader(MAX_SIZE, MAX_HELD)
        found: list[Frame] = []
        try:
            for piece in pieces:
                found.extend(reader.read(piece))
        except ConnectionFaultError as fault:
            return joined(found), fault.code
        return joined(found), None

    assert result([data[begin:end] for begin, end in itertools.pairwise(bounds)]) == result([data])


# HEADERS


def test_field_block_without_padding_and_priority() -> None:
    assert unpadded(PADDED, b"\x02abc\0\0") == b"abc"
    assert unpadded(PRIORITISED, b"\0\0\0\0\x10abc") == b"abc"
    assert unpadded(PADDED | PRIORITISED, b"\x02\0\0\0\0\x10abc\0\0") == b"abc"
    assert unpadded(PADDED, b"\x02\0\0") == b""


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (PADDED, b"", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED, b"\x01", ErrorCode.PROTOCOL_ERROR),
        (PRIORITISED, b"\0\0\0\0", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED | PRIORITISED, b"\0\0\0\0\0", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED | PRIORITISED, b"\x01\0\0\0\0\0", ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_field_block_that_is_too_short(flags: int, payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(ConnectionFaultError) as caught:
        unpadded(flags, payload)
    assert caught.value.code is code


# writers


def test_writers() -> None:
    assert data_header(0x010203, END_STREAM, 5) == b"\x01\x02\x03\0\x01\0\0\0\x05"
    assert rst_frame(3, 8) == b"\0\0\x04\x03\0\0\0\0\x03\0\0\0\x08"
    assert window_frame(0, 77) == b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x4d"
    assert goaway_frame(9, 11, b"calm") == b"\0\0\x0c\x07\0\0\0\0\0\0\0\0\x09\0\0\0\x0bcalm"
    assert settings_frame([(4, 65_536)]) == b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\x01\0\0"
    assert read_settings(settings_frame([(1, 2), (3, 4)])[9:]) == [(1, 2), (3, 4)]
    assert {RST_STREAM, WINDOW_UPDATE} == {3, 8}
