"""A Server of Seldon Core 2, and a Model for each model. Source: Seldon's documentation of its resources."""

from __future__ import annotations

from typing import Final

from geartrain.platforms import pod
from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.pod import kubernetes_object, metadata
from geartrain.platforms.spec import DeploymentSpec, is_name
from geartrain.project.errors import ProjectError

DEFAULT_SERVER: Final = "geartrain"
_CONFIG: Final = "mlserver"  # Seldon's own, whose agent goes with any server of the Open Inference Protocol
_MODELS: Final = "/mnt/agent/models"  # the agent's folder of models
_PORT: Final = 9000
_GRPC_PORT: Final = 9500
_CAPABILITIES: Final = ("geartrain", "sklearn", "xgboost", "lightgbm", "onnx", "python")


def seldon_objects(spec: DeploymentSpec, server: str) -> list[Noted]:
    """Return the objects; raises ProjectError where it is not said where the models lie."""
    if not spec.storage:
        raise ProjectError("Seldon fetches the models itself; say where they lie: --storage-uri gs://bucket/models")
    return [serving(spec, server), *(model(spec, name, server) for name in spec.models)]


def serving(spec: DeploymentSpec, server: str) -> Noted:
    """Return the Server."""
    container = {
        "name": _CONFIG,
        "image": spec.image,
        "command": ["geartrain", "serve", _MODELS],
        "args": [
            noted("--load=none", "The folder is empty at first. Seldon's agent loads what it has fetched."),
            "--host=0.0.0.0",
            f"--port={_PORT}",
            f"--grpc-port={_GRPC_PORT}",
            *pod.ENDING,
        ],
        "env": pod.environment(),
        **pod.probes("/v2/health/ready", "/v2/health/live", "server-http"),
        "resources": pod.resources(spec),
        "securityContext": {**pod.SECURITY, "runAsNonRoot": True},
        "volumeMounts": pod.mounts(),
    }
    found = metadata(spec, server)
    found["labels"] = {"app.kubernetes.io/name": server}
    return kubernetes_object(
        "mlops.seldon.io/v1alpha1/Server",
        found,
        {
            "serverConfig": _CONFIG,
            "replicas": spec.replicas,
            "minReplicas": spec.replicas,
            "maxReplicas": spec.max_replicas,
            "capabilities": list(_CAPABILITIES),
            "podSpec": {
                "terminationGracePeriodSeconds": pod.GRACE,
                "containers": [noted(container, f"In place of this container of the ServerConfig {_CONFIG}.")],
                "volumes": pod.volumes(),
            },
        },
        comment=[
            "A server of Seldon Core 2, beside those that it is installed with.",
            "Change the image: it has geartrain, and the libraries of the models.",
        ],
    )


def model(spec: DeploymentSpec, name: str, server: str) -> Noted:
    """Return one Model; raises ProjectError for a name that it cannot have."""
    if spec.is_folder and not is_name(name):
        raise ProjectError(f"{name!r} is no name for objects of Kubernetes; rename its folder")
    uri = f"{spec.storage.rstrip('/')}/{name}" if spec.is_folder else spec.storage
    return kubernetes_object(
        "mlops.seldon.io/v1alpha1/Model",
        metadata(spec, name if spec.is_folder else spec.name),
        {"storageUri": uri, "server": server, "requirements": ["geartrain"], "replicas": spec.replicas},
        comment=["A model, which Seldon fetches and has the server load."],
    )
