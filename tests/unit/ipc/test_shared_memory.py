"""Memory that parent and worker share: pieces come as they went, and nothing of it is left behind."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.bridge.payloads import SharedSlotMemory, new_probe
from geartrain.ipc.shared_memory import MemoryRegion, kept_by_each
from geartrain.worker.channels.slot import can_share

MIB = 1024**2


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names


@pytest.fixture
def region() -> Iterator[MemoryRegion]:
    region = MemoryRegion.create()
    yield region
    region.close()


def taken(region: MemoryRegion, size: int) -> bytes:
    """Read what is there, and let the other side write again."""
    data = bytes(region.view(size))
    region.free()
    return data


def test_piece_comes_as_it_went(region: MemoryRegion) -> None:
    other = MemoryRegion.open(region.path)
    size = region.write([b"abc", memoryview(b"def"), bytearray(b""), b"g"])
    assert (size, bytes(other.view(size)), taken(other, size)) == (7, b"abcdefg", b"abcdefg")
    other.close()


def test_it_grows_on_either_side(region: MemoryRegion) -> None:
    other = MemoryRegion.open(region.path)
    for size in (1, 5000, 100_000, 30, 3_000_000):
        for writer, reader in ((region, other), (other, region)):
            data = os.urandom(size)
            assert writer.write([data]) == size
            assert taken(reader, size) == data
    other.close()


def test_what_grows_slowly_does_not_grow_often(region: MemoryRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[int] = []
    allocate = os.posix_fallocate

    def count(fd: int, offset: int, length: int) -> None:
        grown.append(length)
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", count)
    for size in range(100_000, 1_000_000, 1000):
        region.write([b"x" * size])
    assert len(grown) < 25


def test_writer_knows_when_it_has_been_read(region: MemoryRegion) -> None:
    other = MemoryRegion.open(region.path)
    assert region.is_free()
    region.write([b"one"])
    assert not region.is_free()
    taken(other, 3)
    assert region.is_free()
    other.close()


@pytest.mark.parametrize("kept", [mmap.PAGESIZE, 40 * mmap.PAGESIZE])
def test_what_is_not_kept_is_given_back_when_it_has_been_read(region: MemoryRegion, kept: int) -> None:
    def allocated() -> int:
        return os.stat(region.path).st_blocks * 512  # noqa: PTH116 - a descriptor's path

    other = MemoryRegion.open(region.path)
    other.kept = kept
    for size in (1_000_000, 100, 2_000_000, 2_000_000):
        data = os.urandom(size)
        region.write([data])
        assert taken(other, size) == data
        assert region.is_free()
        assert allocated() <= max(kept, mmap.PAGESIZE)
    other.close()


def test_memory_is_allocated_again_before_it_is_written(region: MemoryRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    other = MemoryRegion.open(region.path)
    other.kept = mmap.PAGESIZE
    size = 1_000_000
    region.write([bytes(size)])
    taken(other, size)
    region.withdraw()  # as before each call: nothing is there, and what was given back stays known

    def no_memory(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_memory)
    with pytest.raises(OSError, match="No space"):
        region.write([bytes(size)])
    other.close()


def test_what_is_withdrawn_leaves_the_memory_free(region: MemoryRegion) -> None:
    region.withdraw()
    region.write([b"one"])
    region.withdraw()
    assert region.is_free()


@pytest.mark.parametrize(("slots", "size"), [(1, 64 * MIB), (4, 16 * MIB), (64, MIB), (1000, MIB)])
def test_many_slots_keep_little_memory_each(slots: int, size: int) -> None:
    assert kept_by_each(slots) == size


def test_it_is_gone_with_those_who_have_it_open() -> None:
    before = open_files()
    region = MemoryRegion.create()
    region.write([b"x" * 100_000])
    other = MemoryRegion.open(region.path)
    view = other.view(100_000)
    other.close()
    other.close()
    region.close()
    assert bytes(view[:1]) == b"x"  # who still looks at it may go on
    del view
    assert open_files() == before


def test_nobody_can_pull_it_away_from_under_a_reader(region: MemoryRegion) -> None:
    region.write([b"x" * 100_000])
    with pytest.raises(PermissionError), Path(region.path).open("r+b") as file:
        file.truncate(0)


def test_size_that_is_not_there_is_an_error(region: MemoryRegion) -> None:
    region.write([b"abc"])
    with pytest.raises(OSError, match="are to be in shared memory that has"):
        region.view(1_000_000)


def test_lack_of_memory_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    script = (
        "import resource; from geartrain.ipc.shared_memory import MemoryRegion\n"
        "region = MemoryRegion.create(); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: region.write([b'x' * 1_000_000])\n"
        "except OSError as error: print('error')\n"
        "print(region.write([b'x']))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["error", "1"]


# the memory of a slot


def test_memory_of_a_slot_is_made_when_it_is_needed_and_given_back() -> None:
    before = open_files()
    memory = SharedSlotMemory(is_possible=True)
    assert not memory.outputs()
    assert open_files() == before
    paths = memory.message()
    assert paths is not None
    assert (len(memory.inputs()), len(memory.outputs())) == (1, 2)
    for path in (paths.input, *paths.outputs):
        MemoryRegion.open(path).close()
    assert len(open_files()) > len(before)
    memory.close()
    assert open_files() == before
    assert memory.message() is None, "too late for memory"
    assert open_files() == before


def test_a_slot_that_cannot_share_memory_has_none() -> None:
    before = open_files()
    assert SharedSlotMemory(is_possible=False).message() is None
    assert open_files() == before


def test_system_without_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert new_probe() is None
    memory = SharedSlotMemory(is_possible=True)
    assert not memory.inputs()
    assert memory.message() is None


def test_probe() -> None:
    probe = new_probe()
    assert probe is not None
    assert can_share(probe.path)
    probe.close()
    assert not can_share(probe.path)
    assert not can_share(None)
