"""Messages that are cut out of a body in pieces."""

from __future__ import annotations

import asyncio

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.wire.bodies import BufferBudget, GatheringReader, PartsBody
from geartrain.transport.wire.exchange import ClientGoneError


def make(*pieces: bytes, is_whole: bool = True, limit: int = 0, patience: float = 0) -> GatheringReader:
    body = PartsBody(0, lambda: None)
    body.take(pieces)
    if is_whole:
        body.complete()
    return GatheringReader(body, BufferBudget(limit), patience)


@pytest.mark.parametrize(
    "pieces", [(b"abcdefgh",), (b"abc", b"defgh"), (b"a", b"b", b"cdefg", b"h"), (b"abcde", b"fgh"), (b"abcdef", b"gh")]
)
async def test_pieces_are_cut_anew(pieces: tuple[bytes, ...]) -> None:
    reader = make(*pieces)
    assert [bytes(await reader.gather(size)) for size in (3, 0, 2, 3, 4)] == [b"abc", b"", b"de", b"fgh", b""]


async def test_body_that_ends_too_early_gives_less() -> None:
    reader = make(b"abc", b"d")
    assert await reader.gather(9) == b"abcd"
    assert await reader.gather(1) == b""


async def test_nothing_is_awaited_for_a_message_without_bytes() -> None:
    assert await make(is_whole=False).gather(0) == b""


async def test_views_become_bytes() -> None:
    body = PartsBody(0, lambda: None)
    body.take([memoryview(b"abcdef")])
    reader = GatheringReader(body, BufferBudget(0), 0)
    assert type(await reader.gather(4)) is bytes
    assert await reader.read() == b"ef"


async def test_rest_is_read_in_pieces() -> None:
    reader = make(b"abcdef", b"gh")
    assert await reader.gather(2) == b"ab"
    assert [await reader.read() for _ in range(3)] == [b"cdef", b"gh", b""]


async def test_reader_is_told_of_a_client_that_has_gone() -> None:
    body = PartsBody(0, lambda: None)
    reader = GatheringReader(body, BufferBudget(0), 0)
    waiting = asyncio.ensure_future(reader.gather(2))
    await asyncio.sleep(0)
    body.take([b"a"])
    body.break_off()
    with pytest.raises(ClientGoneError):
        await waiting


async def test_what_is_gathered_counts_until_the_next_is_asked_for() -> None:
    body = PartsBody(0, lambda: None)
    budget = BufferBudget(0)
    reader = GatheringReader(body, budget, 0)
    body.take([b"ab", b"cd", b"ef"])
    assert await reader.gather(4) == b"abcd"
    assert budget.used == 4
    assert await reader.gather(2) == b"ef"
    assert budget.used == 0


async def test_gathering_waits_for_memory() -> None:
    body = PartsBody(0, lambda: None)
    budget = BufferBudget(10)
    reader = GatheringReader(body, budget, 0)
    budget.take(8)
    body.take([b"ab", b"cd"])
    waiting = asyncio.ensure_future(reader.gather(4))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(8)
    assert await waiting == b"abcd"


async def test_gathering_does_not_wait_for_memory_for_ever() -> None:
    body = PartsBody(0, lambda: None)
    budget = BufferBudget(10)
    reader = GatheringReader(body, budget, 0.01)
    budget.take(9)
    body.take([b"ab", b"cd"])
    with pytest.raises(GeartrainError, match="--max-buffered-size") as caught:
        await reader.gather(4)
    assert caught.value.code is Code.QUEUE_FULL
    reader.close()
    assert budget.used == 9
