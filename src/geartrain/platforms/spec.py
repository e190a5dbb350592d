"""A deployment as the operator describes it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource

_LABEL: Final = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'{}]+")
_PVC: Final = "pvc://"


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Models of a deployment, its name, image and sizes.

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


def read_spec(source: ModelSource | Repository, name: str, **others: object) -> DeploymentSpec:
    """Combine the description of a deployment with the fields `others`; raise ProjectError for an impossible one."""
    if isinstance(source, Repository):
        models = tuple(source.names())
        is_folder = source.folder(models[0]) != source.root
    else:
        models, is_folder = (source.name,), False
    spec = msgspec.convert(
        {"name": name_of(source, models, name), "models": models, "is_folder": is_folder, **others}, DeploymentSpec
    )
    if spec.namespace and not is_name(spec.namespace):
        raise ProjectError(f"--namespace: {spec.namespace!r} is no name of a namespace")
    if not spec.image or spec.image.split() != [spec.image]:
        raise ProjectError(f"--image: {spec.image!r} is no image; write for example registry.example.com/digits:1")
    if spec.storage and not _URI.fullmatch(spec.storage):
        raise ProjectError(f"--storage-uri: {spec.storage!r} is no URI; write for example gs://bucket/digits")
    if spec.max_replicas < spec.replicas:
        raise ProjectError(
            f"--max-replicas is {spec.max_replicas}, less than --replicas, {spec.replicas}; write at least as many"
        )
    return spec


def model_name_option(spec: DeploymentSpec) -> list[str]:
    """Return the option that names a single model as it is called here, whatever its folder is called there."""
    return [f"--model-name={spec.models[0]}"] if len(spec.models) == 1 else []


def claim_of(uri: str, option: str = "--storage-uri") -> tuple[str, str]:
    """Return the name of a PersistentVolumeClaim and the path in it; raises ProjectError for any other storage."""
    claim, _, path = uri.removeprefix(_PVC).partition("/")
    if not uri.startswith(_PVC) or not claim:
        otherwise = ", or put the models into the image with `geartrain build`" if option == "--storage-uri" else ""
        raise ProjectError(
            f"{option}: Kubernetes itself mounts nothing from {uri!r}; write pvc://CLAIM/PATH{otherwise}"
        )
    return claim, path.strip("/")
