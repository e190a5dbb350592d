"""Payloads: each travels the way that suits its size, comes as it went, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.messages import InFile, Inline, InMemory
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.ipc.shared_memory import LARGEST, WORTHWHILE, MemoryRegion


class Side:
    """A writer and the reader of the other side, with memory of their own if there is any."""

    def __init__(self, folder: Path, *regions: MemoryRegion) -> None:
        numbers = itertools.count()
        self.opened = [MemoryRegion.open(region.path) for region in regions]
        self.writer = PayloadWriter(lambda: regions, lambda: folder / f"payload-{next(numbers)}")
        self.reader = PayloadReader(lambda: self.opened)

    def close(self) -> None:
        """Close what the reader has opened."""
        for region in self.opened:
            region.close()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    region = MemoryRegion.create()
    side = Side(tmp_path, region)
    yield side
    region.close()
    side.close()


@pytest.fixture
def bare(tmp_path: Path) -> Side:
    return Side(tmp_path)


def test_small_piece_travels_in_the_message(side: Side) -> None:
    placed = side.writer.place([b"ab", memoryview(b"c")], may_share=True)
    assert placed == Inline(b"abc")
    assert side.reader.read(placed) == b"abc"
    assert side.writer.place([b"x" * WORTHWHILE], may_share=True) == Inline(b"x" * WORTHWHILE)


@pytest.mark.parametrize("size", [WORTHWHILE + 1, INLINE_LIMIT + 1, LARGEST])
def test_large_piece_lies_in_memory_until_it_has_been_read(side: Side, size: int) -> None:
    data = os.urandom(size)
    placed = side.writer.place([data[:10], data[10:]], may_share=True)
    assert placed == InMemory(size)
    assert side.reader.read(placed) == data
    # The memory is taken, so the next piece travels otherwise.
    assert side.writer.place([b"x" * (WORTHWHILE + 1)], may_share=True) == Inline(b"x" * (WORTHWHILE + 1))
    side.reader.discard(placed)
    assert side.writer.place([data], may_share=True) == InMemory(size)


def test_what_one_region_holds_does_not_hold_up_the_next_piece(tmp_path: Path) -> None:
    regions = MemoryRegion.create(), MemoryRegion.create()
    side = Side(tmp_path, *regions)
    size = WORTHWHILE + 1
    pieces = [bytes([number]) * size for number in range(3)]
    first, second, third = (side.writer.place([piece], may_share=True) for piece in pieces)
    assert (first, second, third) == (InMemory(size), InMemory(size, region=1), Inline(pieces[2]))
    assert first is not None
    assert second is not None
    assert [side.reader.read(placed) for placed in (first, second)] == pieces[:2]
    side.reader.discard(second)
    assert side.writer.place([pieces[2]], may_share=True) == second
    side.writer.withdraw()  # the first piece is still to be read
    assert [region.is_free() for region in regions] == [False, True]
    for region in regions:
        region.close()
    side.close()


def test_piece_that_must_not_be_shared_travels_in_the_message(side: Side) -> None:
    assert side.writer.place([b"x" * INLINE_LIMIT], may_share=False) == Inline(b"x" * INLINE_LIMIT)
    assert side.writer.place([b"x" * INLINE_LIMIT, b"y"], may_share=False) is None


def test_largest_piece_goes_to_a_file_that_is_gone_when_it_has_been_read(side: Side) -> None:
    assert side.writer.place([b"x" * (LARGEST + 1)], may_share=True) is None
    placed = side.writer.to_file([b"ab", bytearray(b"c")])
    assert Path(placed.path).read_bytes() == b"abc"
    assert side.reader.read(placed) == b"abc"
    assert not Path(placed.path).exists()


def test_pieces_of_one_frame_lie_one_behind_the_other(side: Side) -> None:
    pieces = [[b"a" * WORTHWHILE], [b"b", b"c"], [b""]]
    placed = side.writer.share(pieces)
    assert placed == [InMemory(WORTHWHILE, 0), InMemory(2, WORTHWHILE), InMemory(0, WORTHWHILE + 2)]
    read = [bytes(side.reader.read(each)) for each in placed if each is not None]
    assert read == [b"".join(parts) for parts in pieces]


def test_pieces_beyond_the_memory_travel_otherwise(side: Side) -> None:
    half = [b"x" * (LARGEST // 2 + 1)]
    assert side.writer.share([half, half, [b"y"]]) == [
        InMemory(LARGEST // 2 + 1, 0),
        None,
        InMemory(1, LARGEST // 2 + 1),
    ]
    side.reader.discard(InMemory(1))
    assert side.writer.share([[b"x"], [b"y"]]) == [None, None], "so little is not worth it"


def test_withdrawn_pieces_leave_the_memory_free(side: Side) -> None:
    side.writer.withdraw()  # nothing is there
    for _ in range(2):
        assert side.writer.place([b"x" * 100_000], may_share=True) == InMemory(100_000)
        side.writer.withdraw()


def test_without_memory_there_are_other_ways(bare: Side) -> None:
    assert bare.writer.place([b"x" * INLINE_LIMIT], may_share=True) == Inline(b"x" * INLINE_LIMIT)
    assert bare.writer.place([b"x" * (INLINE_LIMIT + 1)], may_share=True) is None
    bare.writer.withdraw()
    bare.reader.discard(InMemory(5))
    with pytest.raises(OSError, match="shared memory, and there is none"):
        bare.reader.read(InMemory(5))


def test_memory_that_cannot_be_had_is_no_error(tmp_path: Path) -> None:
    def refuse() -> list[MemoryRegion]:
        raise OSError("no")

    writer, reader = PayloadWriter(refuse, lambda: tmp_path / "file"), PayloadReader(refuse)
    assert writer.place([b"x" * 100_000], may_share=True) == Inline(b"x" * 100_000)
    writer.withdraw()
    reader.discard(InMemory(5))


def test_size_that_is_not_there_is_an_error(side: Side) -> None:
    side.writer.place([b"x" * 100_000], may_share=True)
    with pytest.raises(OSError, match="are to be in shared memory that has"):
        side.reader.read(InMemory(100_000, 10_000_000))


def test_discarded_payloads_leave_nothing(side: Side) -> None:
    side.reader.discard(Inline(b"x"))
    placed = side.writer.to_file([b"x"])
    for _ in range(2):
        side.reader.discard(placed)
        assert not Path(placed.path).exists()
    shared = side.writer.place([b"x" * 100_000], may_share=True)
    assert shared is not None
    side.reader.discard(shared)
    assert side.writer.place([b"x" * 100_000], may_share=True) == shared


def test_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    writer = PayloadWriter(list, lambda: tmp_path / "nowhere" / "file")
    with pytest.raises(FileNotFoundError):
        writer.to_file([b"x"])

    target = tmp_path / "file"
    with pytest.raises(TypeError):
        PayloadWriter(list, lambda: target).to_file([b"x", "no bytes"])  # type: ignore[list-item]
    assert not target.exists()


def test_file_that_is_gone_is_an_error(side: Side) -> None:
    with pytest.raises(FileNotFoundError):
        side.reader.read(InFile("/nowhere/at/all"))
