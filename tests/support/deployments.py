"""Deployments for tests: without a disk, with workers and an outside world of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.tracing import TracerPort
from geartrain.domain.remote.progress import Download
from geartrain.domain.signature.types import Signature
from geartrain.service.durable.durability import Durability
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment, DeploymentSettings, VersionRecord
from geartrain.service.models.nested import ModelCaller
from geartrain.service.models.repository import ServedVersions
from geartrain.service.ports import (
    AttachmentStorePort,
    FolderPort,
    InputFilesPort,
    OutputFilesPort,
    OutputsPort,
    WorkerPort,
)
from geartrain.service.scheduling.context import no_folder
from geartrain.service.webhooks import Webhooks

Spawn = Callable[[WorkerObserver], WorkerPort]


class NoOutputs:
    """No output has files."""

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """See `OutputsPort`."""
        raise NotImplementedError

    def kept_in(self, folder: Callable[[], Path]) -> OutputFilesPort:
        """See `OutputsPort`."""
        raise NotImplementedError

    def of(self, prediction_id: str, prefix: str | None, request: RequestContext) -> OutputFilesPort:
        """See `OutputsPort`."""
        raise NotImplementedError


def no_attachments() -> AttachmentStorePort:
    """Stand in for what takes the files of requests."""
    raise NotImplementedError


class FakeOutbound:
    """The outside world; by default there is none of it."""

    def __init__(
        self,
        *,
        outputs: OutputsPort | None = None,
        input_files: Callable[[], InputFilesPort] | None = None,
        new_folder: Callable[[], FolderPort] = no_folder,
        new_attachments: Callable[[], AttachmentStorePort] = no_attachments,
    ) -> None:
        self.tracer: TracerPort | None = None
        self.durability: Durability | None = None
        self.caller: ModelCaller | None = None
        self.outputs = outputs or NoOutputs()
        self.new_folder = new_folder
        self.new_attachments = new_attachments
        self._input_files = input_files

    def input_files(self, signature: Signature, user_agent: str | None, *, root: Path | None = None) -> InputFilesPort:
        """See `OutboundPort`."""
        assert self._input_files is not None, "this model takes no files"
        return self._input_files()

    def webhooks(self, token: str | None, interval: float) -> Webhooks:
        """See `OutboundPort`."""
        raise NotImplementedError


def unspawned(
    spawn: Spawn,
    *,
    name: str = "m",
    number: str = "1",
    record: VersionRecord | None = None,
    outbound: FakeOutbound | None = None,
    settings: DeploymentSettings | None = None,
    **options: Any,
) -> Deployment:
    """Return a deployment without a worker. `options` are those of `Deployment`."""
    return Deployment(
        record or VersionRecord(name, number),
        lambda _index, observer: spawn(observer),
        settings=settings or DeploymentSettings(),
        outbound=outbound or FakeOutbound(),
        **options,
    )


def deploy(spawn: Spawn, **options: Any) -> Deployment:
    """Return a deployment whose workers have been spawned. `options` are those of `unspawned`."""
    deployment = unspawned(spawn, **options)
    deployment.workers.spawn()
    return deployment


def spawning(*workers: Callable[[WorkerObserver], WorkerPort]) -> Spawn:
    """Return what spawns these workers, one after the other."""
    rest = iter(workers)

    def spawn(observer: WorkerObserver) -> WorkerPort:
        return next(rest)(observer)

    return spawn


async def close(deployment: Deployment) -> None:
    """End a deployment at once."""
    deployment.executions.cancel_all()
    await asyncio.wait_for(deployment.close(0), 40)


class FakeRepository:
    """Models of one version each, by name: what makes a deployment of it; see `RepositoryPort`."""

    def __init__(self, **models: Callable[[VersionRecord], Deployment]) -> None:
        self.models = models
        self.sizes: dict[str, int] = {}  # in bytes, of those that use memory

    def names(self) -> list[str]:
        """See `RepositoryPort`."""
        return sorted(self.models)

    def has_remote_files(self, name: str) -> bool:
        """See `RepositoryPort`."""
        return False

    async def fetch(self, name: str, download: Download) -> None:
        """See `RepositoryPort`."""

    def read(self, name: str) -> ServedVersions | None:
        """See `RepositoryPort`."""
        return ServedVersions(("1",)) if name in self.models else None

    def note(self, name: str) -> None:
        """See `RepositoryPort`."""

    def memory(self, name: str) -> int:
        """See `RepositoryPort`."""
        return self.sizes.get(name, 0)

    def open(self, record: VersionRecord) -> Deployment:
        """See `RepositoryPort`."""
        return self.models[record.name](record)


async def catalogue_of(**models: Callable[[VersionRecord], Deployment]) -> Catalogue:
    """Return a catalogue that has loaded these models."""
    catalogue = Catalogue(FakeRepository(**models))
    catalogue.spawn()
    catalogue.reconciler.begin()
    for name in models:
        loads = catalogue.entry(name).loading.tasks
        if loads:  # else it has been loaded while others were waited for
            await asyncio.wait_for(asyncio.wait(loads), 40)
    return catalogue
