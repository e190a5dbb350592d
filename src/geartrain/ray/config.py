"""The config file of Serve that runs models: what `geartrain deploy ray` sends, and prints.

Source: `ServeDeploySchema` in ray/serve/schema.py of Ray 2.60. Nothing of ray is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.platforms.manifest import Noted, noted
from geartrain.project.errors import ProjectError
from geartrain.ray.options import ONE, Scale, absolute, check_options

DEPLOYMENT: Final = "geartrain"
"""The name of the one deployment of each application."""


SERVICES: Final = "geartrain.ray.services:add_to_server"
POLICY: Final = "geartrain.ray.scaling:by_queue"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HAPROXY: Final = {"RAY_SERVE_ENABLE_HA_PROXY": "1"}


class ApplicationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Models of an application of Ray Serve, and its settings.

    Attributes:
        models: what `geartrain serve` takes, as each node has it.
        name: of the application.
        route_prefix: the path below which its routes are.
        scale: how many replicas there are.
        delays: seconds for which there is too much to do, or too little, before their number changes.
        num_cpus: that Ray reserves for each of them.
        num_gpus: likewise; parts of one are possible.
        ports: of HTTP and of gRPC, where Serve is not running yet.
        user_config: see docs/ray.md.
        options: those of `ReplicaOptions`.
    """

    models: str
    name: str
    route_prefix: str = "/"
    scale: Scale = ONE
    delays: tuple[float, float] = (30.0, 600.0)
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    ports: tuple[int, int] = (8000, 9000)
    user_config: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}


def name_of(models: str) -> str:
    """Return the name of an application by its models: the last part of their path."""
    path = models.rstrip("/").partition(":" if "://" not in models else "\0")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.rpartition("/")[2]).strip("-_")
    return name or "geartrain"


def serve_config(spec: ApplicationSpec) -> Noted:
    """Return the config file, with comments; raises `ProjectError` for what Serve would not take."""
    check_options(spec.options, spec.scale)
    if not _NAME.fullmatch(spec.name):
        raise ProjectError(f"{spec.name!r} is no name of an application; write letters, digits, `-` and `_`")
    if not spec.route_prefix.startswith("/") or (spec.route_prefix != "/" and spec.route_prefix.endswith("/")):
        raise ProjectError(f"{spec.route_prefix!r} is no route prefix; write / or for example /models")
    http, grpc = spec.ports
    return noted(
        {
            "proxy_location": "EveryNode",
            "http_options": {"host": "0.0.0.0", "port": http},  # noqa: S104 - as Ray's proxies in HAProxy mode
            "grpc_options": noted(
                {"port": grpc, "grpc_servicer_functions": [SERVICES]}, "Without a function there would be no gRPC."
            ),
            "controller_options": noted(
                {"runtime_env": {"env_vars": _HAPROXY}},
                "HAProxy in front of the replicas. Set the variable on every node as well: the proxies and the",
                "replicas read it there.",
            ),
            "applications": [_application(spec)],
        },
        "Applications of Ray Serve: for `serve deploy FILE`, or as serveConfigV2 of a RayService of KubeRay.",
        "geartrain[ray] is installed on every node, and the models lie at the same path.",
    )


def _application(spec: ApplicationSpec) -> dict[str, Any]:
    deployment: dict[str, Any] = {"name": DEPLOYMENT, **_scaling(spec)}
    deployment["ray_actor_options"] = {"num_cpus": spec.num_cpus, "num_gpus": spec.num_gpus}
    if spec.user_config:
        deployment["user_config"] = noted(dict(spec.user_config), "Another value reloads the models in place.")
    return {
        "name": spec.name,
        "route_prefix": spec.route_prefix,
        "import_path": "geartrain.ray:build",
        "args": noted({"models": absolute(spec.models), **spec.options}, "What is changed here replaces the replicas."),
        "deployments": [deployment],
    }


def _scaling(spec: ApplicationSpec) -> dict[str, Any]:
    scale, (up, down) = spec.scale, spec.delays
    if scale.is_fixed:
        return {"num_replicas": scale.least}
    return {
        "autoscaling_config": {
            "min_replicas": scale.least,
            "max_replicas": scale.most,
            "upscale_delay_s": up,
            "downscale_delay_s": down,
            "policy": noted({"policy_function": POLICY}, "By what the replicas have to do, their queues included."),
        }
    }


def merged(config: Mapping[str, Any], deployed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a config that leaves other applications as they are: Serve ends those that a config does not name."""
    own = {application["name"] for application in config["applications"]}
    others = [application for application in deployed if application["name"] not in own]
    return {**config, "applications": [*others, *config["applications"]]}
