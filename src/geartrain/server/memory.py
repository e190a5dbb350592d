"""Memory that this process may use, and the limits of connections that follow from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from geartrain.bridge.resources import MEMBERSHIP, ROOT, folders, read
from geartrain.transport.wire.limits import WireLimits

_BODIES: Final = 4  # the part of the memory that the bodies of all connections may take together


def usable_memory() -> int:
    """Return the bytes that this process may use: the memory of the machine, or the limit of its control groups."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(installed, memory_limit(installed))


def memory_limit(otherwise: int, root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return the least memory limit of the own control group and of all above it, in bytes; `otherwise` without one.

    `root` and `membership`: see `control_groups.folders`.
    """
    v2, v1 = folders("memory", root, membership)
    texts = [read(folder / "memory.max") for folder in v2] + [read(folder / "memory.limit_in_bytes") for folder in v1]
    limits = [int(text) for text in map(str.strip, texts) if text.isdecimal() and int(text) > 0]
    return min(limits, default=otherwise)


def default_limits() -> WireLimits:
    """Return the limits of connections of a server whose operator says nothing of them."""
    return WireLimits(max_buffered_size=usable_memory() // _BODIES)
