"""Makes a runner of a script that was written for another server."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance, load_module
from geartrain.worker.loading.scripts.main_block import arguments_of
from geartrain.worker.loading.scripts.script import Place, Script
from geartrain.worker.loading.scripts.servers import no_servers


def load_script(choice: BackendChoice, batching: Mapping[str, Any] | None, *, kind: str) -> LoadedRunner:
    """Import a script of a class of this package, such as `azure:AzureScript`; its model is loaded by `setup()`.

    Raises `LoadError`.
    """
    module_name, _, class_name = kind.partition(":")
    found = importlib.import_module(f"{__package__}.{module_name}")
    return _load(getattr(found, class_name), choice, batching)


def _load(kind: type[Script], choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    path = Path(choice.path)
    try:
        place = kind.find(path)
    except ValueError as error:
        raise LoadError(f"{path.name}: {error}") from error
    with no_servers():
        script, where = _made(kind, place, choice.options)
    if batching and batching.get("max_size") != 1:
        try:
            script.share_calls()
        except ValueError as error:
            raise LoadError(f"take `batching` out of geartrain.yaml: {where}: {error}") from error
    settings = None if script.batching is None else {**script.batching, **(batching or {})}
    runner = load_instance(script, script.run, place.file.parent, owner=f"the script {where}", batching=settings)
    return runner._replace(platform=choice.name, max_concurrency=script.max_concurrency, healthcheck=script.health)


def _made(kind: type[Script], place: Place, options: Mapping[str, Any]) -> tuple[Script, str]:
    """Import a script; return it, and its name for messages. Raises `LoadError`."""
    kind.prepare(place)
    if kind.reads_arguments:
        sys.argv = [str(place.file), *arguments_of(options)]
    module, where = load_module(*kind.reference(place))
    try:
        return kind(module, place, options), where
    except ValueError as error:
        raise LoadError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise LoadError(f"{where}: {describe_error(error)}") from error
