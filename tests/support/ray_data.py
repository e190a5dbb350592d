"""A cluster of Ray with three nodes on this machine, for tests of data sets.

It is a process of its own, so that Ray's threads, signals and warnings are not those of the tests. It prints a line of
JSON with its address and the processes of its nodes, and removes each node whose process it reads the number of. It
ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

NODES: Final = 3
_CPUS: Final = 2  # of each node
_END: Final = 60.0  # seconds
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}


class RayNodes:
    """A cluster. `raylets` are the processes of its nodes, that of the head first."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_data"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_ENVIRONMENT},
        )
        told = self._hear()
        self.raylets: list[int] = told["raylets"]
        self.environ = {**os.environ, **_ENVIRONMENT, "RAY_ADDRESS": told["address"]}

    def remove(self, raylet: int) -> None:
        """End a node with all of its processes, at once."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{raylet}\n")
        self._popen.stdin.flush()
        assert self._hear() == {}

    def end(self) -> None:
        """End the cluster."""
        self._popen.communicate(timeout=_END)

    def _hear(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        found: dict[str, Any] = json.loads(self._popen.stdout.readline())
        return found


@contextlib.contextmanager
def nodes() -> Iterator[RayNodes]:
    """A cluster for the time of the block."""
    found = RayNodes()
    try:
        yield found
    finally:
        found.end()


def main() -> None:
    """Run the cluster."""
    from ray.cluster_utils import Cluster  # few runs have Ray

    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": _CPUS, "include_dashboard": False})
    try:
        found = [cluster.head_node, *(cluster.add_node(num_cpus=_CPUS) for _ in range(NODES - 1))]
        cluster.wait_for_nodes()
        raylets = {each.all_processes["raylet"][0].process.pid: each for each in found}
        print(json.dumps({"address": cluster.address, "raylets": [*raylets]}), file=stdout, flush=True)
        for line in sys.stdin:
            cluster.remove_node(raylets[int(line)], allow_graceful=False)
            print("{}", file=stdout, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
