"""The memory limit of control groups, of both versions, read from trees like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.bridge.resources import free_memory
from geartrain.server.memory import default_limits, memory_limit, usable_memory
from geartrain.transport.wire.limits import WireLimits

NONE = 1 << 50
MIB = 1024**2
UNLIMITED = "9223372036854771712\n"  # how version 1 says that there is no limit


def limit(tmp_path: Path, membership: str, files: dict[str, str]) -> int:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_limit(NONE, tmp_path / "cgroup", tmp_path / "membership")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "536870912\n"}, 512 * MIB),
        ({"memory.max": "max\n"}, NONE),
        ({"a/b/memory.max": "1048576\n"}, MIB),
        ({"a/memory.max": "1048576\n", "a/b/memory.max": "max\n"}, MIB),
        ({"a/memory.max": "4194304\n", "a/b/memory.max": "2097152\n"}, 2 * MIB),
        ({"other/memory.max": "1048576\n"}, NONE),
        ({"a/b/memory.max": "nonsense\n"}, NONE),
        ({"a/b/memory.max": "0\n"}, NONE),
        ({"a/b/memory.limit_in_bytes": "1048576\n"}, NONE),
        ({}, NONE),
    ],
)
def test_version_2(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert limit(tmp_path, "0::/a/b\n", files) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory/a/memory.limit_in_bytes": "1048576\n"}, MIB),
        ({"memory/a/memory.limit_in_bytes": UNLIMITED, "memory/memory.limit_in_bytes": "2097152\n"}, 2 * MIB),
        ({"memory/a/memory.limit_in_bytes": "-1\n"}, NONE),
        ({"memory/memory.limit_in_bytes": "1048576\n"}, MIB),  # in a container that sees its own group as the root
        ({"cpu/a/memory.limit_in_bytes": "1048576\n"}, NONE),
    ],
)
def test_version_1(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert limit(tmp_path, "5:memory:/a\n4:cpu,cpuacct:/a\n0::/\n", files) == expected


def test_no_control_groups(tmp_path: Path) -> None:
    assert memory_limit(NONE, tmp_path, tmp_path / "missing") == NONE


def test_bodies_may_take_a_quarter_by_default() -> None:
    assert usable_memory() >= 64 * MIB
    assert default_limits() == WireLimits(max_buffered_size=usable_memory() // 4)


MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    8000 kB\n"
USED = {"memory.max": "6000000", "memory.current": "5000000", "memory.stat": "anon 1\ninactive_file 300000\n"}
USED_OF_1 = {
    "memory.limit_in_bytes": "6000000",
    "memory.usage_in_bytes": "5000000",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 300000\n",
}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a\n", {}, 8000 * 1024),
        ("0::/a\n", {f"a/{name}": text for name, text in USED.items()}, 1_300_000),
        ("0::/a/b\n", {f"a/{name}": text for name, text in USED.items()}, 1_300_000),
        ("0::/a\n", {"a/memory.max": "max\n", "a/memory.current": "5000000"}, 8000 * 1024),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "6000"}, 0),
        ("5:memory:/a\n", {f"memory/a/{name}": text for name, text in USED_OF_1.items()}, 1_300_000),
    ],
)
def test_free_memory(tmp_path: Path, membership: str, files: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    limit(tmp_path, membership, files)
    assert free_memory(tmp_path / "cgroup", tmp_path / "membership", tmp_path / "meminfo") == expected


def test_free_memory_of_this_machine() -> None:
    assert 0 < free_memory() <= usable_memory()
    assert free_memory(meminfo=Path("/none"), membership=Path("/none")) == 0
