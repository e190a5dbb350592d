"""Makes a runner of a script for SageMaker, for an endpoint of Hugging Face, or for Azure ML."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance, load_target
from geartrain.worker.loading.scripts.azure import AzureScript
from geartrain.worker.loading.scripts.hugging_face import HuggingFaceHandler
from geartrain.worker.loading.scripts.sagemaker import SageMakerScript

_KINDS: Final[Mapping[str, tuple[type[SageMakerScript | HuggingFaceHandler | AzureScript], str, str]]] = {
    "sagemaker": (SageMakerScript, "inference.py", "model_fn"),
    "huggingface": (HuggingFaceHandler, "handler.py", "EndpointHandler"),
    "azureml": (AzureScript, "score.py", "run"),
}
"""For each backend its class, the name of its file, and a name that is there."""


def load_script(choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    """Import a script; its model is loaded by `setup()`. Raises `LoadError`."""
    kind, file, name = _KINDS[choice.name]
    path = Path(choice.path)
    if batching and batching.get("max_size") != 1:
        raise LoadError(
            f"take `batching` out of geartrain.yaml: a script for {choice.name} takes one request at a time"
        )
    folder = path if path.is_dir() else path.parent.parent if path.parent.name == "code" else path.parent
    if path.is_dir():
        path = next(each for each in (path / "code" / file, path / file) if each.is_file())
    kind.prepare(folder)
    target, where = load_target(f"{path.name}:{name}", path.parent)
    try:
        script = kind(sys.modules[target.__module__], folder)
    except ValueError as error:
        raise LoadError(f"{where}: {error}") from error
    runner = load_instance(script, script.run, path.parent, owner=f"the script {where}")
    return runner._replace(platform=choice.name)
