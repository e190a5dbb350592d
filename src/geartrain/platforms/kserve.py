"""A runtime for KServe, and a service that uses it. Sources: KServe's documentation, and its types in PyPI's kserve."""

from __future__ import annotations

from typing import Any, Final

import msgspec

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
OWN_FORMAT: Final = "geartrain"  # a model that is code
_MODE: Final = "serving.kserve.io/deploymentMode"


class KServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Choices that differ between services of KServe.

    `runtime` is the name of the runtime, `model_format` that of the models. `has_v1`: clients may speak version 1 of
    KServe's protocol; `is_grpc`: the way to the pods speaks HTTP/2.
    """

    runtime: str = DEFAULT_RUNTIME
    model_format: str = OWN_FORMAT
    is_cluster: bool = False
    is_knative: bool = False
    is_grpc: bool = False
    has_v1: bool = False


def kserve_objects(spec: DeploymentSpec, options: KServeOptions) -> list[Noted]:
    """Return the objects: a runtime and a service, or the service alone where the models are in the image."""
    if not spec.storage:
        return [service(spec, options)]
    return [serving_runtime(spec, options), service(spec, options)]


def serving_runtime(spec: DeploymentSpec, options: KServeOptions) -> Noted:
    """Return a ServingRuntime, or a ClusterServingRuntime. KServe takes it for the format of `options` by itself."""
    found = metadata(spec, options.runtime)
    found["labels"] = {"app.kubernetes.io/name": options.runtime}
    if options.is_cluster:
        found.pop("namespace", None)
    chosen = options.model_format
    others = [{"name": name} for name in (OWN_FORMAT, *_FORMATS) if name != chosen]
    return kubernetes_object(
        f"serving.kserve.io/v1alpha1/{'Cluster' if options.is_cluster else ''}ServingRuntime",
        found,
        {
            "annotations": _metrics(),
            "supportedModelFormats": [{"name": chosen, "autoSelect": True}, *others],
            "protocolVersions": [*(["v1"] if options.has_v1 else []), "v2", "grpc-v2"],
            "containers": [_container(spec, options)],
            "volumes": pod.volumes(),
        },
        comment=[
            f"A runtime for KServe, for {'all namespaces' if options.is_cluster else 'one namespace'}.",
            "Change the image: it has geartrain, and the libraries of the models.",
        ],
    )


def service(spec: DeploymentSpec, options: KServeOptions) -> Noted:
    """Return an InferenceService: of a runtime, or with a container of its own where the models are in the image."""
    predictor: dict[str, Any] = {"minReplicas": spec.replicas, "maxReplicas": spec.max_replicas}
    if not options.is_knative:  # which does not let these be set
        predictor["terminationGracePeriodSeconds"] = pod.GRACE
        predictor["automountServiceAccountToken"] = False
        predictor["securityContext"] = pod.POD_SECURITY
    if spec.storage:
        predictor["model"] = {
            "modelFormat": {"name": options.model_format},
            "runtime": options.runtime,
            "storageUri": spec.storage,
            "protocolVersion": "v1" if options.has_v1 else "grpc-v2" if options.is_grpc else "v2",
            "resources": pod.resources(spec),
        }
        annotations = {}
    else:
        predictor["containers"] = [_container(spec, options)]
        predictor["volumes"] = pod.volumes()
        annotations = _metrics()
    annotations[_MODE] = "Serverless" if options.is_knative else "RawDeployment"
    where = (
        f"the models at storageUri, served by the runtime {options.runtime!r}"
        if spec.storage
        else "the models of its image"
    )
    return kubernetes_object(
        "serving.kserve.io/v1beta1/InferenceService",
        metadata(spec, annotations=annotations),
        {"predictor": predictor},
        comment=[f"A service of KServe: {where}."],
    )


def _metrics() -> dict[str, str]:
    return {"prometheus.kserve.io/port": str(_PORT), "prometheus.kserve.io/path": "/metrics"}


def _container(spec: DeploymentSpec, options: KServeOptions) -> dict[str, Any]:
    names: list[Any] = model_name_option(spec)
    if names and spec.storage:
        names = [noted("--model-name={{.Name}}", "Clients ask for the model by the name of the service.")]
    port = {"name": "h2c" if options.is_grpc else "http1", "containerPort": _PORT, "protocol": "TCP"}
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
            *(["--api=kserve"] if options.has_v1 else []),
            *pod.ENDING,
        ],
        "env": pod.environment(),
        "ports": [port],
        **pod.probes("/v2/health/ready", "/v2/health/live", _PORT),
        "resources": pod.resources(spec),
        "securityContext": {**pod.SECURITY, "runAsNonRoot": True},
        "volumeMounts": pod.mounts(),
    }
