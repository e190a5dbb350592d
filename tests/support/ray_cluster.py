"""A cluster of Ray with one node, for tests: it ends when its stdin does.

It is a process of its own, so that Ray's threads, signals and warnings are not those of the tests. What it prints first
is a line of JSON: the address of its dashboard.
"""

from __future__ import annotations

import json
import os
import sys

import ray
from ray import serve


def main() -> None:
    """Run it."""
    context = ray.init(
        "local",
        num_cpus=8,
        num_gpus=4,  # Ray believes what it is told
        include_dashboard=True,
        dashboard_port=int(os.environ["DASHBOARD_PORT"]),
        log_to_driver=False,
        logging_level="ERROR",
    )
    sys.stdout.write(json.dumps({"dashboard": f"http://{context.dashboard_url}"}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
