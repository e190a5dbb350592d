"""A cluster of Ray with one node, for tests: it ends when its stdin does.

It is a process of its own, so that Ray's threads, signals and warnings are not those of the tests. What it prints first
is a line of JSON: the address of its dashboard. Each line that it reads names an application to run, which it answers
with a line when its replicas run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

import ray
from ray import serve
from ray.serve.config import gRPCOptions

from geartrain.ray import app

_LOOK: Final = 0.1  # seconds between two looks


class Answers:
    """Lines for the test, on what was stdout. What Ray prints from then on goes to stderr."""

    def __init__(self) -> None:
        self._stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def tell(self, answer: dict[str, Any]) -> None:
        """Print a line."""
        self._stdout.write(json.dumps(answer) + "\n")
        self._stdout.flush()


def run(asked: dict[str, Any]) -> None:
    """Run an application as `geartrain.ray.app` makes it, and end others; see `RayCluster.run`."""
    http, grpc = asked["ports"]
    serve.start(
        proxy_location="EveryNode",
        http_options={"host": "127.0.0.1", "port": http},
        grpc_options=gRPCOptions(port=grpc, grpc_servicer_functions=["geartrain.ray.services:add_to_server"]),
    )
    for name in asked["ended"]:
        serve.delete(name, _blocking=asked["is_alone"])
    application = app(asked["models"], **asked["options"])
    serve.run(application, name=asked["name"], route_prefix=f"/{asked['name']}")
    while set(asked["ended"]) & set(serve.status().applications):
        time.sleep(_LOOK)


def main() -> None:
    """Run it."""
    tell = Answers().tell
    context = ray.init(
        "local",
        num_cpus=8,
        num_gpus=4,  # Ray believes what it is told
        include_dashboard=True,
        dashboard_port=int(os.environ["DASHBOARD_PORT"]),
        log_to_driver=False,
        logging_level="ERROR",
    )
    tell({"dashboard": f"http://{context.dashboard_url}"})
    for line in sys.stdin:
        try:
            run(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the test is told
            tell({"error": str(error)})
        else:
            tell({})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
