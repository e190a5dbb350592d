"""Meaning of a target to a server or a command: a folder of models, or one model, here or elsewhere."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from geartrain.domain.remote.reference import RemoteReference, is_remote, read_reference
from geartrain.project.errors import ProjectError
from geartrain.project.formats import known_suffixes
from geartrain.project.mlserver_repository import find_mlserver
from geartrain.project.repository import Repository, find_repository
from geartrain.project.script_models import find_script_models
from geartrain.project.setting_values import Weights
from geartrain.project.settings import read_settings
from geartrain.project.source import Mode, ModelSource, find_model, model_folder
from geartrain.project.variables import PREDICT_STUB, resolve

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # it stands in URLs


def find_served(
    target: str | None,
    mode: Mode = "predict",
    *,
    no_pickle: bool = False,
    name: str = "",
    may_be_empty: bool = False,
    is_fetched: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return the model or the folder of models to serve; raise ProjectError.

    `name` is that of a single model, "" for the usual one. A folder of models `may_be_empty`: they come later.

    A model that lies elsewhere, or that is not complete before its `weights` are fetched, is pending. When all that
    lies elsewhere `is_fetched`, none is.
    """
    if name and not _NAME.fullmatch(name):
        raise ProjectError(f"{name!r} is no name for a model; write letters, digits, `.`, `_` and `-`, such as digits")
    if target is not None and is_remote(target):
        return _pending(name or remote_name(remote_model(target)), pathlib.Path.cwd(), mode, environ=environ)
    by_variable = target is None and environ.get(PREDICT_STUB)  # Cog's containers name their model so
    if mode != "train" and not by_variable:
        mlserver = find_mlserver(target, environ=environ, no_pickle=no_pickle)
        if mlserver is not None:
            if name and mlserver.names() != [name]:
                raise ProjectError(
                    f"a folder of MLServer takes its names from model-settings.json; write {name!r} there"
                )
            return mlserver
        may_be_empty = may_be_empty and not _has_weights(target)
        repository = find_repository(target, environ=environ, no_pickle=no_pickle, name=name, may_be_empty=may_be_empty)
        if repository is not None:
            return repository
    try:
        source = find_model(target, environ=environ, mode=mode, no_pickle=no_pickle)
    except ProjectError:
        if is_fetched or not _has_weights(target):
            raise
        root, _ = model_folder(target)
        return _pending(name or root.name or "model", root, mode, environ=environ)
    found = (
        find_script_models(target, source, name, environ=environ, no_pickle=no_pickle) if mode == "predict" else None
    )
    return found or (msgspec.structs.replace(source, name=name) if name else source)


def find_here(target: str) -> ModelSource | Repository:
    """Return the model or the folder of models to serve, all on this machine already; raise ProjectError."""
    if is_remote(target):
        raise ProjectError(f"{remote_model(target).shown} is not on this machine; fetch it, and name its folder")
    return find_served(target, is_fetched=True)


def check_watchable(target: str | None) -> None:
    """Raise ProjectError for a model elsewhere, whose files cannot be watched."""
    if target is not None and is_remote(target):
        raise ProjectError(
            "a model elsewhere cannot be reloaded when its files change; name a folder on this machine, or leave "
            "the reload to SIGHUP or a load, which fetch what has changed"
        )


def remote_model(target: str) -> RemoteReference:
    """Return the reference of a target elsewhere; raise ProjectError."""
    try:
        return read_reference(target)
    except ValueError as error:
        raise ProjectError(str(error)) from None


def remote_name(reference: RemoteReference) -> str:
    """Return the name of a model that lies elsewhere: that of a file without its ending."""
    name = pathlib.PurePath(reference.name)
    return name.stem if name.suffix in {".py", *known_suffixes()} else reference.name


def _has_weights(target: str | None) -> bool:
    """True if the settings of the folder that is meant name weights."""
    return bool(read_settings(model_folder(target)[0]).weights)


def _pending(name: str, root: pathlib.Path, mode: Mode, *, environ: Mapping[str, str]) -> ModelSource:
    variables, warnings = resolve(environ)
    return ModelSource(
        name=name, root=root, runner="", mode=mode, variables=variables, warnings=warnings, is_pending=True
    )


class Fetch(Protocol):
    """Fetcher of models and files; either method raises ProjectError."""

    def model(self, reference: RemoteReference) -> Path:
        """Return the fetched folder of a model."""

    def weights(self, weights: Sequence[Weights], folder: Path) -> Sequence[Path]:
        """Put weights into the folder of their model; return where that one lies which has no place there."""


def local_target(target: str | None, fetch: Fetch) -> str | None:
    """Return a target's place on this machine: itself, or its fetched copy; raise ProjectError."""
    return str(fetch.model(remote_model(target))) if target is not None and is_remote(target) else target


def find_fetched(target: str | None, fetch: Fetch, *, mode: Mode = "predict", no_pickle: bool = False) -> ModelSource:
    """Find a model as `find_model` does, with the weights that its settings name; raises ProjectError."""
    local = local_target(target, fetch)
    root, _ = model_folder(local)
    weights = read_settings(root).weights
    found = fetch.weights(weights, root) if weights else ()
    source = find_model(local, mode=mode, no_pickle=no_pickle)
    if target is not None and local != target:
        source = msgspec.structs.replace(source, name=remote_name(remote_model(target)))
    for path in found:
        if source.variables.weights is None:
            variables = dataclasses.replace(source.variables, weights=str(path))
            source = msgspec.structs.replace(source, variables=variables)
    return msgspec.structs.replace(source, weights=())
