"""Memory of workers, with all processes that they have started (Linux)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

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
    fields = _read(folder / "stat").rpartition(")")[2].split()  # a name may hold anything, a parenthesis too
    return fields[place] if len(fields) > place else ""


def _used(folder: Path) -> int:
    for line in _read(folder / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    fields = _read(folder / "statm").split()
    return int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > _RESIDENT else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""
