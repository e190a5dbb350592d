"""The deployment that each application on Ray Serve has: its replicas are servers of geartrain."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray import serve
from ray.serve._private.constants import RAY_SERVE_ENABLE_DIRECT_INGRESS
from ray.util import get_node_ip_address

from geartrain.ray.options import serve_options
from geartrain.ray.ports import Ports
from geartrain.ray.scaling import LOAD
from geartrain.ray.server import ReplicaServer
from geartrain.server.memory import tune_collector, tune_memory
from geartrain.transport.asgi import AsgiApplication

logger = logging.getLogger("geartrain.ray")

_CLASSIC: Final = (
    "Ray Serve is not in HAProxy mode: requests take many times as long, and there is no gRPC. Start every node of Ray "
    "with RAY_SERVE_ENABLE_HA_PROXY=1; see docs/ray.md."
)


class Replica:
    """One replica: Ray Serve makes it, asks it, and ends it. Source: ray/serve/_private/replica.py of Ray 2.60."""

    async def __init__(self, models: str, options: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """Serve, when no model is being loaded any more. `options`: those of `ReplicaOptions`."""
        self._server = ReplicaServer(serve_options(models, options, _labels(), node=get_node_ip_address()))
        self._config: Mapping[str, Any] | None = None  # the latest of Ray's `user_config`
        await self._server.start()
        tune_collector()
        tune_memory()

    async def __serve_build_asgi_app__(self) -> AsgiApplication:
        """Return the application for Ray's own proxy; take the ports of the replica, if it has any."""
        if RAY_SERVE_ENABLE_DIRECT_INGRESS:
            Ports(self._server).take()
        else:
            logger.warning(_CLASSIC)
        return self._server.application()

    async def check_health(self) -> None:
        """Raise `ReplicaLostError` if the replica should be replaced."""
        self._server.models.check_health()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell the autoscaler how much there is to do."""
        return {LOAD: self._server.models.load()}

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Have the models loaded that `load` names, and load all anew if anything else in it has changed.

        What else stands in it, such as `revision`, has no meaning but to be another than before.
        """
        before, self._config = self._config, dict(user_config)
        if "load" in user_config:
            await self._server.models.have(frozenset(user_config["load"]))
        if before is not None and _without_load(before) != _without_load(self._config):
            await self._server.models.reload()

    async def __del__(self) -> None:
        """Let what was accepted finish, within `shutdown_grace`."""
        await self._server.stop()


def _without_load(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "load"}


def _labels() -> dict[str, str]:
    """Return the labels that tell the metrics of a replica from those of others."""
    context = serve.get_replica_context()
    return {
        "serve_application": context.app_name,
        "serve_deployment": context.deployment,
        "serve_replica": context.replica_id.unique_id,
        "ray_node": ray.get_runtime_context().get_node_id(),
    }
