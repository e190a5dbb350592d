"""Limits by rate: attacks end the connection after a bounded number of frames, and heavy use does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from geartrain.transport.http2.interface import (
    BodyReceived,
    ConnectionEnded,
    ErrorCode,
    Http2Limits,
    RequestReceived,
    StreamAborted,
)
from geartrain.transport.http2.streams import RATES, Bucket, Flood, Rate
from tests.support.http2_rows import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    head,
    post,
    request,
    settings,
    word,
)
from tests.unit.transport.http2.parts import Client

TOO_MANY = [(b":method", b"GET")] * 4
CREDIT = frame(WINDOW_UPDATE, 0, 0, word(2**30))


def test_bucket_fills_with_time_and_work() -> None:
    bucket = Bucket(Rate(second=10, burst=5, work=0.5))
    assert [bucket.take(100.0, 0) for _ in range(6)] == [True] * 5 + [False]
    assert not bucket.take(100.0, 1)
    assert bucket.take(100.5, 1)
    assert bucket.take(100.5, 1)
    assert bucket.take(100.5, 1)
    assert not bucket.take(100.5, 1)
    assert bucket.take(100.5, 100)


def test_every_kind_has_a_rate() -> None:
    assert {*RATES} == {*Flood}


def ended_after(frames: Callable[[int], bytes], most: int, *, before: bytes = b"", batch: int = 1) -> int:
    """Send frames at one moment until the connection ends, and read all that comes; return how many it took."""
    client = Client()
    client.send(before)
    for number in range(0, most, batch):
        events = client.send(b"".join(frames(number + each) for each in range(batch)))
        seen = client.take_all()
        if any(isinstance(event, ConnectionEnded) for event in events):
            assert events[-1] == ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, events[-1].reason)  # type: ignore[union-attr]
            assert seen[-1].kind == GOAWAY
            assert seen[-1].payload[4:8] == word(0xB)
            assert client.codec.stream_count == 0
            assert client.send(request(99_999)) == []
            return number + batch
    return 0


def rapid_reset(number: int) -> bytes:
    stream = 2 * number + 1
    return request(stream) + frame(RST_STREAM, 0, stream, word(8))


def made_to_reset(number: int) -> bytes:
    """Each stream breaks a rule, so that the server resets it."""
    stream = 2 * number + 1
    return post(stream) + frame(WINDOW_UPDATE, 0, stream, word(0))


ATTACKS: dict[str, tuple[Callable[[int], bytes], bytes, int]] = {
    "rapid-reset": (rapid_reset, b"", 4200),
    "streams-that-the-server-resets": (made_to_reset, b"", 4200),
    "malformed-heads": (lambda number: request(2 * number + 1, [(b"A", b"")]), b"", 4200),
    "settings": (lambda _: settings((3, 1)), b"", 110),
    "settings-of-windows": (lambda number: settings((4, number)), b"", 60),
    "acknowledgements": (lambda _: frame(SETTINGS, ACK, 0), b"", 110),
    "pings": (lambda _: frame(PING, 0, 0, bytes(8)), b"", 4200),
    "answers-to-no-ping": (lambda _: frame(PING, ACK, 0, bytes(8)), b"", 4200),
    "empty-data": (lambda _: frame(DATA, 0, 1), post(1), 1100),
    "padded-empty-data": (lambda _: frame(DATA, PADDED, 1, b"\x01\0"), post(1), 1100),
    "credit-in-mass": (lambda _: frame(WINDOW_UPDATE, 0, 0, word(1)), b"", 20_100),
    "priorities": (lambda number: frame(PRIORITY, 0, 2 * number + 1, bytes(5)), b"", 5100),
    "unknown-frames": (lambda _: frame(0x42, 0, 0), b"", 5100),
    "leaving-again-and-again": (lambda _: frame(GOAWAY, 0, 0, bytes(8)), b"", 5100),
    "resets-of-streams-that-are-over": (lambda _: frame(RST_STREAM, 0, 1, word(8)), rapid_reset(0), 4200),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_ends_the_connection(name: str) -> None:
    frames, before, bound = ATTACKS[name]
    assert 0 < ended_after(frames, 2 * bound, before=before) <= bound


def test_continuations_are_few() -> None:
    """Empty ones, and small ones: by their count, with one block alone."""
    for payload in (b"", b"\x00"):
        client = Client()
        events = client.send(frame(HEADERS, END_STREAM, 1, block(head())))
        sent = 0
        while not any(isinstance(event, ConnectionEnded) for event in events):
            events = client.send(frame(CONTINUATION, 0, 1, payload))
            sent += 1
            assert sent < 100
        assert events[-1].code is ErrorCode.ENHANCE_YOUR_CALM  # type: ignore[union-attr]


def test_large_continuations_end_by_their_size() -> None:
    client = Client()
    client.send(frame(HEADERS, 0, 1, bytes(16_384)))
    events = [client.send(frame(CONTINUATION, 0, 1, bytes(16_384))) for _ in range(4)]
    assert [len(each) for each in events] == [0, 0, 0, 1]
    assert events[-1][-1].code is ErrorCode.ENHANCE_YOUR_CALM  # type: ignore[union-attr]


def sent_until_it_ends(client: Client, frames: Callable[[int], bytes], most: int) -> int:
    """Send slowly enough for every rate, and never read; return how many it took until the connection ended."""
    for number in range(most):
        client.now = float(number)
        events = client.send(frames(number))
        if events:
            assert isinstance(events[-1], ConnectionEnded)
            assert events[-1].code is ErrorCode.ENHANCE_YOUR_CALM
            return number
    return most


def test_acknowledgements_that_nobody_reads_are_bounded() -> None:
    client = Client()
    assert sent_until_it_ends(client, lambda _: frame(PING, 0, 0, bytes(8)), 10_000) == 4096
    assert len(b"".join(client.sender.take_output(1))) < 100_000


def test_answers_that_nobody_reads_are_bounded() -> None:
    """Each is refused with 431, for which the driver has nothing to do."""
    client = Client(Http2Limits(max_fields=3))
    sent = sent_until_it_ends(client, lambda number: request(2 * number + 1, TOO_MANY), 40_000)
    assert 1000 < sent < 22_000
    assert len(b"".join(client.sender.take_output(1))) < 1 << 20


# what must not trip


def test_heavy_use_with_a_ping_and_credit_for_each_call() -> None:
    """10,000 calls a second on one connection, for three seconds."""
    client = Client()
    client.send(CREDIT)
    answered = 0
    for number in range(0, 30_000, 100):
        client.now = number / 10_000
        for stream in range(2 * number + 1, 2 * (number + 100) + 1, 2):
            grown = frame(WINDOW_UPDATE, 0, 0, word(1)) if stream % 4 == 1 else frame(WINDOW_UPDATE, 0, stream, word(1))
            sent = post(stream) + frame(DATA, END_STREAM, stream, b"x" * 50) + grown + frame(PING, 0, 0, bytes(8))
            for event in client.send(sent):
                assert isinstance(event, RequestReceived | BodyReceived)
                if isinstance(event, BodyReceived):
                    client.codec.acknowledge(stream, event.credit)
                    client.sender.head(stream, 200, ())
                    client.sender.body(stream, [b"y" * 50])
                    client.sender.trailers(stream, ((b"grpc-status", b"0"),))
                    answered += 1
        client.sender.take_output(1 << 20)
        client.events.clear()
    assert answered == 30_000
    assert client.codec.stream_count == 0


def test_cancelling_100_calls_a_second_for_a_minute_and_1000_at_once_now_and_then() -> None:
    client = Client()
    stream = 1
    aborted = 0
    for tick in range(600):
        client.now = tick / 10
        many = 10 + (1014 if tick % 100 == 50 else 0)
        streams = range(stream, stream + 2 * many, 2)
        stream += 2 * many
        for each in streams:
            client.send(post(each))
        for each in streams:
            aborted += sum(
                isinstance(event, StreamAborted) for event in client.send(frame(RST_STREAM, 0, each, word(8)))
            )
        client.take()
    assert aborted == 600 * 10 + 6 * 1014
    assert client.codec.stream_count == 0


def test_stream_of_large_frames_with_credit_for_each() -> None:
    """A client that gives credit for each frame of a body that it reads, twice, and pings: 30,000 frames at once."""
    client = Client()
    client.send(post(1))
    client.sender.head(1, 200, ())
    client.sender.body(1, [bytes(1 << 20)] * 480)
    events = []
    taken = 0
    while client.sender.unsent(1):
        sizes = [len(each.payload) for each in client.take(16_384) if each.kind == DATA]
        taken += len(sizes)
        credit = word(sum(sizes))
        ping = frame(PING, 0, 0, bytes(8))
        events += client.send(frame(WINDOW_UPDATE, 0, 0, credit) + frame(WINDOW_UPDATE, 0, 1, credit) + ping)
    assert taken > 30_000
    assert events == []
