"""What the benchmarks share: where the other servers live, on what machine it all ran, and tables in markdown."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence

from servers import HERE


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table; numbers stand at the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def conditions(peers: pathlib.Path, *tools: str) -> str:
    """The machine and the versions; `tools` are named as they are."""
    ours = [f"{name} {importlib.metadata.version(name)}" for name in ("geartrain", "uvicorn", "uvloop", "httptools")]
    theirs = output([str(peers / "bin/python"), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    versions = {package["name"]: package["version"] for package in json.loads(theirs)}
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "CPU")
    machine = f"{len(os.sched_getaffinity(0))} cores of {cpu} ({platform.machine()}), {platform.system()}"
    programs = ", ".join((f"coglet {versions['coglet']}", *tools))
    return f"{machine}, Python {platform.python_version()}; {', '.join(ours)}; {programs}."


def output(command: Sequence[str]) -> str:
    """What a command prints, whether it likes what it was asked or not."""
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()


def peers_environment(folder: pathlib.Path) -> pathlib.Path:
    """Make the environment of the other servers, unless it is there already."""
    if not (folder / "bin/python").exists():
        print(f"Installing the other servers into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(HERE / "peers.txt")], check=True, timeout=600)
    return folder
