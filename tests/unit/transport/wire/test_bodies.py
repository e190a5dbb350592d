"""Bodies on their way in: the memory they share, gathered ones, and ones that are read in pieces."""

from __future__ import annotations

import asyncio

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.wire.bodies import BufferBudget, LengthFraming, PartsBody, WholeBody, framing
from geartrain.transport.wire.chunks import ChunkReader
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, ClientGoneError
from geartrain.transport.wire.heads import WireError

WANTED = 262_144  # bytes that may wait for a reader


class Resumed:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_budget_counts() -> None:
    budget = BufferBudget(100)
    states = []
    for size in (100, 1, 1):
        budget.take(size)
        states.append(budget.is_spent)
    budget.give_back(2)
    assert [*states, budget.is_spent] == [False, True, True, False]
    assert budget.used == 100


def test_budget_without_a_limit_is_never_spent() -> None:
    budget = BufferBudget(0)
    budget.take(10**12)
    budget.check(10**12)
    assert not budget.is_spent


def test_budget_knows_what_can_never_be_held() -> None:
    budget = BufferBudget(100)
    budget.check(100)
    with pytest.raises(WireError, match="--max-buffered-size") as caught:
        budget.check(101)
    assert caught.value.status == 503


def test_who_waits_for_memory_goes_on_in_order_while_there_is_some() -> None:
    budget = BufferBudget(100)
    budget.take(150)
    order: list[str] = []

    def goes_on(name: str, size: int) -> None:
        order.append(name)
        budget.take(size)

    budget.wait("a", lambda: goes_on("a", 30))
    budget.wait("b", lambda: goes_on("b", 30))
    budget.wait("left", lambda: goes_on("left", 0))
    budget.wait("c", lambda: goes_on("c", 0))
    budget.leave("left")
    budget.leave("never waited")
    budget.give_back(40)
    assert order == [], "there is still too little"
    budget.give_back(60)  # 50 are in use: a takes 30, b takes 30 more
    assert order == ["a", "b"]
    budget.give_back(10)
    assert order == ["a", "b", "c"]
    budget.give_back(100)
    assert order == ["a", "b", "c"], "each is called once"


def test_a_waiter_that_waits_again_does_not_keep_the_loop() -> None:
    budget = BufferBudget(10)
    budget.take(20)
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        budget.take(20)
        budget.wait("a", again)

    budget.wait("a", again)
    budget.give_back(20)
    assert len(calls) == 1


def test_length_framing() -> None:
    body = LengthFraming(5)
    assert body.feed(b"abc") == ([b"abc"], 3)
    assert not body.is_complete
    assert body.feed(b"defgh") == ([b"de"], 2)
    assert body.is_complete


def test_framing_by_length() -> None:
    assert isinstance(framing(5, 0), LengthFraming)
    assert isinstance(framing(UNKNOWN_LENGTH, 0), ChunkReader)
    assert framing(0, 0).is_complete


@pytest.mark.parametrize(
    "pieces", [[], [b""], [b"abc"], [b"", b"abc"], [b"a", b"b", b"", b"c"], [b"ab", b"c"]], ids=repr
)
def test_whole_body(pieces: list[bytes]) -> None:
    body = WholeBody()
    for piece in pieces:
        body.take([piece])
    together = WholeBody()
    together.take(pieces)
    assert bytes(body.whole()) == bytes(together.whole()) == b"".join(pieces)
    assert body.size == together.size == len(b"".join(pieces))


def test_a_body_of_one_piece_is_not_copied() -> None:
    piece = b"x" * 1000
    body = WholeBody()
    body.take([piece])
    assert body.whole() is piece


# in parts


async def test_parts_in_order() -> None:
    body = PartsBody(0, Resumed())
    body.take([b"a", b"", b"b"])
    body.take([b"c"])
    body.complete()
    assert [await body.read() for _ in range(5)] == [b"a", b"b", b"c", b"", b""]


async def test_the_reader_waits_for_the_next_part() -> None:
    body = PartsBody(0, Resumed())
    reading = asyncio.ensure_future(body.read())
    await asyncio.sleep(0)
    assert not reading.done()
    body.take([b""])
    await asyncio.sleep(0)
    assert not reading.done(), "nothing has come"
    body.take([b"a"])
    assert await reading == b"a"
    ending = asyncio.ensure_future(body.read())
    await asyncio.sleep(0)
    body.complete()
    assert await ending == b""


async def test_backpressure() -> None:
    resumed = Resumed()
    body = PartsBody(0, resumed)
    states = []
    for pieces in ([b"x" * (WANTED - 1)], [b"y", b"z"]):
        body.take(pieces)
        states.append(body.is_full)
    assert states == [False, True]
    assert len(await body.read()) == WANTED - 1
    assert (body.is_full, resumed.count) == (False, 1)
    await body.read()
    await body.read()
    assert resumed.count == 1, "it was not full any more"


async def test_parts_beyond_the_limit() -> None:
    body = PartsBody(10, Resumed())
    body.take([b"x" * 10])
    assert await body.read() == b"x" * 10
    body.take([b"y"])
    body.take([b"z" * 2 * WANTED])
    assert not body.is_full, "what is beyond the limit is not kept"
    for _ in range(2):
        with pytest.raises(GeartrainError, match=r"10 bytes.*--max-body-size") as caught:
            await body.read()
        assert caught.value.code is Code.TOO_LARGE


@pytest.mark.parametrize("waits", [True, False])
async def test_parts_that_break_off(*, waits: bool) -> None:
    body = PartsBody(0, Resumed())
    if waits:
        reading = asyncio.ensure_future(body.read())
        await asyncio.sleep(0)
        body.break_off()
        with pytest.raises(ClientGoneError):
            await reading
    body.take([b"a"])
    body.break_off()
    with pytest.raises(ClientGoneError):
        await body.read()
