"""Outputs in the memory of a slot: read in place while the worker goes on, and never lost to it."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator

import pytest

from geartrain.bridge.payloads import LentOutputs, SlotMemory
from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.memory import MAX_KEPT, Region, lease_of
from geartrain.ipc.messages import Handle
from geartrain.ipc.payload import PayloadWriter

LARGE = 100_000  # bytes
SMALL = 20_000


class Worker:
    """The side that writes."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = [Region.open(region.path) for region in regions]
        self._writer = PayloadWriter(lambda: self.regions, lambda: pytest.fail("it fits into memory"))

    def write(self, *pieces: bytes) -> list[Handle]:
        """Leave the pieces of a frame."""
        placed = self._writer.share([[piece] for piece in pieces])
        return [place for place in placed if place is not None]

    @property
    def free(self) -> list[bool]:
        """Which regions may be written to."""
        return [region.is_free() for region in self.regions]


@pytest.fixture
def regions() -> Iterator[list[Region]]:
    regions = [Region.create(), Region.create()]
    yield regions
    for region in regions:
        region.close()


@pytest.fixture
def worker(regions: list[Region]) -> Iterator[Worker]:
    worker = Worker(regions)
    yield worker
    for region in worker.regions:
        region.close()


@pytest.fixture
def outputs(regions: list[Region]) -> LentOutputs:
    def find(path: str) -> Region:
        for region in regions:
            if region.path == path:
                return region
        raise OSError("there is none")

    return LentOutputs(find)


def test_a_large_output_is_read_where_it_lies_until_nobody_needs_it(worker: Worker, outputs: LentOutputs) -> None:
    data = os.urandom(LARGE)
    (place,) = worker.write(data)
    output = outputs.read(place, may_lend=True)
    outputs.finish()
    assert isinstance(output, memoryview)
    assert output == data
    part = output[10:20]
    del output
    assert worker.free == [False, True], "a part of it is still read"
    assert part == data[10:20]
    del part
    assert worker.free == [True, True]


def test_while_one_is_lent_the_others_are_copied(worker: Worker, outputs: LentOutputs) -> None:
    pieces = [bytes([number]) * LARGE for number in range(4)]
    read = []
    for piece in pieces:
        (place,) = worker.write(piece)
        read.append(outputs.read(place, may_lend=True))
        outputs.finish()
        assert worker.free == [False, True]
    assert [type(output) for output in read] == [memoryview, bytes, bytes, bytes]
    assert read == pieces
    read.clear()
    (place,) = worker.write(pieces[0])
    assert isinstance(outputs.read(place, may_lend=True), memoryview)


def test_memory_grows_where_other_models_hold_outputs() -> None:
    memory = SlotMemory(is_possible=True)
    memory.inputs()
    outputs, read = LentOutputs(memory.output, memory), []
    worker = Worker([])
    for number in range(5):
        for path in memory.paths[len(worker.regions) :]:
            worker.regions.append(Region.open(path))
        (place,) = worker.write(bytes([number]) * LARGE)
        read.append(outputs.read(place, may_lend=True))
        outputs.finish()
        _check_hold(read[-1], is_possible=number < 2)
    assert [type(output) for output in read] == [memoryview, memoryview, memoryview, bytes, bytes]
    assert len(memory.paths) == 4
    assert read == [bytes([number]) * LARGE for number in range(5)]
    kept = sum(memory.output(path).kept for path in memory.paths)
    assert kept <= MAX_KEPT
    read.clear()
    assert worker.free == [True] * 4
    for region in worker.regions:
        region.close()
    memory.close()


def _check_hold(output: Buffer, *, is_possible: bool) -> None:
    lease = lease_of(output)
    if lease is not None:
        assert lease.hold is not None
        assert lease.hold() is is_possible


def test_outputs_of_one_frame_are_lent_together(worker: Worker, outputs: LentOutputs) -> None:
    pieces = [bytes([number]) * LARGE for number in range(3)]
    first, *others = [outputs.read(place, may_lend=True) for place in worker.write(*pieces)]
    outputs.finish()
    assert [first, *others] == pieces
    assert {type(output) for output in (first, *others)} == {memoryview}
    others.clear()
    assert worker.free == [False, True]
    del first
    assert worker.free == [True, True]


def test_what_the_memory_has_grown_by_in_a_frame_is_seen(worker: Worker, outputs: LentOutputs) -> None:
    (place,) = worker.write(b"x" * LARGE)
    outputs.read(place, may_lend=True)
    outputs.finish()  # the memory is mapped now, as large as it is
    pieces = [b"a" * LARGE, b"b" * 20 * LARGE]
    read = [outputs.read(place, may_lend=True) for place in worker.write(*pieces)]
    outputs.finish()
    assert read == pieces
    read.clear()
    assert worker.free == [True, True]


@pytest.mark.parametrize(("size", "may_lend"), [(SMALL, True), (LARGE, False)])
def test_what_is_small_or_kept_is_copied(worker: Worker, outputs: LentOutputs, size: int, may_lend: bool) -> None:
    (place,) = worker.write(b"x" * size)
    output = outputs.read(place, may_lend=may_lend)
    assert worker.free == [False, True], "others of the frame may have to be read"
    outputs.finish()
    assert output == b"x" * size
    assert type(output) is bytes
    assert worker.free == [True, True]


def test_what_is_lent_stays_when_the_slot_is_gone(worker: Worker, outputs: LentOutputs, regions: list[Region]) -> None:
    data = os.urandom(LARGE)
    (place,) = worker.write(data)
    output = outputs.read(place, may_lend=True)
    outputs.finish()
    for region in (*regions, *worker.regions):
        region.close()
    assert output == data
    del output


def test_another_thread_may_be_the_last_to_read(worker: Worker, outputs: LentOutputs) -> None:
    (place,) = worker.write(b"x" * LARGE)
    output = [outputs.read(place, may_lend=True)]
    outputs.finish()
    thread = threading.Thread(target=output.clear)
    thread.start()
    thread.join()
    assert worker.free == [True, True]
    (place,) = worker.write(b"y" * LARGE)
    assert isinstance(outputs.read(place, may_lend=True), memoryview)


def test_memory_beyond_what_is_kept_is_given_back_when_it_has_been_read(
    worker: Worker, outputs: LentOutputs, regions: list[Region]
) -> None:
    kept = regions[0].kept = 25 * mmap.PAGESIZE
    (place,) = worker.write(b"x" * 20 * LARGE)
    output = outputs.read(place, may_lend=True)
    outputs.finish()
    taken = os.stat(regions[0].path).st_blocks  # noqa: PTH116 - of a moment
    del output
    assert os.stat(regions[0].path).st_blocks * 512 <= kept < taken * 512  # noqa: PTH116 - of a moment


def test_a_region_that_is_not_there_is_an_error(outputs: LentOutputs) -> None:
    with pytest.raises(OSError, match="there is none"):
        outputs.read(Handle("/proc/1/fd/99", 0, LARGE), may_lend=True)
