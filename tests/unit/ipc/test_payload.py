"""Payloads: each travels the way that suits its size, comes as it went, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.memory import LARGEST, WORTHWHILE, Region
from geartrain.ipc.messages import Handle, InFile, Inline, Payload
from geartrain.ipc.payload import PayloadReader, PayloadWriter, discard


class Side:
    """A writer and the reader of the other side, with memory of their own if there is any."""

    def __init__(self, folder: Path, *regions: Region) -> None:
        numbers = itertools.count()
        self.opened = {region.path: Region.open(region.path) for region in regions}
        self.paths = [*self.opened]
        self.writer = PayloadWriter(lambda: regions, lambda: folder / f"payload-{next(numbers)}")
        self.reader = PayloadReader(self.open)

    def open(self, path: str) -> Region:
        """Find the region of a path, on the side of the reader."""
        if path not in self.opened:
            raise OSError("there is no such region")
        return self.opened[path]

    def at(self, size: int, offset: int = 0, region: int = 0) -> Handle:
        """A place in a region."""
        return Handle(self.paths[region], offset, size)

    def free(self, placed: Payload | None) -> None:
        """Let the writer write again where a payload lies."""
        assert isinstance(placed, Handle)
        self.opened[placed.path].free()

    def close(self) -> None:
        """Close what the reader has opened."""
        for region in self.opened.values():
            region.close()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    region = Region.create()
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
    assert placed == side.at(size)
    assert side.reader.read(placed) == data
    # The memory is taken, so the next piece travels otherwise.
    assert side.writer.place([b"x" * (WORTHWHILE + 1)], may_share=True) == Inline(b"x" * (WORTHWHILE + 1))
    side.free(placed)
    assert side.writer.place([data], may_share=True) == side.at(size)


def test_what_one_region_holds_does_not_hold_up_the_next_piece(tmp_path: Path) -> None:
    regions = Region.create(), Region.create()
    side = Side(tmp_path, *regions)
    size = WORTHWHILE + 1
    pieces = [bytes([number]) * size for number in range(3)]
    first, second, third = (side.writer.place([piece], may_share=True) for piece in pieces)
    assert (first, second, third) == (side.at(size), side.at(size, region=1), Inline(pieces[2]))
    assert first is not None
    assert second is not None
    assert [side.reader.read(placed) for placed in (first, second)] == pieces[:2]
    side.free(second)
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
    assert placed == [side.at(WORTHWHILE, 0), side.at(2, WORTHWHILE), side.at(0, WORTHWHILE + 2)]
    read = [bytes(side.reader.read(each)) for each in placed if each is not None]
    assert read == [b"".join(parts) for parts in pieces]


def test_pieces_beyond_the_memory_travel_otherwise(side: Side) -> None:
    half = [b"x" * (LARGEST // 2 + 1)]
    assert side.writer.share([half, half, [b"y"]]) == [
        side.at(LARGEST // 2 + 1, 0),
        None,
        side.at(1, LARGEST // 2 + 1),
    ]
    side.free(side.at(1))
    assert side.writer.share([[b"x"], [b"y"]]) == [None, None], "so little is not worth it"


def test_withdrawn_pieces_leave_the_memory_free(side: Side) -> None:
    side.writer.withdraw()  # nothing is there
    for _ in range(2):
        assert side.writer.place([b"x" * 100_000], may_share=True) == side.at(100_000)
        side.writer.withdraw()


def test_without_memory_there_are_other_ways(bare: Side) -> None:
    assert bare.writer.place([b"x" * INLINE_LIMIT], may_share=True) == Inline(b"x" * INLINE_LIMIT)
    assert bare.writer.place([b"x" * (INLINE_LIMIT + 1)], may_share=True) is None
    bare.writer.withdraw()
    with pytest.raises(OSError, match="no such region"):
        bare.reader.read(Handle("/proc/1/fd/99", 0, 5))


def test_memory_that_cannot_be_had_is_no_error(tmp_path: Path) -> None:
    def refuse() -> list[Region]:
        raise OSError("no")

    writer = PayloadWriter(refuse, lambda: tmp_path / "file")
    assert writer.place([b"x" * 100_000], may_share=True) == Inline(b"x" * 100_000)
    writer.withdraw()


def test_size_that_is_not_there_is_an_error(side: Side) -> None:
    side.writer.place([b"x" * 100_000], may_share=True)
    with pytest.raises(OSError, match="are to be in shared memory that has"):
        side.reader.read(side.at(100_000, 10_000_000))


def test_discarded_payloads_leave_nothing(side: Side) -> None:
    discard(Inline(b"x"))
    placed = side.writer.to_file([b"x"])
    for _ in range(2):
        discard(placed)
        assert not Path(placed.path).exists()


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
