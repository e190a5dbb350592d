"""The control groups of this process (cgroup v1 and v2): the folders that say what it may use."""

from __future__ import annotations

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
    """Return the contents of a file, empty if it is missing."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _upwards(mount: Path, path: str) -> list[Path]:
    """The folder of a control group and of all above it. In a container the own group is often the root itself."""
    group = mount / path.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
