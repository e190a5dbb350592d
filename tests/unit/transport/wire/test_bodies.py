"""Bodies on their way in: the memory they share, gathered ones, and ones that are read in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.wire.bodies import BufferBudget, ChunkReader, GatheredBody, LengthFraming, PartsBody, framing
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Accepted, ClientGoneError, unannounced
from geartrain.transport.wire.limits import WireError

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


def never(*_: Any) -> Any:
    raise AssertionError


def told(data: Any) -> int:
    return data[0] if len(data) else UNKNOWN_LENGTH


def gathered(*, limit: int = 0, announced: Any = unannounced, memory: memoryview | None = None) -> GatheredBody:
    """A body of at most 100 bytes."""
    return GatheredBody(Accepted(never, 100, never, announced=announced), BufferBudget(limit), memory)


@pytest.mark.parametrize(
    "pieces", [[], [b""], [b"abc"], [b"", b"abc"], [b"a", b"b", b"", b"c"], [b"ab", b"c"]], ids=repr
)
@pytest.mark.parametrize("is_placed", [False, True])
def test_whole_body(pieces: list[bytes], *, is_placed: bool) -> None:
    size = len(b"".join(pieces))
    body, together = (gathered(memory=memoryview(bytearray(size)) if is_placed else None) for _ in range(2))
    for piece in pieces:
        body.take([piece])
    together.take(pieces)
    assert body.size == together.size == size
    assert bytes(body.whole()) == bytes(together.whole()) == b"".join(pieces)


def test_a_body_of_one_piece_is_not_copied() -> None:
    piece = b"x" * 1000
    body = gathered()
    body.take([piece])
    assert body.whole() is piece


def test_a_body_that_has_been_handed_over_is_not_held() -> None:
    memory = memoryview(bytearray(4))
    body = gathered(memory=memory)
    body.room[:2] = b"ab"
    body.grow(2)
    body.take([b"cd"])
    handed_over: Any = body.whole()
    assert handed_over is memory
    assert (bytes(memory), body.whole(), len(body.room)) == (b"abcd", b"", 0)


def test_bytes_are_counted_until_the_end() -> None:
    budget = BufferBudget(0)
    body = GatheredBody(Accepted(never, 100, never, announced=told), budget)
    body.take([memoryview(b"\x05ab")])
    body.take([b"cd"])
    assert (budget.used, body.is_too_large, body.whole()) == (5, False, b"\x05abcd")
    assert budget.used == 5, "its exchange has it"
    body.close()
    assert budget.used == 0


def test_body_that_says_that_it_is_too_large() -> None:
    body = gathered(announced=told)
    body.take([b"\xc8"])
    assert body.is_too_large


def test_body_that_becomes_too_large() -> None:
    body = gathered(announced=told)
    for _ in range(11):
        assert not body.is_too_large
        body.take([b"\0" * 10])
    assert body.is_too_large


def test_body_that_no_memory_holds() -> None:
    budget = BufferBudget(30)
    body = GatheredBody(Accepted(never, 100, never, announced=told), budget)
    with pytest.raises(WireError, match="--max-buffered-size"):
        body.take([b"\x28ab"])
    body.close()
    assert budget.used == 0


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
