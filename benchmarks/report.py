"""What the benchmarks share: where the other servers live, on what machine it all ran, and tables in markdown."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence

from servers import HERE, ROOT


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table; numbers stand at the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def conditions(peers: dict[str, str], *tools: str) -> str:
    """The machine and the versions: ours, those of `peers` by name, and `tools`, which are named as they are."""
    ours = [f"{name} {importlib.metadata.version(name)}" for name in ("geartrain", "uvloop", "httptools")]
    programs = ", ".join((*(f"{name} {version}" for name, version in peers.items()), *tools))
    return f"{machine()}; {', '.join(ours)}; {programs}."


def machine() -> str:
    """The processor, the system and the Python that runs this script."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "CPU")
    hardware = f"{len(os.sched_getaffinity(0))} cores of {cpu} ({platform.machine()}), {platform.system()}"
    return f"{hardware}, Python {platform.python_version()}"


def version_of(package: str, environment: pathlib.Path) -> str:
    """The version of a package that is installed in another environment."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return output([str(environment / "bin/python"), "-c", code])


def output(command: Sequence[str]) -> str:
    """What a command prints, whether it likes what it was asked or not."""
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()


def peers_environment(name: str) -> pathlib.Path:
    """Make the environment of another server, unless it is there already."""
    folder = ROOT / ".cache/peers" / name
    if not (folder / "bin/python").exists():
        print(f"Installing {name} into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(HERE / f"peers/{name}.txt")], check=True, timeout=900)
    return folder
