"""The CPU quota of control groups, of both versions, read from trees like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.bridge.resources import quota, usable_cores

NONE = float("inf")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def read(tmp_path: Path, membership: str, files: dict[str, str]) -> float:
    (tmp_path / "membership").write_text(membership)
    return quota(write(tmp_path / "cgroup", files), tmp_path / "membership")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, NONE),
        ({"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.0),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2.0),
        ({"other/cpu.max": "50000 100000\n"}, NONE),
        ({"a/b/cpu.max": "nonsense\n"}, NONE),
        ({"a/b/cpu.max": "0 0\n"}, NONE),
        ({}, NONE),
    ],
)
def test_version_2(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    assert read(tmp_path, "0::/a/b\n", files) == cores


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(
    ("allowed", "cores"), [("50000\n", 0.5), ("100000\n", 1.0), ("-1\n", NONE), ("", NONE), ("300000\n", 3.0)]
)
def test_version_1(tmp_path: Path, mount: str, allowed: str, cores: float) -> None:
    files = {f"{mount}/a/cpu.cfs_quota_us": allowed, f"{mount}/a/cpu.cfs_period_us": "100000\n"}
    assert read(tmp_path, "5:memory:/a\n4:cpu,cpuacct:/a\n0::/\n", files) == cores


def test_version_1_in_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert read(tmp_path, "4:cpu,cpuacct:/docker/abc\n", files) == 1.0


def test_other_controllers_do_not_count(tmp_path: Path) -> None:
    files = {"cpuset/a/cpu.cfs_quota_us": "50000\n", "cpuset/a/cpu.cfs_period_us": "100000\n"}
    assert read(tmp_path, "7:cpuset:/a\n", files) == NONE


def test_no_control_groups(tmp_path: Path) -> None:
    assert quota(tmp_path, tmp_path / "missing") == NONE


def test_what_this_process_may_use() -> None:
    assert usable_cores() > 0
