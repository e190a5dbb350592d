"""Processor time that this process may use, by its control groups (cgroup v1 and v2)."""

from __future__ import annotations

import os
from pathlib import Path

from geartrain.bridge.control_groups import MEMBERSHIP, ROOT, folders, read


def usable_cores() -> float:
    """Return the number of cores for this process: its affinity, or its CPU quota if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(float(cores), quota())


def quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float:
    """Return the CPU quota of the own control group and of all above it, in cores; infinity if there is none.

    `root` is where the control groups are mounted; `membership` names those of a process, as `/proc/self/cgroup` does.
    """
    v2, v1 = folders("cpu", root, membership)
    return min([float("inf"), *map(_v2_quota, v2), *map(_v1_quota, v1)])


def _v2_quota(folder: Path) -> float:
    """`cpu.max` holds the quota and the period in microseconds, or `max` for no quota."""
    words = read(folder / "cpu.max").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # noqa: PLR2004 - the quota and the period
        return float("inf")
    return _cores(int(words[0]), int(words[1]))


def _v1_quota(folder: Path) -> float:
    """The quota and the period, in microseconds, are in two files; -1 is no quota."""
    words = read(folder / "cpu.cfs_quota_us").strip(), read(folder / "cpu.cfs_period_us").strip()
    if not all(word.isdecimal() for word in words):
        return float("inf")
    return _cores(int(words[0]), int(words[1]))


def _cores(allowed: int, period: int) -> float:
    return allowed / period if allowed > 0 and period > 0 else float("inf")
