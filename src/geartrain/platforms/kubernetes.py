"""A Deployment with its Service, and what changes the number of its pods."""

from __future__ import annotations

from typing import Any, Final, Literal

from geartrain.platforms import pod
from geartrain.platforms.manifest import Noted, noted
from geartrain.platforms.pod import kubernetes_object, labels, metadata
from geartrain.platforms.spec import DeploymentSpec, claim_of, model_name_option

Autoscaler = Literal["cpu", "queue", "keda", "none"]

HTTP_PORT: Final = 5000
ADMIN_PORT: Final = 5001
PENDING: Final = "nv_inference_pending_request_count"
_PENDING_EACH: Final = 4  # requests that may wait for a slot of each pod, on average
_CALM: Final = 300  # seconds


def kubernetes_objects(spec: DeploymentSpec, autoscaler: Autoscaler, prometheus: str) -> list[Noted]:
    """Return the objects. `prometheus`: its URL, as KEDA reaches it. Raises ProjectError for storage it cannot have."""
    return [
        deployment(spec, is_scaled=autoscaler != "none"),
        service(spec),
        *_scaling(spec, autoscaler, prometheus),
    ]


def deployment(spec: DeploymentSpec, *, is_scaled: bool) -> Noted:
    """Return the Deployment; with `is_scaled` something else says how many pods it has."""
    storage_volumes, storage_mounts = _storage(spec)
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


def _storage(spec: DeploymentSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volume with the models and where it is mounted; nothing where they are in the image."""
    if not spec.storage:
        return [], []
    claim, path = claim_of(spec)
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
