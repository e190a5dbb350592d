"""Ports of the catalogue: sources of models, and descriptions of them."""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec

from geartrain.domain.remote.progress import Download
from geartrain.service.models.deployment import Deployment, VersionRecord

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
"""The states of the model repository extension's index."""


class LoadError(Exception):
    """A model cannot be loaded; the message says why."""


class ServedVersions(msgspec.Struct, frozen=True):
    """The versions of a model that shall be served. `default` None is the latest of them.

    `digest` is another one when a file of the model has changed; "" says nothing about that.
    """

    versions: tuple[str, ...]
    default: str | None = None
    digest: str = ""


NOTHING: Final = ServedVersions(())


class RepositoryPort(Protocol):
    """The models on disk. What it is asked for is as it lies there at that moment."""

    def names(self) -> list[str]:
        """The models that are there."""

    def has_remote_files(self, name: str) -> bool:
        """True if a model, or something that it needs, lies elsewhere. May block."""

    async def fetch(self, name: str, download: Download) -> None:
        """Bring what lies elsewhere of a model; raises `LoadError`. `download` is told how far it has come."""

    def read(self, name: str) -> ServedVersions | None:
        """The versions of a model that shall be served, None if it is not there; raises `LoadError`. May block."""

    def note(self, name: str) -> None:
        """Remember that how a model lies there now is no reason to load it. May block."""

    def memory(self, name: str) -> int:
        """The bytes of memory that the workers of a model use now. May block."""

    def open(self, record: VersionRecord) -> Deployment:
        """Return a deployment of a version, whose workers have been spawned; raises `LoadError`.

        It needs no running loop.
        """


class Step(msgspec.Struct, frozen=True):
    """A change of a version, or of a model as a whole where it has none."""

    stage: Literal["ready", "setup-failed", "reload-failed", "unloaded"]
    name: str
    version: str = ""
    slots: int = 0
    reason: str = ""


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model version in the repository's index."""

    name: str
    version: str = ""
    state: State | Literal[""] = ""
    reason: str = ""
