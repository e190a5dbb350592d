"""Loses a node of a cluster of Ray during `geartrain batch --ray`, and counts the rows of the output.

    python -m tools.try_ray_rows            (as root, with `geartrain[ray]` and iproute2)

Three network namespaces are three nodes. When the actors of two nodes at least have run rows whose results are not
written, all processes of one node are killed at once, or its network is cut off; then the rest goes on. It prints how
many rows the output has, how many of them once, and how many were run again. It takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tools.try_ray_nodes import BRIDGE, ENVIRONMENT, NODES, PATIENCE, address, network, start
from tools.try_ray_nodes import kill as kill_node
from tools.try_ray_nodes import run as run_command

FILES: Final = 12
ROWS: Final = 100  # of a file
MODEL: Final = """
import os, pathlib, time
NODE = os.environ["RAY_RAYLET_PID"]
def run(n: int, folder: str) -> int:
    with open(f"{folder}/runs", "a") as runs:
        runs.write(f"{n} {NODE}\\n")
    while n % 100 >= 50 and not pathlib.Path(folder, "go").exists():
        time.sleep(0.01)
    return n * n
"""


def node_of(raylet: int) -> int:
    """Return the node that a process is in."""
    for node in range(NODES):
        words = ["ip", "netns", "pids", f"{BRIDGE}{node}"]
        found = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603 - written here
        if raylet in map(int, found.stdout.split()):
            return node
    raise ValueError(raylet)


def nodes_at_gate(runs: Path) -> set[int]:
    """Return the nodes whose workers wait in a row."""
    lines = runs.read_text().splitlines() if runs.exists() else []
    found = {int(raylet) for number, raylet in map(str.split, lines) if int(number) % ROWS >= ROWS // 2}
    return {node_of(each) for each in found}


def measure(work: Path, what: str) -> dict[str, Any]:
    """Lose a node, and return what came of it."""
    (work / "model").mkdir()
    (work / "model/run.py").write_text(MODEL)
    (work / "in").mkdir()
    for part in range(FILES):
        rows = ({"n": n, "folder": str(work)} for n in range(part * ROWS, (part + 1) * ROWS))
        (work / f"in/{part:02}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [sys.executable, "-m", "geartrain", "batch", str(work / "model"), str(work / "in"), "--ray"]
    words += ["-o", str(work / "out"), "--keep", "n", "--replicas", str(NODES)]
    environ = {**os.environ, "RAY_ADDRESS": f"{address(0)}:6379"}
    began = time.monotonic()
    process = subprocess.Popen(["ip", "netns", "exec", f"{BRIDGE}0", *words], env=environ)  # noqa: S603, S607 - as above
    while len(found := nodes_at_gate(work / "runs")) < 2:  # noqa: PLR2004 - the head stays
        if process.poll() is not None or time.monotonic() > began + PATIENCE:
            process.kill()
            raise SystemExit("the rows do not begin")
        time.sleep(0.1)
    lost = max(found)
    before = (work / "runs").read_text().splitlines()
    if what == "kill":
        kill_node(lost)
    else:
        run_command("ip", "link", "set", f"{BRIDGE}{lost}v", "down")
    (work / "go").touch()
    code = process.wait()
    numbers = Counter(pq.read_table(work / "out").column("n").to_pylist())
    times = Counter(line.split()[0] for line in (work / "runs").read_text().splitlines())
    return {
        "what": what,
        "exit code": code,
        "nodes with rows under way": len(found),
        "rows begun before": len(before),
        "rows": FILES * ROWS,
        "once in the output": sum(count == 1 for count in numbers.values()),
        "more than once": sum(count > 1 for count in numbers.values()),
        "run again": sum(count > 1 for count in times.values()),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="kill", choices=["kill", "partition"])
    what = parser.parse_args().what
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder, network():
        os.environ["RAY_TMPDIR"] = folder  # where Ray notes the cluster that programs of this machine join
        for node in range(NODES):
            start(node)
        print(json.dumps(measure(Path(folder), what)), flush=True)


if __name__ == "__main__":
    main()
