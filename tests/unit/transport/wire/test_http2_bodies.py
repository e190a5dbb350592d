"""Bodies over HTTP/2: when their clients may send more."""

from __future__ import annotations

import gc
import weakref
from http import HTTPStatus
from typing import Any

import pytest

from geartrain.transport.http2.interface import BodyReceived, Event, PingAnswered
from geartrain.transport.wire.bodies import BufferBudget
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Accepted, AcceptedInParts, Answer
from geartrain.transport.wire.heads import WireError
from geartrain.transport.wire.http2_bodies import BodyParts, GatheredBody, PiecewiseBody, by_body


def refuse(_limit: int) -> Answer:
    return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def never(*_: Any) -> Any:
    raise AssertionError


def told(data: Any) -> int:
    return data[0] if len(data) else UNKNOWN_LENGTH


class Gathered:
    """A body of at most 100 bytes, and the credit that its client has got."""

    def __init__(self, limit: int = 0) -> None:
        self.credit = 0
        self.resumed = 0
        self.budget = BufferBudget(limit)
        accepted = Accepted(never, 100, refuse, announced=told)
        self.body = GatheredBody(accepted, self.budget, self._acknowledge, on_memory=self._resume)

    def _acknowledge(self, size: int) -> None:
        self.credit += size

    def _resume(self) -> None:
        self.resumed += 1


def test_what_has_come_may_be_followed_by_more() -> None:
    it = Gathered()
    it.body.take([memoryview(b"\x05ab")], 5)
    it.body.take([b"cd"], 2)
    assert (it.credit, it.budget.used, it.body.is_too_large) == (7, 5, False)
    assert it.body.whole() == b"\x05abcd"
    it.body.close()
    assert it.budget.used == 0


def test_body_that_says_that_it_is_too_large() -> None:
    it = Gathered()
    it.body.take([b"\xc8"], 1)
    assert it.body.is_too_large


def test_body_that_becomes_too_large() -> None:
    it = Gathered()
    for _ in range(11):
        assert not it.body.is_too_large
        it.body.take([b"\0" * 10], 10)
    assert it.body.is_too_large


def test_client_waits_for_memory() -> None:
    it = Gathered(limit=50)
    it.budget.take(45)
    it.body.take([b"\0" * 10], 10)
    assert (it.credit, it.body.waits_for_memory) == (0, True)
    it.budget.give_back(20)
    assert (it.credit, it.resumed, it.body.waits_for_memory) == (10, 1, False)


def test_body_that_no_memory_holds() -> None:
    it = Gathered(limit=30)
    with pytest.raises(WireError, match="--max-buffered-size"):
        it.body.take([b"\x28ab"], 3)
    it.body.close()
    assert it.budget.used == 0


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
