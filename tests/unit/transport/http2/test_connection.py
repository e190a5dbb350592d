"""A connection as a whole: its beginning, bodies and their credit, limits, and its ends."""

from __future__ import annotations

import pytest

from geartrain.transport.http2.connection import ServerConnection
from geartrain.transport.http2.interface import (
    BodyReceived,
    ConnectionEnded,
    ErrorCode,
    Http2Limits,
    PingAnswered,
    RequestReceived,
    StreamAborted,
)
from tests.support.http2_rows import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OPENING,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    head,
    in_frames,
    post,
    request,
    settings,
    word,
)
from tests.unit.transport.http2.parts import Client, Seen

ACKNOWLEDGED = frame(SETTINGS, ACK, 0)


def data(stream: int, content: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, content)


def test_it_is_a_codec() -> None:
    codec = ServerConnection()
    assert codec.stream_count == 0


# the beginning


def test_greeting() -> None:
    limits = Http2Limits(
        max_streams=7, stream_window=1 << 20, connection_window=1 << 21, max_frame_size=20_000, max_head_size=999
    )
    greeting = Client(limits, opening=b"").greeting
    assert [each.kind for each in greeting] == [SETTINGS, WINDOW_UPDATE]
    given = {
        greeting[0].payload[at + 1]: int.from_bytes(greeting[0].payload[at + 2 : at + 6]) for at in range(0, 30, 6)
    }
    assert given == {1: 4096, 3: 7, 4: 1 << 20, 5: 20_000, 6: 999}
    assert greeting[1].payload == word((1 << 21) - 65_535)


def test_small_window_of_the_connection_is_the_one_of_the_protocol() -> None:
    assert [each.kind for each in Client(Http2Limits(connection_window=100), opening=b"").greeting] == [SETTINGS]


def test_reading_a_head() -> None:
    client = Client(opening=b"")
    states = [client.codec.is_reading_head]
    for piece in (PREFACE[:10], PREFACE[10:], settings(), request(1)[:20], request(1)[20:], data(3, b"abc")[:5]):
        client.send(piece)
        states.append(client.codec.is_reading_head)
    assert states == [True, True, True, False, True, False, True]


def test_block_without_its_end_is_a_head_in_part() -> None:
    client = Client()
    client.send(frame(HEADERS, END_STREAM, 1, block(head())))
    assert client.codec.is_reading_head
    client.send(frame(9, END_HEADERS, 1))
    assert not client.codec.is_reading_head


def test_body_is_no_head() -> None:
    client = Client()
    client.send(post(1) + data(1, b"abcdef")[:12])
    assert not client.codec.is_reading_head


# requests


def test_request_with_a_body() -> None:
    client = Client()
    events = client.send(post(1, (b"content-length", b"5")) + data(1, b"abc") + data(1, b"de", end=True))
    assert isinstance(events[0], RequestReceived)
    assert (events[0].stream, events[0].is_whole, events[0].head.length) == (1, False, 5)
    assert events[1:] == [BodyReceived(1, b"abc", 3, is_last=False), BodyReceived(1, b"de", 2, is_last=True)]


def test_request_without_a_body() -> None:
    [event] = Client().send(request(1))
    assert isinstance(event, RequestReceived)
    assert event.is_whole
    assert event.head.length == 0


def test_trailers_end_a_body() -> None:
    client = Client()
    client.send(post(1), data(1, b"abc"))
    events = client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"t", b"u")])))
    assert events == [BodyReceived(1, b"", 0, is_last=True)]


def test_trailers_that_are_too_large_reset_the_stream() -> None:
    client = Client()
    client.send(post(1))
    events = client.send(in_frames(1, [(b"a", b"b" * 40_000)]))
    assert events == [StreamAborted(1, ErrorCode.ENHANCE_YOUR_CALM)]


def test_client_resets() -> None:
    client = Client()
    client.send(post(1))
    assert client.send(frame(RST_STREAM, 0, 1, word(0x1234))) == [StreamAborted(1, 0x1234)]
    assert client.codec.stream_count == 0
    assert client.take() == []


def test_stream_that_breaks_a_rule_is_aborted_once() -> None:
    client = Client()
    client.send(post(1, (b"content-length", b"1")))
    assert client.send(data(1, b"ab") + data(1, b"c", end=True)) == [StreamAborted(1, ErrorCode.PROTOCOL_ERROR)]


def test_malformed_request_is_not_told() -> None:
    assert Client().send(request(1, [(b"a", b"b")])) == []


def test_stream_beyond_the_limit_is_refused_and_its_head_read() -> None:
    client = Client(Http2Limits(max_streams=2))
    refused = frame(HEADERS, END_HEADERS, 5, block(head()) + b"\x40\x01x\x01y")
    events = client.send(post(1) + post(3) + refused + data(5, b"abc", end=True))
    assert [type(event) for event in events] == [RequestReceived, RequestReceived]
    assert client.take() == [Seen(RST_STREAM, 0, 5, word(ErrorCode.REFUSED_STREAM))]
    client.sender.head(1, 200, (), is_last=True)
    [event] = client.send(frame(HEADERS, END_HEADERS | END_STREAM, 7, block(head()) + b"\xbe"))
    assert isinstance(event, RequestReceived)
    assert event.head.fields[-1] == (b"x", b"y")


def test_head_that_is_too_large_is_answered() -> None:
    client = Client()
    too_large = [*head(), (b"a", b"b" * 40_000)]
    assert client.send(in_frames(1, too_large)) == []
    seen = client.take()
    assert client.fields(seen, 1) == [[(b":status", b"431")]]
    assert [each.kind for each in seen] == [HEADERS]
    client.send(frame(HEADERS, END_HEADERS, 3, b"\x82" * 200))
    seen = client.take()
    assert [(each.kind, each.stream) for each in seen] == [(HEADERS, 3), (RST_STREAM, 3)]
    assert client.send(data(3, b"late", end=True)) == []
    assert client.codec.stream_count == 0


# windows


def test_credit_comes_in_batches() -> None:
    client = Client(Http2Limits(stream_window=100_000, connection_window=200_000))
    client.send(ACKNOWLEDGED, post(1), data(1, bytes(16_000)) * 6)
    client.codec.acknowledge(1, 49_999)
    assert client.take() == []
    client.codec.acknowledge(1, 1)
    assert client.take() == [Seen(WINDOW_UPDATE, 0, 1, word(50_000))]
    client.codec.acknowledge(1, 46_000)
    client.send(data(1, bytes(16_000)))
    client.codec.acknowledge(1, 16_000)
    assert client.take() == [
        Seen(WINDOW_UPDATE, 0, 0, word(112_000)),
        Seen(WINDOW_UPDATE, 0, 1, word(62_000)),
    ]


def test_stream_whose_request_is_complete_gets_no_credit() -> None:
    client = Client(Http2Limits(stream_window=100_000))
    client.send(post(1) + data(1, bytes(16_000)) * 5 + data(1, b"", end=True))
    client.codec.acknowledge(1, 80_000)
    assert client.take() == []


def test_credit_for_a_stream_that_is_over_counts_for_the_connection() -> None:
    client = Client(Http2Limits(connection_window=65_535))
    client.send(post(1), data(1, bytes(16_000)) * 3, frame(RST_STREAM, 0, 1, word(8)))
    client.codec.acknowledge(1, 48_000)
    assert client.take() == [Seen(WINDOW_UPDATE, 0, 0, word(48_000))]


def test_dropped_data_is_credited_by_the_codec() -> None:
    client = Client(Http2Limits(connection_window=65_535))
    client.send(post(1))
    client.sender.reset(1, ErrorCode.CANCEL)
    client.take()
    for _ in range(100):
        assert client.send(data(1, bytes(16_000))) == []
    credit = sum(int.from_bytes(each.payload) for each in client.take() if each.kind == WINDOW_UPDATE)
    assert credit > 1_500_000


def test_data_of_a_stream_that_breaks_a_rule_is_credited_by_the_codec() -> None:
    client = Client(Http2Limits(connection_window=65_535))
    for stream in range(1, 99, 2):
        client.send(post(stream, (b"content-length", b"1")), data(stream, bytes(10_000)))
        client.take()
    assert client.codec._shared.inbound.left > 30_000


def test_padding_is_credited_by_the_codec_and_counts() -> None:
    client = Client(Http2Limits(connection_window=65_535, stream_window=65_535))
    client.send(post(1))
    for _ in range(300):
        events = client.send(frame(DATA, PADDED, 1, b"\xff" + b"x" + bytes(255)))
        assert [event.credit for event in events if isinstance(event, BodyReceived)] == [1]
    seen = client.take()
    assert {each.stream for each in seen if each.kind == WINDOW_UPDATE} == {0, 1}


@pytest.mark.parametrize("size", [1 << 24, 1000])
def test_more_than_the_window_of_the_connection(size: int) -> None:
    client = Client(Http2Limits(connection_window=65_535))
    sent = post(1) + data(1, bytes(16_384)) * 4
    assert not any(isinstance(event, ConnectionEnded) for event in client.send(sent[:-1]))
    events = client.send(sent[-1:]) if size > len(sent) else client.send(b"", sent[-1:])
    assert isinstance(events[-1], ConnectionEnded)
    assert events[-1].code is ErrorCode.FLOW_CONTROL_ERROR


def test_more_than_the_window_of_a_stream() -> None:
    client = Client(Http2Limits(stream_window=70_000))
    client.send(ACKNOWLEDGED, post(1), post(3), data(1, bytes(16_000)) * 4, data(1, bytes(6_000)))
    assert client.send(data(1, b"x") + data(3, b"y")) == [
        StreamAborted(1, ErrorCode.FLOW_CONTROL_ERROR),
        BodyReceived(3, b"y", 1, is_last=False),
    ]


def test_smaller_window_of_streams_holds_once_it_is_acknowledged() -> None:
    client = Client(Http2Limits(stream_window=1000))
    client.send(post(1), data(1, bytes(16_000)))
    client.codec.acknowledge(1, 16_000)
    client.take()
    client.send(ACKNOWLEDGED)
    assert client.take() == [Seen(WINDOW_UPDATE, 0, 1, word(16_000))]
    assert client.send(data(1, bytes(1000)))[-1] == BodyReceived(1, bytes(1000), 1000, is_last=False)
    assert client.send(data(1, b"x")) == [StreamAborted(1, ErrorCode.FLOW_CONTROL_ERROR)]
    client.send(post(3))
    assert client.send(data(3, bytes(1001))) == [StreamAborted(3, ErrorCode.FLOW_CONTROL_ERROR)]


# pings, and the ends of a connection


def test_ping_of_the_driver() -> None:
    client = Client()
    client.codec.ping(b"12345678")
    assert client.take() == [Seen(PING, 0, 0, b"12345678")]
    answer = frame(PING, ACK, 0, b"12345678")
    assert client.send(frame(PING, ACK, 0, b"87654321")) == []
    assert client.send(answer) == [PingAnswered(b"12345678")]
    assert client.send(answer) == []


def test_pings_without_an_answer_are_forgotten() -> None:
    client = Client()
    for number in range(100):
        client.codec.ping(number.to_bytes(8, "big"))
    answers = [client.send(frame(PING, ACK, 0, number.to_bytes(8, "big"))) for number in range(100)]
    assert [len(events) for events in answers] == [0] * 84 + [1] * 16


def test_shutting_down() -> None:
    client = Client()
    client.send(post(1))
    client.codec.shut_down()
    warning, ping = client.take()
    assert (warning.kind, warning.payload) == (GOAWAY, word(2**31 - 1) + word(0))
    assert (ping.kind, ping.flags) == (PING, 0)
    assert [client.codec.is_closing, len(client.send(post(3)))] == [False, 1]  # it was on its way
    client.send(frame(PING, ACK, 0, ping.payload))
    assert client.take() == [Seen(GOAWAY, 0, 0, word(3) + word(0))]
    assert client.codec.is_closing
    assert client.send(post(5) + data(5, b"abc")) == []
    assert client.take() == [Seen(RST_STREAM, 0, 5, word(ErrorCode.REFUSED_STREAM))]
    assert len(client.send(data(1, b"", end=True), data(3, b"", end=True))) == 2
    for stream in (1, 3):
        client.sender.head(stream, 200, (), is_last=True)
    assert client.codec.stream_count == 0
    client.codec.shut_down()
    assert client.take_all()[-1].kind == HEADERS  # it is said once
    client.codec.end(ErrorCode.NO_ERROR)
    assert client.take()[-1] == Seen(GOAWAY, 0, 0, word(3) + word(0))


def test_client_that_leaves_gets_its_answers_and_no_more() -> None:
    client = Client()
    client.send(post(1), frame(GOAWAY, 0, 0, word(0) + word(0)))
    assert client.codec.is_closing
    assert client.codec.stream_count == 1
    assert client.send(data(1, b"x", end=True)) == [BodyReceived(1, b"x", 1, is_last=True)]
    assert client.send(request(3)) == []
    assert client.take() == [Seen(RST_STREAM, 0, 3, word(ErrorCode.REFUSED_STREAM))]


def test_end_of_the_driver() -> None:
    client = Client()
    client.send(post(1))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(100_000)])
    client.codec.end(ErrorCode.INTERNAL_ERROR, "because")
    seen = client.take_all()
    assert seen[-1] == Seen(GOAWAY, 0, 0, word(1) + word(2) + b"because")
    assert sum(each.kind == DATA for each in seen) == 0
    assert (client.codec.stream_count, client.codec.is_closing, client.codec.is_reading_head) == (0, True, False)
    client.codec.end(ErrorCode.NO_ERROR)
    client.codec.acknowledge(1, 1 << 30)
    client.codec.ping(bytes(8))
    client.codec.shut_down()
    client.sender.head(1, 200, ())
    assert client.send(request(3)) == []
    assert client.take() == []


def test_fault_is_the_last_event_and_frames_before_it_count() -> None:
    client = Client()
    events = client.send(request(1) + frame(PING, 0, 0, b"short") + request(3))
    assert [type(event) for event in events] == [RequestReceived, ConnectionEnded]
    assert events[-1].code is ErrorCode.FRAME_SIZE_ERROR  # type: ignore[union-attr]
    assert client.take()[-1].payload[:8] == word(1) + word(6)


def test_refused_streams_are_not_in_what_goaway_says() -> None:
    client = Client(Http2Limits(max_streams=1))
    client.send(post(1), post(3))
    client.codec.end(ErrorCode.NO_ERROR)
    assert client.take()[-1].payload[:4] == word(1)


# memory


def test_memory_of_a_long_connection_is_bounded() -> None:
    client = Client()
    client.send(settings((4, 2**20)), frame(WINDOW_UPDATE, 0, 0, word(2**30)))
    for number in range(20_000):
        stream = 2 * number + 1
        client.now = number / 100
        client.answer_all(client.send(post(stream) + data(stream, b"x", end=number % 3 > 0)))
        if not number % 3:
            client.sender.reset(stream, ErrorCode.CANCEL)
        client.sender.take_output(1 << 20)
        client.events.clear()
    streams = client.codec._streams
    assert len(streams) == 0
    assert len(streams._reset) <= 2048
    assert len(streams._gaps) == 0
    assert len(client.codec._shared.queue) == 0
    assert client.codec._shared.output.ready == []


def test_opening_of_the_rows_is_what_the_codec_expects() -> None:
    assert OPENING.startswith(PREFACE)
