"""How much processor time this process may use, as its control groups say (cgroup v1 and v2)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable_cores() -> float:
    """Return how many cores this process may use at the same time: its affinity, or its CPU quota if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(float(cores), quota())


def quota(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> float:
    """Return the CPU quota of the own control group and of all above it, in cores; infinity if there is none.

    `root` is where the control groups are mounted; `membership` names those of a process, as `/proc/self/cgroup` does.
    """
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return float("inf")
    found = [float("inf")]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += [_v2_quota(folder) for folder in _folders(root, path)]
        elif "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu", root / "cpu,cpuacct"):
                found += [_v1_quota(folder) for folder in _folders(mount, path)]
    return min(found)


def _folders(mount: Path, path: str) -> list[Path]:
    """The folder of a control group and of all above it. In a container the own group is often the root itself."""
    group = mount / path.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]


def _v2_quota(folder: Path) -> float:
    """`cpu.max` holds the quota and the period in microseconds, or `max` for no quota."""
    words = _read(folder / "cpu.max").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # noqa: PLR2004 - the quota and the period
        return float("inf")
    return _cores(int(words[0]), int(words[1]))


def _v1_quota(folder: Path) -> float:
    """The quota and the period, in microseconds, are in two files; -1 is no quota."""
    words = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    if not all(word.isdecimal() for word in words):
        return float("inf")
    return _cores(int(words[0]), int(words[1]))


def _cores(allowed: int, period: int) -> float:
    return allowed / period if allowed > 0 and period > 0 else float("inf")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
