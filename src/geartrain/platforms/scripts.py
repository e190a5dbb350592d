"""Scripts for a shell that set up an endpoint of Vertex AI or of Azure ML, with the platform's own program.

Sources: Google's reference of `gcloud ai` and of ModelContainerSpec; Microsoft's reference of the YAML of managed
online endpoints and deployments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from geartrain.platforms.manifest import noted, write_yaml
from geartrain.platforms.pod import DRAIN_DELAY, MODELS, SHUTDOWN_GRACE
from geartrain.platforms.spec import DeploymentSpec, model_name_option
from geartrain.project.errors import ProjectError

DEFAULT_MACHINE: Final = "n1-standard-4"
DEFAULT_REGION: Final = "us-central1"
DEFAULT_INSTANCE: Final = "Standard_DS3_v2"

_PORT: Final = 8080
_IMAGE_PORT: Final = 5000  # of the images of `geartrain build`
_SCHEMAS: Final = "https://azuremlschemas.azureedge.net/latest"
_ONLY_NAME: Final = "--format='value(name)'"
_OPTIONS: Final = (
    f"--drain-delay={DRAIN_DELAY}s",
    f"--shutdown-grace={SHUTDOWN_GRACE}s",
    "--restart=on-crash",
    "--log-format=json",
)


def vertex_script(spec: DeploymentSpec, *, machine: str, accelerator: str, region: str) -> str:
    """Return the script for Vertex AI; raises ProjectError for models that are neither in the image nor in GCS."""
    if spec.storage and not spec.storage.startswith("gs://"):
        raise ProjectError(
            f"--storage-uri: Vertex AI fetches nothing from {spec.storage}; write gs://BUCKET/PATH, "
            "or put the models into the image with `geartrain build`"
        )
    # Vertex AI copies the models to a bucket of its own, names that one in a variable, and expands $(…) itself.
    served = "$(AIP_STORAGE_URI)" if spec.storage else MODELS
    words = ["serve", served, *model_name_option(spec), "--api=vertex", "--host=0.0.0.0", f"--port={_PORT}", *_OPTIONS]
    scale = [f"--min-replica-count={spec.replicas}", f"--max-replica-count={spec.max_replicas}"]
    gpu = [f"--accelerator=type={accelerator},count={max(spec.gpus, 1)}"] if accelerator else []
    name = spec.name
    return _script(
        [
            "An endpoint of Vertex AI. The image is one of Artifact Registry.",
            "Needs gcloud, with a project: gcloud config set project NAME. Each run makes a new version of the model,",
            "and gives it all requests.",
        ],
        f"region={shlex.quote(region)}",
        f'find() {{ gcloud ai "$1" list --region="$region" --filter=displayName={name} --limit=1 {_ONLY_NAME}; }}',
        "",
        'if [ -z "$(find endpoints)" ]; then',
        _command("  gcloud ai endpoints create", [f"--display-name={name}"]),
        "fi",
        "parent=$(find models)",
        _command(
            'gcloud ai models upload ${parent:+--parent-model="$parent"}',
            [
                f"--display-name={name}",
                f"--container-image-uri={spec.image}",
                "--container-command=geartrain",
                f"--container-args={','.join(words)}",
                f"--container-ports={_PORT}",
                "--container-predict-route=/predict",
                "--container-health-route=/health",
                *([f"--artifact-uri={spec.storage}"] if spec.storage else []),
            ],
        ),
        _command(
            'gcloud ai endpoints deploy-model "$(find endpoints)" --model="$(find models)"',
            [f"--display-name={name}", f"--machine-type={machine}", *gpu, *scale, "--traffic-split=0=100"],
        ),
    )


def azure_script(spec: DeploymentSpec, *, instance: str, deployment: str) -> str:
    """Return the script for Azure ML."""
    endpoint = {
        "$schema": f"{_SCHEMAS}/managedOnlineEndpoint.schema.json",
        "name": spec.name,
        "auth_mode": noted("key", "Or aml_token, aad_token."),
    }
    probe = {"initial_delay": 5, "period": 5, "timeout": 2, "success_threshold": 1}
    made = {
        "$schema": f"{_SCHEMAS}/managedOnlineDeployment.schema.json",
        "name": deployment,
        "endpoint_name": spec.name,
        "environment": {
            "image": spec.image,
            "inference_config": {
                "liveness_route": {"port": _IMAGE_PORT, "path": "/livez"},
                "readiness_route": {"port": _IMAGE_PORT, "path": "/readyz"},
                "scoring_route": {"port": _IMAGE_PORT, "path": "/score"},
            },
        },
        "environment_variables": {"GEARTRAIN_API": "azure", "PORT": str(_IMAGE_PORT), "LOG_FORMAT": "json"},
        **_mounted(spec),
        "instance_type": instance,
        "instance_count": spec.replicas,
        "request_settings": {
            "request_timeout_ms": noted(90_000, "At most 180,000."),
            "max_concurrent_requests_per_instance": noted(100, "Requests above it wait at Azure, or are refused."),
        },
        "liveness_probe": {**probe, "failure_threshold": 30},
        "readiness_probe": {**probe, "failure_threshold": noted(120, "Setup may take ten minutes.")},
    }
    name, quoted = spec.name, shlex.quote(deployment)
    return _script(
        [
            "A managed online endpoint of Azure ML. The image is one of Azure's container registry, or a public one.",
            "Needs az with the extension ml, and a workspace: az configure --defaults group=GROUP workspace=NAME",
        ],
        "folder=$(mktemp -d)",
        "trap 'rm -r \"$folder\"' EXIT",
        "",
        *_file("endpoint.yml", write_yaml([noted(endpoint)])),
        *_file("deployment.yml", write_yaml([noted(made)])),
        f"az ml online-endpoint show --name {name} >/dev/null 2>&1 ||",
        '  az ml online-endpoint create --file "$folder/endpoint.yml"',
        f"if az ml online-deployment show --name {quoted} --endpoint-name {name} >/dev/null 2>&1; then",
        '  az ml online-deployment update --file "$folder/deployment.yml"',
        "else",
        '  az ml online-deployment create --file "$folder/deployment.yml"',
        "fi",
        f"az ml online-endpoint update --name {name} --traffic {shlex.quote(f'{deployment}=100')}",
    )


def _mounted(spec: DeploymentSpec) -> dict[str, object]:
    """Return the models that Azure mounts: as a version of a model, in a folder of models."""
    if not spec.storage:
        return {}
    return {
        "model": {"name": spec.name, "version": "1", "type": "custom_model", "path": spec.storage},
        "model_mount_path": noted(MODELS, f"The models are below it, at {spec.name}/1."),
    }


def _script(about: Iterable[str], *lines: str) -> str:
    return "\n".join(["#!/bin/sh", *(f"# {line}" for line in about), "set -eu", *lines]) + "\n"


def _command(begin: str, words: Iterable[str]) -> str:
    """Return a command with an option on each line."""
    indent = " " * (len(begin) - len(begin.lstrip()) + 2)
    return f" \\\n{indent}".join([begin, '--region="$region"', *map(shlex.quote, words)])


def _file(name: str, text: str) -> list[str]:
    return [f"cat >\"$folder/{name}\" <<'END'", *text.splitlines(), "END", ""]
