"""Bodies over HTTP/2: when their clients may send more."""

from __future__ import annotations

import gc
import weakref
from http import HTTPStatus
from typing import Any

from geartrain.transport.http2.interface import BodyReceived, Event, PingAnswered
from geartrain.transport.wire.bodies import BufferBudget
from geartrain.transport.wire.exchange import AcceptedInParts, Answer
from geartrain.transport.wire.http2_stream import BodyParts, PiecewiseBody, by_body


def refuse(_limit: int) -> Answer:
    return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def never(*_: Any) -> Any:
    raise AssertionError


async def test_client_waits_for_the_reader() -> None:
    credit: list[int] = []
    body = PiecewiseBody(AcceptedInParts(never, 0, refuse), credit.append)
    body.take([bytes(200_000)], 200_000)
    assert (credit, body.is_full) == ([200_000], False)
    body.take([memoryview(bytes(100_000))], 100_001)
    assert (credit, body.is_full) == ([200_000], True)
    assert len(await body.reader.read()) == 200_000
    assert (credit, body.is_full) == ([200_000, 100_001], False)
    assert len(await body.reader.read()) == 100_000


class Stream:
    """A stream with a body, which refer to each other while it is open."""

    def __init__(self) -> None:
        self.body = PiecewiseBody(AcceptedInParts(never, 0, refuse, is_bidirectional=True), self.acknowledge)
        self.reader = self.body.messages(BufferBudget(0), 0)

    def acknowledge(self, credit: int) -> None:
        """See `StreamOwner`."""


async def test_s2_a_stream_whose_body_is_read_in_pieces_leaves_no_cycle() -> None:
    gc.disable()
    try:
        stream = Stream()
        stream.body.take([b"ab"], 2)
        stream.body.close()
        left = weakref.ref(stream), weakref.ref(stream.body.reader)
        del stream
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


async def test_memory_of_messages_is_given_back_at_the_end() -> None:
    budget = BufferBudget(0)
    body = PiecewiseBody(AcceptedInParts(never, 0, refuse, is_bidirectional=True), lambda _: None)
    reader = body.messages(budget, 0)
    body.take([b"ab"], 2)
    body.take([b"cd"], 2)
    assert await reader.gather(4) == b"abcd"
    assert budget.used == 4
    body.close()
    assert budget.used == 0


def test_parts_of_a_body_come_together() -> None:
    def part(stream: int, data: bytes, *, is_last: bool = False) -> BodyReceived:
        return BodyReceived(stream, data, len(data), is_last)

    ping = PingAnswered(bytes(8))
    events: list[Event] = [
        part(1, b"ab"),
        part(1, b"c"),
        part(3, b"d", is_last=True),
        ping,
        part(1, b"e"),
        part(1, b"", is_last=True),
    ]
    assert list(by_body(events)) == [
        BodyParts(1, [b"ab", b"c"], 3, is_last=False),
        part(3, b"d", is_last=True),
        ping,
        BodyParts(1, [b"e", b""], 1, is_last=True),
    ]
    assert list(by_body([])) == []
