"""Common part of a server's container on every platform: its probes, its rights, its places to write, its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.spec import DeploymentSpec

USER: Final = 10001  # of the image
MODELS: Final = "/models"  # in the image

DRAIN_DELAY: Final = 5  # seconds
SHUTDOWN_GRACE: Final = 30
TERMINATION: Final = 50  # more than both together, and 10 s for webhooks

ENDING: Final = (
    noted(
        f"--drain-delay={DRAIN_DELAY}s",
        "Requests are still served while the balancers learn that this pod is about to stop.",
    ),
    f"--shutdown-grace={SHUTDOWN_GRACE}s",
    "--restart=on-crash",
    "--log-format=json",
)
"""Options of `geartrain serve` that every platform needs."""

POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
GRACE: Final = noted(TERMINATION, "More than --drain-delay and --shutdown-grace together, and 10 s for webhooks.")


def probes(ready: str, live: str, port: str | int) -> dict[str, Any]:
    """Return the probes of a container. `ready` and `live` are paths."""
    return {
        "startupProbe": noted(
            {"httpGet": {"path": ready, "port": port}, "periodSeconds": 2, "failureThreshold": 300},
            "Setup may take ten minutes.",
        ),
        "readinessProbe": {"httpGet": {"path": ready, "port": port}, "periodSeconds": 2, "failureThreshold": 1},
        "livenessProbe": {
            "httpGet": {"path": live, "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def resources(spec: DeploymentSpec) -> dict[str, Any]:
    """Return the resources of a container."""
    limits: dict[str, Any] = {"memory": "4Gi", "ephemeral-storage": "8Gi"}
    if spec.gpus:
        limits["nvidia.com/gpu"] = str(spec.gpus)
    return {
        "requests": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "1Gi"},
        "limits": noted(limits, "The memory of /dev/shm counts."),
    }


def environment() -> list[dict[str, str]]:
    """Return the variables of a container whose root file system is read-only."""
    return [{"name": "HOME", "value": "/tmp"}, {"name": "XDG_CACHE_HOME", "value": "/tmp/cache"}]  # noqa: S108 - in a container


def mounts(*others: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the mounts of `volumes`, and others."""
    return [*others, {"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - as above


def volumes(*others: Mapping[str, Any] | Noted) -> list[Any]:
    """Return the volumes that a container writes to, and others."""
    return [
        *others,
        noted(
            {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
            "Files of inputs and outputs, and large inputs on their way to the worker.",
        ),
        noted(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            "For models and libraries that use it, such as the data loaders of torch.",
            "The default of a container is 64 MiB.",
        ),
    ]


def metadata(spec: DeploymentSpec, name: str = "", *, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of an object."""
    found: dict[str, Any] = {"name": name or spec.name}
    if spec.namespace:
        found["namespace"] = spec.namespace
    found["labels"] = labels(spec)
    if annotations:
        found["annotations"] = annotations
    return found


def labels(spec: DeploymentSpec) -> dict[str, str]:
    """Return the labels of what belongs together."""
    return {"app.kubernetes.io/name": spec.name}


def kubernetes_object(
    kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any], *, comment: Iterable[str]
) -> Noted:
    """Return an object with what is said above it; `kind` with its API, such as `apps/v1/Deployment`."""
    api, _, name = kind.rpartition("/")
    return noted({"apiVersion": api, "kind": name, "metadata": metadata, "spec": spec}, *comment)
