"""A runtime for KServe, and a service that uses it. Sources: KServe's documentation, and its types in PyPI's kserve."""

from __future__ import annotations

from typing import Any, Final

from geartrain.platforms import pod
from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.pod import kubernetes_object, metadata
from geartrain.platforms.spec import DeploymentSpec, model_name_option

DEFAULT_RUNTIME: Final = "geartrain"
_CONTAINER: Final = "kserve-container"
_MOUNTED: Final = "/mnt/models"
_PORT: Final = 8080
_GRPC_PORT: Final = 9000
_FORMATS: Final = ("sklearn", "xgboost", "lightgbm", "catboost", "onnx", "pytorch", "tensorflow")
_OWN_FORMAT: Final = "geartrain"  # a model that is code
_MODE: Final = "serving.kserve.io/deploymentMode"


def kserve_objects(
    spec: DeploymentSpec, *, runtime: str, is_cluster: bool, is_knative: bool, is_grpc: bool
) -> list[Noted]:
    """Return the objects: a runtime and a service, or the service alone where the models are in the image."""
    if not spec.storage:
        return [service(spec, runtime, is_knative=is_knative, is_grpc=is_grpc)]
    return [
        serving_runtime(spec, runtime, is_cluster=is_cluster, is_grpc=is_grpc),
        service(spec, runtime, is_knative=is_knative, is_grpc=is_grpc),
    ]


def serving_runtime(spec: DeploymentSpec, runtime: str, *, is_cluster: bool, is_grpc: bool) -> Noted:
    """Return a ServingRuntime, or a ClusterServingRuntime."""
    found = metadata(spec, runtime)
    found["labels"] = {"app.kubernetes.io/name": runtime}
    if is_cluster:
        found.pop("namespace", None)
    formats = [{"name": name} for name in _FORMATS]
    return kubernetes_object(
        f"serving.kserve.io/v1alpha1/{'Cluster' if is_cluster else ''}ServingRuntime",
        found,
        {
            "annotations": _metrics(),
            "supportedModelFormats": [{"name": _OWN_FORMAT, "autoSelect": True}, *formats],
            "protocolVersions": ["v2", "grpc-v2"],
            "containers": [_container(spec, is_grpc=is_grpc)],
            "volumes": pod.volumes(),
        },
        comment=[
            "A runtime for KServe, for all namespaces." if is_cluster else "A runtime for KServe, for one namespace.",
            "Change the image: it has geartrain, and the libraries of the models.",
        ],
    )


def service(spec: DeploymentSpec, runtime: str, *, is_knative: bool, is_grpc: bool) -> Noted:
    """Return an InferenceService: of a runtime, or with a container of its own where the models are in the image."""
    predictor: dict[str, Any] = {"minReplicas": spec.replicas, "maxReplicas": spec.max_replicas}
    if not is_knative:  # which does not let these be set
        predictor["terminationGracePeriodSeconds"] = pod.GRACE
        predictor["automountServiceAccountToken"] = False
        predictor["securityContext"] = pod.POD_SECURITY
    if spec.storage:
        predictor["model"] = {
            "modelFormat": {"name": _OWN_FORMAT},
            "runtime": runtime,
            "storageUri": spec.storage,
            "protocolVersion": "grpc-v2" if is_grpc else "v2",
            "resources": pod.resources(spec),
        }
        annotations = {}
    else:
        predictor["containers"] = [_container(spec, is_grpc=is_grpc)]
        predictor["volumes"] = pod.volumes()
        annotations = _metrics()
    annotations[_MODE] = "Serverless" if is_knative else "RawDeployment"
    where = (
        f"the models at storageUri, served by the runtime {runtime!r}" if spec.storage else "the models of its image"
    )
    return kubernetes_object(
        "serving.kserve.io/v1beta1/InferenceService",
        metadata(spec, annotations=annotations),
        {"predictor": predictor},
        comment=[f"A service of KServe: {where}."],
    )


def _metrics() -> dict[str, str]:
    return {"prometheus.kserve.io/port": str(_PORT), "prometheus.kserve.io/path": "/metrics"}


def _container(spec: DeploymentSpec, *, is_grpc: bool) -> dict[str, Any]:
    names: list[Any] = model_name_option(spec)
    if names and spec.storage:
        names = [noted("--model-name={{.Name}}", "Clients ask for the model by the name of the service.")]
    port = {"name": "h2c" if is_grpc else "http1", "containerPort": _PORT, "protocol": "TCP"}
    return {
        "name": _CONTAINER,
        "image": spec.image,
        "command": ["geartrain", "serve", _MOUNTED if spec.storage else pod.MODELS],
        "args": [
            *names,
            "--host=0.0.0.0",
            f"--port={_PORT}",
            noted(f"--grpc-port={_GRPC_PORT}", f"For clients that expect it there; port {_PORT} takes gRPC as well."),
            noted("--health-body", "KServe's Python client reads it."),
            *pod.ENDING,
        ],
        "env": pod.environment(),
        "ports": [port],
        **pod.probes("/v2/health/ready", "/v2/health/live", _PORT),
        "resources": pod.resources(spec),
        "securityContext": {**pod.SECURITY, "runAsNonRoot": True},
        "volumeMounts": pod.mounts(),
    }
