"""The memory limit of control groups, of both versions, read from trees like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

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
