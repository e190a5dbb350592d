"""A Deployment with its Service, and what changes the number of its pods; or a Job that runs a data set."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from geartrain.platforms import pod
from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.pod import kubernetes_object, labels, metadata
from geartrain.platforms.spec import DeploymentSpec, claim_of, model_name_option
from geartrain.project.errors import ProjectError

Autoscaler = Literal["cpu", "queue", "keda", "none"]

HTTP_PORT: Final = 5000
ADMIN_PORT: Final = 5001
PENDING: Final = "nv_inference_pending_request_count"
_PENDING_EACH: Final = 4  # requests that may wait for a slot of each pod, on average
_CALM: Final = 300  # seconds
_TRIES: Final = 3  # of a share, after its first one
_ROWS_END: Final = 60  # seconds
DATA: Final = "/data"
"""The folder of a Job's claim in its pods."""


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `geartrain batch` by the pods of a Job.

    `source` and `output` are IN and OUT as the pods have them, `data` the claim that is mounted at /data. `options` are
    further words of the command.
    """

    source: str
    output: str
    data: str
    parts: int = 4
    options: tuple[str, ...] = ()


def kubernetes_objects(spec: DeploymentSpec, autoscaler: Autoscaler, prometheus: str) -> list[Noted]:
    """Return the objects. `prometheus`: its URL, as KEDA reaches it. Raises ProjectError for storage it cannot have."""
    return [
        deployment(spec, is_scaled=autoscaler != "none"),
        service(spec),
        *_scaling(spec, autoscaler, prometheus),
    ]


def deployment(spec: DeploymentSpec, *, is_scaled: bool) -> Noted:
    """Return the Deployment; with `is_scaled` something else says how many pods it has."""
    storage_volumes, storage_mounts = _models(spec)
    container = {
        "name": "geartrain",
        "image": spec.image,
        "command": ["geartrain", "serve", pod.MODELS],
        "args": [
            *model_name_option(spec),
            "--host=0.0.0.0",
            f"--port={HTTP_PORT}",
            noted(f"--admin-port={ADMIN_PORT}", "Metrics and administration, which the Service does not offer."),
            noted("--grpc-port=off", f"gRPC is on port {HTTP_PORT} as well."),
            *pod.ENDING,
        ],
        "env": pod.environment(),
        "ports": [{"name": "http", "containerPort": HTTP_PORT}, {"name": "admin", "containerPort": ADMIN_PORT}],
        **pod.probes("/readyz", "/livez", "http"),
        "resources": pod.resources(spec),
        "securityContext": pod.SECURITY,
        "volumeMounts": pod.mounts(*storage_mounts),
    }
    template = {
        "metadata": {
            "labels": labels(spec),
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/path": "/metrics",
                "prometheus.io/port": str(ADMIN_PORT),
            },
        },
        "spec": {
            "terminationGracePeriodSeconds": pod.GRACE,
            "automountServiceAccountToken": False,
            "securityContext": pod.POD_SECURITY,
            "containers": [container],
            "volumes": pod.volumes(*storage_volumes),
        },
    }
    number = {} if is_scaled else {"replicas": spec.replicas}  # else an update undoes what was scaled
    return kubernetes_object(
        "apps/v1/Deployment",
        metadata(spec),
        {
            **number,
            "selector": {"matchLabels": labels(spec)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        },
        comment=["Models in Kubernetes. Change the image, which has geartrain and the models, and the resources."],
    )


def batch_job(spec: DeploymentSpec, batch: BatchSpec) -> Noted:
    """Return a Job with an index for each share of a data set. Raises `ProjectError` for one that cannot run."""
    _check_places(batch)
    spec = msgspec.structs.replace(spec, name=f"{spec.name}-batch")  # the Service of the model selects none of its pods
    storage_volumes, storage_mounts = _models(spec)
    claim, path = claim_of(batch.data, "--data")
    container = {
        "name": "geartrain",
        "image": spec.image,
        "command": ["geartrain", "batch", _one_model(spec), batch.source],
        "args": [
            f"--output={batch.output}",
            noted(f"--part=$(JOB_COMPLETION_INDEX)/{batch.parts}", "The number of shares is that of completions."),
            noted("--resume", "A pod that takes the place of another one goes on where that was."),
            *batch.options,
        ],
        "env": pod.environment(),
        "resources": pod.resources(spec),
        "securityContext": pod.SECURITY,
        "volumeMounts": pod.mounts(
            *storage_mounts, {"name": "data", "mountPath": DATA, **({"subPath": path} if path else {})}
        ),
    }
    return kubernetes_object(
        "batch/v1/Job",
        metadata(spec),
        {
            "completionMode": "Indexed",
            "completions": batch.parts,
            "parallelism": noted(min(spec.max_replicas, batch.parts), "So many pods at once."),
            "backoffLimitPerIndex": noted(_TRIES, "A share is tried again so often; the others go on all the same."),
            "podFailurePolicy": noted(
                {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
                "A pod that had to go, such as from a node that is drained, has not failed.",
            ),
            "template": {
                "metadata": {"labels": labels(spec)},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": noted(_ROWS_END, "The rows that run end, and are written."),
                    "automountServiceAccountToken": False,
                    "securityContext": pod.POD_SECURITY,
                    "containers": [container],
                    "volumes": pod.volumes(
                        *storage_volumes,
                        noted(
                            {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
                            "Pods on several nodes need a claim with the access mode ReadWriteMany.",
                        ),
                    ),
                },
            },
        },
        comment=["A model over a data set. Change the image, which has geartrain and the model, and the resources."],
    )


def _check_places(batch: BatchSpec) -> None:
    if "://" not in batch.source and not batch.source.startswith(f"{DATA}/"):
        raise ProjectError(
            f"--batch: the pods have no {batch.source}; write a path below {DATA}, where --data is mounted, or a URL"
        )
    if not batch.output.startswith(f"{DATA}/"):
        raise ProjectError(
            f"--output: {batch.output!r} would end with its pod; write a path below {DATA}, where --data is mounted"
        )


def _one_model(spec: DeploymentSpec) -> str:
    """Return the place of the only model in the pods. Raises `ProjectError` where there are several."""
    if len(spec.models) > 1:
        raise ProjectError(f"--batch runs one model, and there are {', '.join(spec.models)}; name the folder of one")
    return f"{pod.MODELS}/{spec.models[0]}" if spec.is_folder else pod.MODELS


def _models(spec: DeploymentSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volume with the models and where it is mounted; nothing where they are in the image."""
    if not spec.storage:
        return [], []
    claim, path = claim_of(spec.storage)
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    mount = {"name": "models", "mountPath": pod.MODELS, "readOnly": True, **({"subPath": path} if path else {})}
    return [volume], [mount]


def service(spec: DeploymentSpec) -> Noted:
    """Return the Service."""
    return kubernetes_object(
        "v1/Service",
        metadata(spec),
        {
            "selector": labels(spec),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
        comment=[
            "Balances connections, not requests. A client that keeps one connection for long, as gRPC does, has one",
            "pod all the while; set `clusterIP: None` and let such clients balance, or put a proxy in front that",
            "knows HTTP/2.",
        ],
    )


def _scaling(spec: DeploymentSpec, autoscaler: Autoscaler, prometheus: str) -> list[Noted]:
    if autoscaler == "cpu":
        return [by_processors(spec)]
    if autoscaler == "queue":
        return [by_queue(spec)]
    return [by_keda(spec, prometheus)] if autoscaler == "keda" else []


def by_processors(spec: DeploymentSpec) -> Noted:
    """Return an autoscaler that needs nothing but the metrics server."""
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
    }
    comment = ["More pods when the processors are busy. For models on a GPU, scale by the requests that wait instead."]
    return _autoscaler(spec, metric, comment)


def by_queue(spec: DeploymentSpec) -> Noted:
    """Return an autoscaler by the requests that wait, which Prometheus has to tell."""
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": PENDING},
            "target": {"type": "AverageValue", "averageValue": str(_PENDING_EACH)},
        },
    }
    comment = [
        f"More pods when more than {_PENDING_EACH} requests wait in each, on average.",
        "It needs an adapter for metrics of Prometheus.",
    ]
    return _autoscaler(spec, metric, comment)


def _autoscaler(spec: DeploymentSpec, metric: dict[str, Any], comment: list[str]) -> Noted:
    return kubernetes_object(
        "autoscaling/v2/HorizontalPodAutoscaler",
        metadata(spec),
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": spec.name},
            "minReplicas": spec.replicas,
            "maxReplicas": spec.max_replicas,
            "metrics": [metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _CALM}},
        },
        comment=comment,
    )


def by_keda(spec: DeploymentSpec, prometheus: str) -> Noted:
    """Return an autoscaler of KEDA by the requests that wait."""
    pods = f'namespace="{spec.namespace or "default"}",pod=~"{spec.name}-.*"'
    return kubernetes_object(
        "keda.sh/v1alpha1/ScaledObject",
        metadata(spec),
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": spec.name},
            "minReplicaCount": spec.replicas,
            "maxReplicaCount": spec.max_replicas,
            "pollingInterval": 5,
            "cooldownPeriod": _CALM,
            "triggers": [
                {
                    "type": "prometheus",
                    "metadata": {
                        "serverAddress": noted(prometheus, "Where Prometheus is."),
                        "query": f"sum({PENDING}{{{pods}}})",
                        "threshold": str(_PENDING_EACH),
                    },
                }
            ],
        },
        comment=[f"More pods when more than {_PENDING_EACH} requests wait for each. It needs KEDA and Prometheus."],
    )
