"""A deployment as the operator describes it, and the common part of its containers on every platform."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from geartrain.platforms.manifest import Noted, noted
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource

_LABEL: Final = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'{}]+")
_PVC: Final = "pvc://"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which models, under which name, and how many of what.

    `models` are their names; `is_folder`: each of them has a folder below the one that was named. `storage`: where the
    platform fetches them from, "" where they are in the image. `gpus` are those of each replica. `replicas` is the
    least number of them.
    """

    name: str
    models: tuple[str, ...]
    is_folder: bool
    image: str
    namespace: str = ""
    replicas: int = 1
    max_replicas: int = 4
    gpus: int = 0
    storage: str = ""


def name_of(source: ModelSource | Repository, models: tuple[str, ...], name: str) -> str:
    """Return the name of what is deployed, by default that of the only model or of the folder; raises ProjectError."""
    if not name:
        found = models[0] if len(models) == 1 or not isinstance(source, Repository) else source.root.name
        name = re.sub(r"[^a-z0-9]+", "-", found.lower()).strip("-")
    if not is_name(name):
        raise ProjectError(
            f"{name!r} is no name for objects of Kubernetes; give one with --name, "
            "of at most 50 small letters, digits and `-`, that begins with a letter"
        )
    return name


def is_name(text: str) -> bool:
    """True if Kubernetes takes a text as the name of an object of any kind, with room for what platforms append."""
    return _LABEL.fullmatch(text) is not None


def read_wanted(source: ModelSource | Repository, name: str, **others: object) -> Wanted:
    """Combine the description of a deployment with the fields `others`; raise ProjectError for an impossible one."""
    if isinstance(source, Repository):
        models = tuple(source.names())
        is_folder = source.folder(models[0]) != source.root
    else:
        models, is_folder = (source.name,), False
    wanted = msgspec.convert(
        {"name": name_of(source, models, name), "models": models, "is_folder": is_folder, **others}, Wanted
    )
    if wanted.namespace and not is_name(wanted.namespace):
        raise ProjectError(f"--namespace: {wanted.namespace!r} is no name of a namespace")
    if not wanted.image or wanted.image.split() != [wanted.image]:
        raise ProjectError(f"--image: {wanted.image!r} is no image; write for example registry.example.com/digits:1")
    if wanted.storage and not _URI.fullmatch(wanted.storage):
        raise ProjectError(f"--storage-uri: {wanted.storage!r} is no URI; write for example gs://bucket/digits")
    if wanted.max_replicas < wanted.replicas:
        raise ProjectError(
            f"--max-replicas is {wanted.max_replicas}, less than --replicas, {wanted.replicas}; write at least as many"
        )
    return wanted


def model_name_option(wanted: Wanted) -> list[str]:
    """Return the option that names a single model as it is called here, whatever its folder is called there."""
    return [f"--model-name={wanted.models[0]}"] if len(wanted.models) == 1 else []


def claim_of(wanted: Wanted) -> tuple[str, str]:
    """Return the name of a PersistentVolumeClaim and the path in it; raises ProjectError for any other storage."""
    claim, _, path = wanted.storage.removeprefix(_PVC).partition("/")
    if not wanted.storage.startswith(_PVC) or not claim:
        raise ProjectError(
            f"--storage-uri: Kubernetes itself fetches nothing from {wanted.storage}; write pvc://CLAIM/PATH, "
            "or put the models into the image with `geartrain build`"
        )
    return claim, path.strip("/")


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


def resources(wanted: Wanted) -> dict[str, Any]:
    """Return the resources of a container."""
    limits: dict[str, Any] = {"memory": "4Gi", "ephemeral-storage": "8Gi"}
    if wanted.gpus:
        limits["nvidia.com/gpu"] = str(wanted.gpus)
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


def volumes(*others: Mapping[str, Any]) -> list[Any]:
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


def metadata(wanted: Wanted, name: str = "", *, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of an object."""
    found: dict[str, Any] = {"name": name or wanted.name}
    if wanted.namespace:
        found["namespace"] = wanted.namespace
    found["labels"] = labels(wanted)
    if annotations:
        found["annotations"] = annotations
    return found


def labels(wanted: Wanted) -> dict[str, str]:
    """Return the labels of what belongs together."""
    return {"app.kubernetes.io/name": wanted.name}


def kubernetes_object(
    kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any], *, comment: Iterable[str]
) -> Noted:
    """Return an object with what is said above it; `kind` with its API, such as `apps/v1/Deployment`."""
    api, _, name = kind.rpartition("/")
    return noted({"apiVersion": api, "kind": name, "metadata": metadata, "spec": spec}, *comment)
