"""What a target means to a server: a folder of models, or one model."""

from __future__ import annotations

import os
from collections.abc import Mapping

from geartrain.project.mlserver_repository import find_mlserver
from geartrain.project.precheck import precheck
from geartrain.project.repository import Repository, find_repository
from geartrain.project.source import Mode, ModelSource, find_model
from geartrain.project.variables import PREDICT_STUB


def find_served(
    target: str | None,
    mode: Mode = "predict",
    *,
    no_pickle: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return what is to be served, a model or a folder of models; raises ProjectError."""
    by_variable = target is None and environ.get(PREDICT_STUB)  # as Cog's containers name their model
    if mode != "train" and not by_variable:
        for find in (find_mlserver, find_repository):
            repository = find(target, environ=environ, no_pickle=no_pickle)
            if repository is not None:
                return repository
    source = find_model(target, environ=environ, mode=mode, no_pickle=no_pickle)
    precheck(source)
    return source
