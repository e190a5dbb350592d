"""Answers on their way out: order, windows, turns, and what is copied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.transport.http2.interface import ErrorCode, StreamAborted
from tests.support.http2_rows import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    post,
    request,
    settings,
    word,
)
from tests.unit.transport.http2.parts import Client, Seen

LARGE = 1 << 20
STATUS_200 = b"\x88"


def client_with(*streams: int, opening: bytes = b"") -> Client:
    client = Client()
    client.send(opening, *(request(stream) for stream in streams))
    client.take()
    return client


def grow(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, word(size))


def body_of(seen: Sequence[Seen], stream: int) -> bytes:
    return b"".join(each.payload for each in seen if each.kind == DATA and each.stream == stream)


def test_small_answer_is_one_buffer() -> None:
    client = client_with(1)
    client.sender.head(1, 200, ((b"a", b"b"),))
    client.sender.body(1, [b"prefix", bytearray(b"-"), memoryview(b"body")])
    client.sender.trailers(1, ((b"grpc-status", b"0"),))
    buffers = client.sender.take_output(LARGE)
    assert len(buffers) == 1
    assert isinstance(buffers[0], bytes)
    assert client.codec.stream_count == 0
    assert client.sender.take_output(LARGE) == []


def test_frames_of_an_answer() -> None:
    client = client_with(1)
    client.sender.head(1, 200, [(b"a", b"b")])
    client.sender.body(1, [b"x", b"yz"])
    client.sender.trailers(1, [(b"t", b"u")])
    seen = client.take()
    assert [(each.kind, each.flags, each.stream) for each in seen] == [
        (HEADERS, END_HEADERS, 1),
        (DATA, 0, 1),
        (HEADERS, END_HEADERS | END_STREAM, 1),
    ]
    assert body_of(seen, 1) == b"xyz"
    assert client.fields(seen, 1) == [[(b":status", b"200"), (b"a", b"b")], [(b"t", b"u")]]


@pytest.mark.parametrize("size", [0, 5, 20_000])
def test_last_part_ends_the_stream(size: int) -> None:
    client = client_with(1)
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(size)] if size else [], is_last=True)
    seen = client.take_all()
    assert [each.flags for each in seen if each.kind == DATA][-1] == END_STREAM
    assert sum(each.flags & END_STREAM for each in seen) == 1
    assert len(body_of(seen, 1)) == size
    assert client.codec.stream_count == 0


def test_head_alone() -> None:
    client = client_with(1)
    client.sender.head(1, 204, (), is_last=True)
    assert client.take() == [Seen(HEADERS, END_HEADERS | END_STREAM, 1, b"\x89")]
    assert client.codec.stream_count == 0


def test_informational_heads_come_before_the_answer() -> None:
    client = client_with(1)
    client.sender.head(1, 100, ())
    client.sender.head(1, 103, ((b"link", b"x"),))
    client.sender.head(1, 200, (), is_last=True)
    seen = client.take()
    assert [fields[0][1] for fields in client.fields(seen, 1)] == [b"100", b"103", b"200"]
    assert [each.flags & END_STREAM for each in seen] == [0, 0, 1]


def test_large_parts_are_not_copied() -> None:
    client = client_with(1, opening=settings((4, LARGE), (5, LARGE)) + grow(0, LARGE))
    part = bytes(50_000)
    client.sender.head(1, 200, ())
    client.sender.body(1, [b"small", part], is_last=True)
    buffers = client.sender.take_output(LARGE)
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert [view.obj is part and view.nbytes for view in views] == [50_000]
    assert b"".join(buffers).endswith(b"small" + part)


def test_large_head_goes_on_in_continuation() -> None:
    client = client_with(1)
    fields = ((b"a", b"b" * 40_000), (b"c", b"d"))
    client.sender.head(1, 200, fields, is_last=True)
    seen = client.take()
    kinds = [(each.kind, each.flags) for each in seen]
    assert kinds == [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]
    assert max(len(each.payload) for each in seen) <= 16_384
    client.decoder.max_header_list_size = LARGE
    assert client.fields(seen, 1) == [[(b":status", b"200"), *fields]]


# windows


def test_body_waits_for_the_window_of_its_stream() -> None:
    client = client_with(1, opening=settings((4, 10)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [b"0123456789", b"abcdef"])
    client.sender.trailers(1, ((b"t", b"u"),))
    assert body_of(client.take(), 1) == b"0123456789"
    assert client.sender.unsent(1) == 6
    assert client.sender.stalled() == [(1, 10)]
    assert client.take() == []
    client.send(grow(1, 4))
    assert body_of(client.take(), 1) == b"abcd"
    assert client.sender.stalled() == [(1, 14)]
    client.send(grow(1, 4))
    seen = client.take()
    assert [each.kind for each in seen] == [DATA, HEADERS]
    assert client.sender.stalled() == []
    assert client.sender.unsent(1) == 0
    assert client.codec.stream_count == 0


def test_bodies_share_the_window_of_the_connection() -> None:
    client = client_with(1, 3, opening=settings((4, LARGE)))
    for stream in (1, 3):
        client.sender.head(stream, 200, ())
        client.sender.body(stream, [bytes(60_000)], is_last=True)
    seen = client.take_all()
    assert len(body_of(seen, 1)) + len(body_of(seen, 3)) == 65_535
    assert min(len(body_of(seen, 1)), len(body_of(seen, 3))) > 30_000
    client.send(grow(0, LARGE))
    seen += client.take_all()
    assert len(body_of(seen, 1)) == len(body_of(seen, 3)) == 60_000


def test_streams_take_held() -> None:
    client = client_with(1, 3, 5, opening=settings((4, LARGE)) + grow(0, LARGE))
    for stream in (1, 3, 5):
        client.sender.head(stream, 200, ())
        client.sender.body(stream, [bytes(40_000)], is_last=True)
    order = [each.stream for each in client.take_all() if each.kind == DATA]
    assert order == [1, 3, 5] * 3


def test_frame_is_no_larger_than_the_client_takes() -> None:
    client = client_with(1, opening=settings((4, LARGE), (5, 20_000)) + grow(0, LARGE))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(50_000)])
    assert [len(each.payload) for each in client.take() if each.kind == DATA] == [20_000, 20_000, 10_000]


def test_about_as_much_is_taken_as_is_asked_for() -> None:
    client = client_with(1, opening=settings((4, LARGE)) + grow(0, LARGE))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(500_000)])
    assert len(body_of(client.take(40_000), 1)) == 40_000
    assert client.sender.unsent(1) == 460_000


def test_small_bodies_that_nobody_takes_are_held() -> None:
    client = client_with(1, opening=settings((4, LARGE)) + grow(0, LARGE))
    client.sender.head(1, 200, ())
    for _ in range(100):
        client.sender.body(1, [bytes(1000)])
    assert client.sender.unsent(1) >= 30_000
    assert len(body_of(client.take_all(), 1)) == 100_000


def test_many_small_parts_that_nobody_takes_are_no_fault_of_the_client() -> None:
    client = client_with(1, opening=settings((4, LARGE)) + grow(0, LARGE))
    client.sender.head(1, 200, ())
    for _ in range(100_000):
        client.sender.body(1, [b"x"])
    assert client.sender.unsent(1) > 98_000
    assert client.send(frame(PING, 0, 0, bytes(8))) == []
    assert len(body_of(client.take_all(), 1)) == 100_000


def test_setting_makes_windows_smaller_than_nothing() -> None:
    client = client_with(1, opening=settings((4, 100)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(150)])
    assert len(body_of(client.take(), 1)) == 100
    client.send(settings((4, 20)), grow(1, 80))
    assert body_of(client.take(), 1) == b""
    client.send(grow(1, 1))
    assert body_of(client.take(), 1) == b"\0"
    client.send(settings((4, 60)))
    assert len(body_of(client.take(), 1)) == 40
    assert client.sender.unsent(1) == 9


def test_setting_stops_a_stream_whose_turn_would_be_next() -> None:
    client = client_with(1, opening=settings((4, 100)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(90), bytes(90)])
    client.send(settings((4, 0)))
    assert body_of(client.take(), 1) == b""
    client.send(settings((4, 100)))
    assert len(body_of(client.take(), 1)) == 100


def test_end_without_bytes_needs_no_window() -> None:
    client = client_with(1, opening=settings((4, 0)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [], is_last=True)
    assert client.take()[-1] == Seen(DATA, END_STREAM, 1, b"")


def test_end_behind_a_body_that_is_held() -> None:
    client = client_with(1, opening=settings((4, 0)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [b"abc"])
    client.sender.body(1, [], is_last=True)
    client.take()
    client.send(grow(1, 3))
    assert client.take() == [Seen(DATA, END_STREAM, 1, b"abc")]


# ends


def test_answer_that_ends_before_its_request_is_followed_by_a_reset() -> None:
    client = Client()
    client.send(post(1))
    client.sender.head(1, 401, (), is_last=True)
    kinds = [(each.kind, each.payload) for each in client.take()]
    assert [kind for kind, _ in kinds] == [HEADERS, RST_STREAM]
    assert kinds[-1][1] == word(ErrorCode.NO_ERROR)
    assert client.send(frame(DATA, END_STREAM, 1, b"late"), grow(1, 1)) == []
    assert client.take() == []


def test_reset_drops_what_is_held() -> None:
    client = client_with(1, opening=settings((4, 5)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(100)])
    client.take()
    client.sender.reset(1, ErrorCode.CANCEL)
    client.sender.body(1, [b"more"])
    client.sender.trailers(1, ())
    client.sender.head(1, 200, ())
    client.sender.reset(1, ErrorCode.CANCEL)
    client.send(grow(1, 100))
    assert client.take() == [Seen(RST_STREAM, 0, 1, word(8))]
    assert (client.sender.unsent(1), client.sender.stalled()) == (0, [])


def test_reset_of_the_client_drops_what_is_held() -> None:
    client = client_with(1, 3)
    for stream in (1, 3):
        client.sender.head(stream, 200, ())
        client.sender.body(stream, [bytes(50_000)], is_last=True)
    assert client.send(frame(RST_STREAM, 0, 1, word(8))) == [StreamAborted(1, 8)]
    seen = client.take_all()
    assert body_of(seen, 1) == b""
    assert len(body_of(seen, 3)) == 50_000


@pytest.mark.parametrize("step", ["body", "trailers", "head"])
def test_driver_that_takes_no_such_step_resets_the_stream(step: str) -> None:
    client = client_with(1)
    if step == "head":
        client.sender.head(1, 200, ())
        client.sender.head(1, 200, ())
    elif step == "body":
        client.sender.body(1, [b"x"])
    else:
        client.sender.trailers(1, ())
    assert client.take()[-1] == Seen(RST_STREAM, 0, 1, word(ErrorCode.INTERNAL_ERROR))


def test_driver_that_goes_on_behind_the_end_changes_nothing() -> None:
    client = client_with(1, opening=settings((4, 2)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [b"abc"], is_last=True)
    client.sender.body(1, [b"more"])
    client.sender.trailers(1, ())
    client.take()
    client.send(grow(1, 50))
    assert client.take() == [Seen(DATA, END_STREAM, 1, b"c")]


def test_streams_that_there_are_not() -> None:
    client = Client()
    for stream in (0, 1, 2):
        client.sender.head(stream, 200, ())
        client.sender.body(stream, [b"x"], is_last=True)
        client.sender.trailers(stream, ())
        client.sender.reset(stream, ErrorCode.CANCEL)
        assert client.sender.unsent(stream) == 0
    assert client.take() == []


# the dynamic table of the client


def test_smaller_table_is_acknowledged_in_the_next_block_once() -> None:
    client = client_with(1, 3, opening=settings((1, 0)))
    for stream in (1, 3):
        client.sender.head(stream, 200, (), is_last=True)
    assert [each.payload for each in client.take()] == [b"\x20" + STATUS_200, STATUS_200]


def test_table_that_grows_is_not_acknowledged() -> None:
    client = client_with(1, opening=settings((1, 8192)))
    client.sender.head(1, 200, (), is_last=True)
    assert client.take()[0].payload == STATUS_200


def test_smaller_table_is_acknowledged_in_trailers_that_were_held() -> None:
    client = client_with(1, 3, opening=settings((4, 0)))
    client.sender.head(1, 200, ())
    client.sender.body(1, [b"abc"])
    client.sender.trailers(1, ((b"a", b"b"),))
    client.take()
    client.send(settings((1, 0)), grow(1, 3))
    client.sender.head(3, 200, (), is_last=True)
    blocks = [each.payload for each in client.take() if each.kind == HEADERS]
    assert [block[:1] == b"\x20" for block in blocks] == [True, False]


@given(
    st.lists(st.lists(st.integers(0, 30_000), max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40_000)), max_size=30),
    st.integers(1, 50_000),
)
def test_every_byte_is_sent_once_and_in_order(
    bodies: list[list[int]], increments: list[tuple[int, int]], size: int
) -> None:
    client = client_with(*range(1, 2 * len(bodies) + 1, 2), opening=settings((4, 100)))
    expected = {}
    for number, parts in enumerate(bodies):
        stream = 2 * number + 1
        given_parts = [bytes([number * 16 + at]) * part for at, part in enumerate(parts)]
        expected[stream] = b"".join(given_parts)
        client.sender.head(stream, 200, ())
        client.sender.body(stream, given_parts, is_last=True)
    seen: list[Seen] = []
    window, windows = 65_535, dict.fromkeys(expected, 100)
    for target, credit in [*increments, *((number, 1 << 21) for number in range(len(bodies) + 1))]:
        stream = 2 * target - 1 if target else 0
        client.send(grow(stream, credit) if not stream or stream in windows else b"")
        window += credit if not stream else 0
        if stream in windows:
            windows[stream] += credit
        while taken := client.take(size):
            seen += taken
            window -= sum(len(each.payload) for each in taken if each.kind == DATA)
        assert window >= 0
        assert all(len(body_of(seen, each)) <= allowed for each, allowed in windows.items())
    assert {stream: body_of(seen, stream) for stream in expected} == expected
    assert client.codec.stream_count == 0
