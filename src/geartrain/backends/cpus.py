"""Number of threads of a library: the processors of this process, and not those of the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def usable_cpus(control_groups: Path = _CONTROL_GROUPS) -> int:
    """Return the number of processors that this process may use, at least 1; what OMP_NUM_THREADS says comes first.

    Libraries count the machine's, and run with too many threads in a container that has a share of them.
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return int(said)
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(control_groups)
    return max(1, min(affinity, math.ceil(quota))) if quota else affinity


def _quota(root: Path) -> float | None:
    """Processors' worth of time that the container may use; None where nothing limits it."""
    try:
        quota, _, period = (root / "cpu.max").read_text(encoding="ascii").partition(" ")
    except OSError:
        try:  # the first version of control groups
            quota = (root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError:
            return None
    try:
        microseconds, of = int(quota), int(period)  # `max`, and -1, are no limit
    except ValueError:
        return None
    return microseconds / of if microseconds > 0 and of > 0 else None
