"""Processors and memory: the limits of this process (cgroup v1 and v2), and the use of its workers (Linux)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")
_OTHER_MOUNTS: Final = {"cpu": ("cpu,cpuacct",)}


def folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> tuple[list[Path], list[Path]]:
    """Return the folders of the own groups and of all above them: those of version 2, then those of version 1.

    Those of version 1 belong to `controller`, such as `cpu`. `root` is where the control groups are mounted;
    `membership` names those of a process, as `/proc/self/cgroup` does.
    """
    v1: list[Path] = []
    v2: list[Path] = []
    for line in read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            v2 += _upwards(root, path)
        elif controller in controllers.split(","):
            mounts = dict.fromkeys((controllers, controller, *_OTHER_MOUNTS.get(controller, ())))
            v1 += [folder for mount in mounts for folder in _upwards(root / mount, path)]
    return v2, v1


def read(path: Path) -> str:
    """Return the contents of a file; empty if it is missing, or that of a process that has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _upwards(mount: Path, path: str) -> list[Path]:
    """The folder of a control group and of all above it. In a container the own group is often the root itself."""
    group = mount / path.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]


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


MEMORY: Final = Path("/proc/meminfo")


def free_memory(root: Path = ROOT, membership: Path = MEMBERSHIP, meminfo: Path = MEMORY) -> int:
    """Return the bytes that processes can still take before the system kills one; 0 where that is unknown.

    It is the available memory of the machine, or what the limits of the own control group and of all above it leave
    over, without pages of files that the kernel can drop. `root` and `membership`: see `folders`.
    """
    v2, v1 = folders("memory", root, membership)
    left = [_left(folder, "memory.max", "memory.current", droppable="inactive_file") for folder in v2]
    left += [
        _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", droppable="total_inactive_file")
        for folder in v1
    ]
    available = [
        int(words[1]) * 1024 for words in map(str.split, read(meminfo).splitlines()) if words[:1] == [_AVAILABLE]
    ]
    return max(0, min([*available, *(each for each in left if each is not None)], default=0))


_AVAILABLE: Final = "MemAvailable:"


def _left(folder: Path, limit: str, usage: str, *, droppable: str) -> int | None:
    """Return the bytes that the limit of a control group leaves over; None without a limit."""
    most, used = read(folder / limit).strip(), read(folder / usage).strip()
    if not (most.isdecimal() and used.isdecimal()):
        return None
    lines = [line.partition(" ") for line in read(folder / "memory.stat").splitlines()]
    return int(most) - int(used) + sum(int(number) for name, _, number in lines if name == droppable)


PROC: Final = Path("/proc")

# The places of the parent and of the process group in `stat`, counted behind the name.
_PARENT: Final = 1
_GROUP: Final = 2
_RESIDENT: Final = 1  # the place of the resident pages in `statm`


def is_measurable(proc: Path = PROC) -> bool:
    """True if the memory of processes can be told here."""
    return (proc / "self" / "statm").is_file()


def memory_of(groups: Collection[int], proc: Path = PROC) -> int:
    """Return the bytes that the processes of these process groups use together.

    A group counts as long as the process that leads it is a child of this one: another may have its number later.
    Memory that several processes share is counted once, each having its part (PSS). Where the kernel does not tell
    that, it is counted for each of them (RSS). Takes some milliseconds for each process, more where it is large.
    """
    own = {str(group) for group in groups if _field(proc / str(group), _PARENT) == str(os.getpid())}
    return sum(_used(folder) for folder in _members(own, proc)) if own else 0


def _members(groups: Collection[str], proc: Path) -> Iterator[Path]:
    for folder in proc.iterdir():
        if folder.name.isdecimal() and _field(folder, _GROUP) in groups:
            yield folder


def _field(folder: Path, place: int) -> str:
    fields = read(folder / "stat").rpartition(")")[2].split()  # a name may hold anything, a parenthesis too
    return fields[place] if len(fields) > place else ""


def _used(folder: Path) -> int:
    for line in read(folder / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    fields = read(folder / "statm").split()
    return int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > _RESIDENT else 0
