"""Search for a model with remote parts, which are fetched first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from geartrain.domain.remote.reference import RemoteReference, is_remote
from geartrain.project.served import remote_model, remote_name
from geartrain.project.settings import read_settings
from geartrain.project.source import Mode, ModelSource, find_model, model_folder
from geartrain.project.weight_settings import Weights


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
