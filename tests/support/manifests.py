"""Checks objects of Kubernetes and of what runs in it, as strictly as a server that takes no unknown field.

Objects of Kubernetes itself are checked by its JSON schemas (PyPI: kubernetes-validate). Those of KServe are checked by
its own types, which are made of the same source as its CRDs (PyPI: kserve, and kubernetes for what they contain). Of
Seldon Core 2 and KEDA nothing can be installed from PyPI: `TABLES` has the part of their CRDs that is used here, after
their documentation.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

import kubernetes_validate
import kubernetes_validate.utils

_QUANTITY: Final = "ResourceQuantity"
_QUANTITIES: Final = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[numkMGTPE])?")
_LIST: Final = re.compile(r"[lL]ist\[(.*)\]")
_DICT: Final = re.compile(r"[dD]ict[\[(]str, (.*)[\])]")
_SCALARS: Final = {"str": str, "int": int, "bool": bool}

_REFERENCE: Final = {"apiVersion": "str", "kind": "str", "name!": "str"}
_SCALE: Final = {"replicas": "int", "minReplicas": "int", "maxReplicas": "int"}
TABLES: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("mlops.seldon.io/v1alpha1", "Server"): {
        **_SCALE,
        "serverConfig!": "str",
        "capabilities": "list[str]",
        "extraCapabilities": "list[str]",
        "podSpec": "V1PodSpec",
    },
    ("mlops.seldon.io/v1alpha1", "Model"): {
        **_SCALE,
        "storageUri!": "str",
        "server": "str",
        "requirements": "list[str]",
        "memory": "ResourceQuantity",
        "artifactVersion": "int",
        "modelType": "str",
        "secretName": "str",
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef!": _REFERENCE,
        "minReplicaCount": "int",
        "maxReplicaCount": "int",
        "pollingInterval": "int",
        "cooldownPeriod": "int",
        "triggers!": [{"type!": "str", "name": "str", "metadata!": "dict(str, str)", "metricType": "str"}],
    },
}
"""By API and kind the fields of `spec` and their types; `!` marks those that have to be there."""

_KSERVE: Final = {
    "ServingRuntime": "V1alpha1ServingRuntime",
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}


# It reads the schemas, a megabyte, for each object that it checks.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


@functools.cache
def _kserve_types() -> Any:
    """Return the types of KServe alone: its messages of gRPC and those of tritonclient cannot be in one process.

    They take a second to be imported.
    """
    spec = importlib.util.find_spec("kserve")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = types.ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations)
    before = dict(sys.modules)
    sys.modules["kserve"] = package
    try:
        return importlib.import_module("kserve.models")
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "kserve"]:
            del sys.modules[name]
        sys.modules.update({name: each for name, each in before.items() if name.partition(".")[0] == "kserve"})


class InvalidManifestError(ValueError):
    """An object that its platform would not take; the message has the path of what is wrong."""


def check(document: Mapping[str, Any], version: str) -> None:
    """Raise `InvalidManifestError`; `version` is that of Kubernetes."""
    api, kind = document.get("apiVersion", ""), document.get("kind", "")
    if api.startswith("serving.kserve.io/"):
        wanted = _KSERVE.get(kind, "")
        if f"{api.partition('/')[2].capitalize()}{kind}" != wanted:
            raise InvalidManifestError(f"there is no {kind} in {api}")
        _check(document, wanted, kind)
    elif (api, kind) in TABLES:
        metadata = {"apiVersion!": "str", "kind!": "str", "metadata!": "V1ObjectMeta"}
        _check(document, {**metadata, "spec!": TABLES[api, kind]}, kind)
    else:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            raise InvalidManifestError(str(error)) from error


def _check(value: Any, wanted: Any, path: str) -> None:
    if isinstance(wanted, Mapping):
        _check_table(value, wanted, path)
    elif isinstance(wanted, list):
        _check_items(value, wanted[0], path)
    elif match := _LIST.fullmatch(wanted):
        _check_items(value, match[1], path)
    elif match := _DICT.fullmatch(wanted):
        for key, each in _mapping(value, path).items():
            _check(each, match[1], f"{path}.{key}")
    elif wanted in _SCALARS or wanted == _QUANTITY:
        _check_scalar(value, wanted, path)
    elif wanted != "object":
        _check_model(value, wanted, path)


def _check_scalar(value: Any, wanted: str, path: str) -> None:
    if wanted == _QUANTITY:
        is_right = type(value) is int or (isinstance(value, str) and _QUANTITIES.fullmatch(value))
    else:
        is_right = type(value) is _SCALARS[wanted]
    if not is_right:
        raise InvalidManifestError(f"{path}: {value!r} is no {wanted}")


def _check_items(value: Any, wanted: Any, path: str) -> None:
    if not isinstance(value, list):
        raise InvalidManifestError(f"{path}: {value!r} is no list")
    for number, each in enumerate(value):
        _check(each, wanted, f"{path}[{number}]")


def _check_table(value: Any, fields: Mapping[str, Any], path: str) -> None:
    types = {name.rstrip("!"): wanted for name, wanted in fields.items()}
    for key, each in _mapping(value, path).items():
        if key not in types:
            raise InvalidManifestError(f"{path}: there is no field {key}")
        _check(each, types[key], f"{path}.{key}")
    for name in fields:
        if name.endswith("!") and name[:-1] not in value:
            raise InvalidManifestError(f"{path}: {name[:-1]} is missing")


def _check_model(value: Any, name: str, path: str) -> None:
    """Check by a type of KServe or Kubernetes, whose own constructor knows what has to be there."""
    kubernetes_types = importlib.import_module("kubernetes.client.models")
    model = getattr(_kserve_types(), name, None) or getattr(kubernetes_types, name)
    attributes = {written: attribute for attribute, written in model.attribute_map.items()}
    for key, each in _mapping(value, path).items():
        if key not in attributes:
            raise InvalidManifestError(f"{path}: there is no field {key}")
        wanted = model.openapi_types[attributes[key]]
        quantities = {"limits", "requests"} & {key} and _DICT.fullmatch(wanted)
        _check(each, "dict(str, ResourceQuantity)" if quantities else wanted, f"{path}.{key}")
    try:
        model(**{attributes[key]: each for key, each in value.items()})
    except ValueError as error:
        raise InvalidManifestError(f"{path}: {error}") from error


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidManifestError(f"{path}: {value!r} is no mapping")
    return value
