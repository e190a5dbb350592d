"""Makes a runner of a script that was written for another server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance, load_module
from geartrain.worker.loading.scripts.script import Script


def _sagemaker() -> type[Script]:
    from geartrain.worker.loading.scripts.sagemaker import SageMakerScript

    return SageMakerScript


def _hugging_face() -> type[Script]:
    from geartrain.worker.loading.scripts.hugging_face import HuggingFaceHandler

    return HuggingFaceHandler


def _azure() -> type[Script]:
    from geartrain.worker.loading.scripts.azure import AzureScript

    return AzureScript


def _litserve() -> type[Script]:
    from geartrain.worker.loading.scripts.litserve import LitServeScript

    return LitServeScript


def _torchserve() -> type[Script]:
    from geartrain.worker.loading.scripts.torchserve import TorchServeHandler

    return TorchServeHandler


def _truss() -> type[Script]:
    from geartrain.worker.loading.scripts.truss import TrussModel

    return TrussModel


def _kserve() -> type[Script]:
    from geartrain.worker.loading.scripts.kserve import KServeScript

    return KServeScript


def _mlserver() -> type[Script]:
    from geartrain.worker.loading.scripts.mlserver import MlserverRuntime

    return MlserverRuntime


_KINDS: Final[Mapping[str, Callable[[], type[Script]]]] = {
    "sagemaker": _sagemaker,
    "huggingface": _hugging_face,
    "azureml": _azure,
    "litserve": _litserve,
    "torchserve": _torchserve,
    "truss": _truss,
    "kserve": _kserve,
    "mlserver": _mlserver,
}
"""Imports the class of a backend."""


def load_script(choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    """Import a script; its model is loaded by `setup()`. Raises `LoadError`."""
    kind = _KINDS[choice.name]()
    path = Path(choice.path)
    try:
        place = kind.find(path)
    except ValueError as error:
        raise LoadError(f"{path.name}: {error}") from error
    kind.prepare(place)
    module, where = load_module(*kind.reference(place))
    try:
        script = kind(module, place, choice.options)
    except ValueError as error:
        raise LoadError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise LoadError(f"{where}: {describe_error(error)}") from error
    if script.batching is None and batching and batching.get("max_size") != 1:
        raise LoadError(
            f"take `batching` out of geartrain.yaml: a script for {choice.name} takes one request at a time"
        )
    settings = None if script.batching is None else {**script.batching, **(batching or {})}
    runner = load_instance(script, script.run, place.file.parent, owner=f"the script {where}", batching=settings)
    return runner._replace(platform=choice.name, max_concurrency=script.max_concurrency, healthcheck=script.health)
