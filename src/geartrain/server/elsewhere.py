"""Remote parts of a server's models, and their places after they have been fetched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from geartrain.domain.remote.progress import Download
from geartrain.domain.remote.reference import is_remote
from geartrain.project.digest import Digests, ModelAlone
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import remote_model
from geartrain.project.settings import read_settings
from geartrain.project.source import ModelSource
from geartrain.server.fetching import Fetcher, telling
from geartrain.server.options import ServeOptions


class Elsewhere:
    """Fetches a model that lies elsewhere as a whole, and the `weights` of models."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._fetcher = Fetcher(options.cache)
        self._digests = Digests()
        self._models: dict[str, Path] = {}  # that have been fetched, by name
        self._weights: dict[str, Path] = {}  # that setup() gets, by the model

    @property
    def _is_whole(self) -> bool:
        """True if the model that is served alone lies elsewhere as a whole."""
        return self._options.target is not None and is_remote(self._options.target)

    def has_part_of(self, name: str) -> bool:
        """True if a model, or something that it needs, lies elsewhere. May block."""
        try:
            return self._is_whole or bool(read_settings(self._folder(name)).weights)
        except ProjectError:
            return False  # reading the model reports it

    async def fetch(self, name: str, download: Download) -> None:
        """Bring what lies elsewhere of a model; raises RemoteError and ProjectError."""
        async with telling(download, self._options.on_progress, model=name):
            if self._is_whole:
                self._models[name] = await self._fetcher.fetch(remote_model(self._options.target or ""), download)
            folder = self._folder(name)
            weights = read_settings(folder).weights
            found = await self._fetcher.fetch_weights(weights, folder, download)
        self._weights.pop(name, None)
        for path in found:
            self._weights[name] = path

    def target(self, name: str) -> str | None:
        """Return the target of a model that is served alone: its fetched copy, or the named one."""
        return str(self._models[name]) if name in self._models else self._options.target

    def shown(self, name: str) -> str:
        """Return the place of a model that is served alone, for an error."""
        return remote_model(self._options.target or "").shown if self._is_whole else str(self._folder(name))

    def content(self, name: str, on_disk: ModelAlone | Repository) -> str:
        """Return the digest of the files of a model, with those that have been fetched; "" says nothing. May block."""
        found = self._digests.of_content(self._folder(name)) if self._is_whole else on_disk.content(name)
        return f"{found} {self._weights.get(name, '')}" if found else ""

    def named(self, name: str, source: ModelSource | ProjectError) -> ModelSource | ProjectError:
        """Return a model under its name, with the weights that have been fetched for its setup()."""
        if isinstance(source, ProjectError):
            return source
        variables = source.variables
        if name in self._weights and variables.weights is None:
            variables = dataclasses.replace(variables, weights=str(self._weights[name]))
        return msgspec.structs.replace(source, name=name, variables=variables)

    def close(self) -> None:
        """Let go of what has been fetched."""
        self._fetcher.close()

    def _folder(self, name: str) -> Path:
        """Return the folder whose `geartrain.yaml` is that of a model."""
        source = self._options.source
        if isinstance(source, Repository):
            return source.folder(name)
        fetched = self._models.get(name, source.root)
        return fetched.parent if fetched.is_file() else fetched
