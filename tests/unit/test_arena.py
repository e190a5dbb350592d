"""Memory that parent and worker share: pieces come as they went, and nothing of it is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.bridge.arena import LARGEST, WORTHWHILE, Arena
from geartrain.bridge.framing import INLINE_LIMIT, FrameError
from geartrain.bridge.messages import SlotMemory
from geartrain.bridge.parcels import Parcels, new_probe, predict_of, spilled_predict_of
from geartrain.domain.tensors import Tensor, unpack
from geartrain.domain.work import Job
from geartrain.worker.parcels import SharedMemory, can_share


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create()
    yield arena
    arena.close()


def test_piece_comes_as_it_went(arena: Arena) -> None:
    other = Arena.open(arena.path)
    size = arena.write([b"abc", memoryview(b"def"), bytearray(b""), b"g"])
    assert (size, bytes(other.view(size)), other.take(size)) == (7, b"abcdefg", b"abcdefg")
    other.close()


def test_it_grows_on_either_side(arena: Arena) -> None:
    other = Arena.open(arena.path)
    for size in (1, 5000, 100_000, 30, 3_000_000):
        for writer, reader in ((arena, other), (other, arena)):
            data = os.urandom(size)
            assert writer.write([data]) == size
            assert reader.take(size) == data
    other.close()


def test_what_grows_slowly_does_not_grow_often(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[int] = []
    allocate = os.posix_fallocate

    def count(fd: int, offset: int, length: int) -> None:
        grown.append(length)
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", count)
    for size in range(100_000, 1_000_000, 1000):
        arena.write([b"x" * size])
    assert len(grown) < 25


def test_writer_knows_when_it_has_been_read(arena: Arena) -> None:
    other = Arena.open(arena.path)
    assert arena.is_free()
    arena.write([b"one"])
    assert not arena.is_free()
    other.take(3)
    assert arena.is_free()
    other.close()


def test_it_is_gone_with_those_who_have_it_open() -> None:
    before = open_files()
    arena = Arena.create()
    arena.write([b"x" * 100_000])
    other = Arena.open(arena.path)
    view = other.view(100_000)
    other.close()
    other.close()
    arena.close()
    assert bytes(view[:1]) == b"x"  # who still looks at it may go on
    del view
    assert open_files() == before


def test_nobody_can_pull_it_away_from_under_a_reader(arena: Arena) -> None:
    arena.write([b"x" * 100_000])
    with pytest.raises(PermissionError), Path(arena.path).open("r+b") as file:
        file.truncate(0)


def test_size_that_is_not_there_is_an_error(arena: Arena) -> None:
    arena.write([b"abc"])
    with pytest.raises(OSError, match="are to be in shared memory that has"):
        arena.take(1_000_000)


def test_lack_of_memory_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    script = (
        "import resource; from geartrain.bridge.arena import Arena\n"
        "arena = Arena.create(); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: arena.write([b'x' * 1_000_000])\n"
        "except OSError as error: print('error')\n"
        "print(arena.write([b'x']))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["error", "1"]


# the two sides of a slot


def job(size: int) -> Job:
    return Job("id", b"{}", None, (Tensor("x", "UINT8", (size,), os.urandom(size)),), {"a": 1})


@pytest.fixture
def parcels() -> Iterator[Parcels]:
    parcels = Parcels()
    parcels.is_possible = True
    yield parcels
    parcels.close()


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    shared = SharedMemory()
    yield shared
    shared.close()
    shared.close()


def test_small_input_travels_in_the_message(parcels: Parcels) -> None:
    given = job(1000)
    message = predict_of(given, 1, parcels, outputs="/out")
    assert message is not None
    assert message.input is not None
    assert unpack(message.input)[1] == list(given.tensors or ())
    assert message.packed
    assert message.parameters == {"a": 1}


def test_large_input_travels_in_memory(parcels: Parcels, shared: SharedMemory) -> None:
    for size in (WORTHWHILE, 600_000, INLINE_LIMIT * 2):
        given = job(size)
        message = predict_of(given, 1, parcels, outputs="/out")
        assert message is not None
        assert message.memory is not None
        assert (message.input, message.input_file) == (None, None)
        assert unpack(shared.view(message.memory))[1] == list(given.tensors or ())


def test_largest_input_travels_in_a_file(parcels: Parcels) -> None:
    given = job(LARGEST)
    assert predict_of(given, 1, parcels, outputs="/out") is None
    message = spilled_predict_of(given, 1, parcels, outputs="/out", path="/file")
    assert (message.input, message.input_file, message.packed) == (None, "/file", True)
    assert message.memory is not None  # its output may be smaller


def test_without_shared_memory_there_are_other_ways() -> None:
    parcels = Parcels()
    message = predict_of(job(600_000), 1, parcels, outputs="/out")
    assert message is not None
    assert message.input is not None
    assert message.memory is None
    assert predict_of(job(INLINE_LIMIT), 1, parcels, outputs="/out") is None
    with pytest.raises(FrameError):
        parcels.take(5)


def test_system_without_such_memory(monkeypatch: pytest.MonkeyPatch, parcels: Parcels) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert new_probe() is None
    message = predict_of(job(600_000), 1, parcels, outputs="/out")
    assert message is not None
    assert message.input is not None


def test_jobs_without_tensors_make_no_memory(parcels: Parcels) -> None:
    before = open_files()
    message = predict_of(Job("id", b"{}"), 1, parcels, outputs="/out")
    assert message is not None
    assert (message.packed, message.memory) == (False, None)
    assert predict_of(Job("id", b" " * (INLINE_LIMIT + 1)), 1, parcels, outputs="/out") is None
    assert open_files() == before


def test_output_of_a_stream_waits_for_no_reader(parcels: Parcels, shared: SharedMemory) -> None:
    """The memory takes one piece at a time; who finds it taken sends the piece another way."""
    memory = parcels.put(())
    assert memory is not None
    first, second = os.urandom(100_000), os.urandom(100_000)
    assert shared.leave(memory, [first]) == 100_000
    assert shared.leave(memory, [second]) == 0
    assert parcels.take(100_000) == first
    assert shared.leave(memory, [second]) == 100_000
    assert parcels.take(100_000) == second


def test_output_that_nobody_is_told_of_leaves_room_for_the_next(parcels: Parcels, shared: SharedMemory) -> None:
    memory = parcels.put(())
    assert memory is not None
    shared.withdraw()
    assert shared.leave(memory, [b"x" * 100_000])
    shared.withdraw()
    assert shared.leave(memory, [b"y" * 100_000])
    assert parcels.take(3) == b"yyy"


def test_output_of_a_size_that_is_not_worth_it_goes_another_way(parcels: Parcels, shared: SharedMemory) -> None:
    memory = parcels.put(())
    assert memory is not None
    assert shared.leave(memory, [b"x" * WORTHWHILE]) == 0
    assert shared.leave(memory, [b"x" * (LARGEST + 1)]) == 0


def test_output_goes_another_way_where_memory_cannot_be_opened(shared: SharedMemory) -> None:
    gone = SlotMemory("/proc/self/fd/99999", "/proc/self/fd/99999")
    assert shared.leave(gone, [b"x" * 100_000]) == 0


def test_probe() -> None:
    probe = new_probe()
    assert probe is not None
    assert can_share(probe.path)
    probe.close()
    assert not can_share(probe.path)
    assert not can_share(None)


def test_memory_of_a_slot_is_given_back() -> None:
    before = open_files()
    parcels = Parcels()
    parcels.is_possible = True
    predict_of(job(600_000), 1, parcels, outputs="/out")
    assert len(open_files()) > len(before)
    parcels.close()
    assert open_files() == before
    message = predict_of(job(600_000), 1, parcels, outputs="/out")  # too late for memory, and no harm
    assert message is not None
    assert message.memory is None
    assert open_files() == before
