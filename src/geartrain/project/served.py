"""What a target means to a server: a folder of models, or one model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from geartrain.project.errors import ProjectError
from geartrain.project.mlserver_repository import find_mlserver
from geartrain.project.precheck import precheck
from geartrain.project.repository import Repository, find_repository
from geartrain.project.source import Mode, ModelSource, find_model
from geartrain.project.variables import PREDICT_STUB

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # it stands in URLs


def find_served(
    target: str | None,
    mode: Mode = "predict",
    *,
    no_pickle: bool = False,
    name: str = "",
    may_be_empty: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return what is to be served, a model or a folder of models; raises ProjectError.

    `name` is that of a single model, "" for the usual one. A folder of models `may_be_empty`: they come later.
    """
    if name and not _NAME.fullmatch(name):
        raise ProjectError(f"{name!r} is no name for a model; write letters, digits, `.`, `_` and `-`, such as digits")
    by_variable = target is None and environ.get(PREDICT_STUB)  # as Cog's containers name their model
    if mode != "train" and not by_variable:
        mlserver = find_mlserver(target, environ=environ, no_pickle=no_pickle)
        if mlserver is not None:
            if name and mlserver.names() != [name]:
                raise ProjectError(
                    f"a folder of MLServer takes its names from model-settings.json; write {name!r} there"
                )
            return mlserver
        repository = find_repository(target, environ=environ, no_pickle=no_pickle, name=name, may_be_empty=may_be_empty)
        if repository is not None:
            return repository
    source = find_model(target, environ=environ, mode=mode, no_pickle=no_pickle)
    precheck(source)
    return msgspec.structs.replace(source, name=name) if name else source
