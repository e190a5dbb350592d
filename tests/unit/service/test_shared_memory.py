"""Regions of shared memory (observed Triton, section 15), on real objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service import shared_memory
from geartrain.service.shared_memory import Region, SharedRegions
from tests.support.shared_memory import SharedObject, shared_object


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(8192) as made:
        made.buf[:8192] = bytes(range(256)) * 32
        yield made


@pytest.fixture
def regions() -> Iterator[SharedRegions]:
    made = SharedRegions()
    yield made
    made.close()


def fault(code: Code, text: str) -> AbstractContextManager[Any]:
    return pytest.raises(GeartrainError, match=text, check=lambda error: error.code is code)


@pytest.mark.parametrize("slash", ["", "/"])
def test_read_and_write(regions: SharedRegions, memory: SharedObject, slash: str) -> None:
    regions.register("r", slash + memory.name.removeprefix("/"), offset=0, byte_size=64)
    assert bytes(regions.read("r", 4, 4)) == b"\4\5\6\7"
    assert bytes(regions.read("r", 64, 0)) == b""
    regions.write("r", 2, memoryview(b"ab"))
    assert bytes(memory.buf[:5]) == b"\0\1ab\4"


def test_what_was_read_does_not_change(regions: SharedRegions, memory: SharedObject) -> None:
    regions.register("r", memory.name, offset=0, byte_size=4)
    data = regions.read("r", 0, 4)
    memory.buf[:4] = b"abcd"
    assert bytes(data) == b"\0\1\2\3"


def test_t9_several_regions_on_one_object_at_any_offset(regions: SharedRegions, memory: SharedObject) -> None:
    regions.register("a", memory.name, offset=0, byte_size=64)
    regions.register("b", memory.name, offset=3, byte_size=5)
    regions.register("c", memory.name, offset=4099, byte_size=4)
    assert bytes(regions.read("b", 1, 4)) == b"\4\5\6\7"
    assert bytes(regions.read("c", 0, 4)) == b"\3\4\5\6"
    assert regions.status(None) == [
        Region("a", memory.name, 0, 64),
        Region("b", memory.name, 3, 5),
        Region("c", memory.name, 4099, 4),
    ]
    assert regions.status("b") == [Region("b", memory.name, 3, 5)]


def test_unregister(regions: SharedRegions, memory: SharedObject) -> None:
    for name in ("a", "b", "c"):
        regions.register(name, memory.name, offset=0, byte_size=1)
    regions.unregister("a")
    regions.unregister("a")
    assert [region.name for region in regions.status(None)] == ["b", "c"]
    regions.unregister(None)
    assert regions.status(None) == []
    regions.register("a", memory.name, offset=0, byte_size=1)


def test_descriptors_are_given_back(regions: SharedRegions, memory: SharedObject) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("a", "b"):
        regions.register(name, memory.name, offset=0, byte_size=1)
    with fault(Code.INVALID_INPUT, "invalid args"):
        regions.register("c", memory.name, offset=8192, byte_size=1)
    regions.unregister(None)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_regions_are_limited(regions: SharedRegions, memory: SharedObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        regions.register(f"r{number}", memory.name, offset=0, byte_size=1)
    with fault(Code.INVALID_INPUT, "there are 3 shared memory regions already"):
        regions.register("one more", memory.name, offset=0, byte_size=1)
    assert len(regions.status(None)) == 3
    regions.unregister("r1")
    with fault(Code.INVALID_INPUT, "a name of a shared memory region has at most 1024 characters"):
        regions.register("n" * 1025, memory.name, offset=0, byte_size=1)
    regions.register("n" * 1024, memory.name, offset=0, byte_size=1)
    regions.unregister(None)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_name_that_is_taken(regions: SharedRegions, memory: SharedObject) -> None:
    regions.register("a", memory.name, offset=0, byte_size=1)
    with fault(Code.CONFLICT, "shared memory region 'a' already in manager"):
        regions.register("a", memory.name, offset=0, byte_size=2)


@pytest.mark.parametrize(("offset", "size"), [(0, 8193), (8192, 1), (8000, 193), (-1, 4), (0, 0), (0, -1), (2**70, 1)])
def test_part_that_the_object_does_not_have(
    regions: SharedRegions, memory: SharedObject, offset: int, size: int
) -> None:
    with fault(Code.INVALID_INPUT, "failed to register shared memory region 'a'"):
        regions.register("a", memory.name, offset=offset, byte_size=size)


@pytest.mark.parametrize(("offset", "size"), [(0, 9), (8, 1), (-1, 4), (2**70, 1), (0, 2**70)])
def test_part_that_the_region_does_not_have(
    regions: SharedRegions, memory: SharedObject, offset: int, size: int
) -> None:
    regions.register("a", memory.name, offset=0, byte_size=8)
    with fault(Code.INVALID_INPUT, "Invalid offset .* for shared memory region: 'a'"):
        regions.read("a", offset, size)
    if size < 100:
        with fault(Code.INVALID_INPUT, "Invalid offset .* for shared memory region: 'a'"):
            regions.write("a", offset, bytes(size))


def test_region_that_is_not_there(regions: SharedRegions) -> None:
    with fault(Code.NOT_FOUND, "Unable to find shared memory region: 'zz'"):
        regions.read("zz", 0, 1)
    with fault(Code.NOT_FOUND, "Unable to find shared memory region: 'zz'"):
        regions.write("zz", 0, b"a")
    with fault(Code.NOT_FOUND, "Unable to find system shared memory region: 'zz'"):
        regions.status("zz")


@pytest.mark.parametrize(
    "key", ["", "/", ".", "..", "/..", "a/b", "/../etc/passwd", "//a", "a\0b", "x" * 256, "ü" * 200]
)
def test_key_leads_nowhere_else(regions: SharedRegions, key: str) -> None:
    with fault(Code.INVALID_INPUT, "is no key of a shared memory object"):
        regions.register("a", key, offset=0, byte_size=1)


@pytest.mark.parametrize("key", ["geartrain-nothing", "/geartrain-nothing", "\ud800"])
def test_key_of_nothing(regions: SharedRegions, key: str) -> None:
    with fault(Code.INVALID_INPUT, "Unable to open shared memory region"):
        regions.register("a", key, offset=0, byte_size=1)


def test_key_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    regions = SharedRegions(folder=tmp_path)
    for key in ("folder", "link", "pipe"):
        with fault(Code.INVALID_INPUT, "Unable to open shared memory region"):
            regions.register("a", key, offset=0, byte_size=1)


def test_object_that_shrinks_ends_no_server(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(8192))
    regions = SharedRegions(folder=tmp_path)
    regions.register("a", "object", offset=0, byte_size=8192)
    os.truncate(path, 10)
    with fault(Code.INVALID_INPUT, "has become smaller"):
        regions.read("a", 4096, 8)
    with fault(Code.INVALID_INPUT, "has become smaller"):
        regions.write("a", 4096, b"12345678")
    assert path.stat().st_size == 10
    regions.close()


def test_off_refuses_every_use(memory: SharedObject) -> None:
    regions = SharedRegions(enabled=False)
    uses: list[Callable[[], object]] = [
        lambda: regions.register("a", memory.name, offset=0, byte_size=1),
        lambda: regions.unregister("a"),
        lambda: regions.status(None),
        lambda: regions.read("a", 0, 1),
        lambda: regions.write("a", 0, b"a"),
    ]
    for use in uses:
        with fault(Code.UNSUPPORTED, "--shared-memory"):
            use()
