"""The versions of models that a server brings to life, as its catalogue asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from functools import cached_property

from geartrain.bridge.child import ChildWorker
from geartrain.domain.lifecycle import Health
from geartrain.project.alone import ModelAlone
from geartrain.project.changes import Attempt, Attempts
from geartrain.project.errors import ProjectError
from geartrain.project.precheck import precheck
from geartrain.project.repository import ModelFolder, Repository
from geartrain.project.source import ModelSource
from geartrain.server.options import ServeOptions
from geartrain.server.services import ServiceRoom, show_setup
from geartrain.server.workers import STOP_GRACE, launch, new_model
from geartrain.service.inference import Inference
from geartrain.service.predictions import PredictionService
from geartrain.service.shelves import LoadError, Wanted


class ServedVersion:
    """A version of a model: its workers, which are spawned at once, and the service in front of them."""

    def __init__(self, source: ModelSource, options: ServeOptions, number: str) -> None:
        self._source = source
        self._options = options
        replicas = 1 if source.mode == "train" else source.replicas or options.replicas
        self.model = new_model(options, source, version=number, replicas=replicas)
        show_setup(self.model, options, version=number if isinstance(options.source, Repository) else "")
        self._workers: list[ChildWorker] = []
        try:
            for replica in self.model.replicas:
                self._workers.append(launch(source, replica, wakeup=options.wakeup))
        except OSError:
            for worker in self._workers:
                worker.kill("another replica could not be started")
            raise
        self._closing: asyncio.Task[None] | None = None

    @cached_property
    def _room(self) -> ServiceRoom:
        return ServiceRoom(self._options, self.model, self._source)

    @cached_property
    def inference(self) -> Inference:
        """See `VersionPort`. Made when first asked for: the worker starts while it is imported."""
        queue = self._options.inference_queue if self._source.queue is None else self._source.queue
        return Inference(self._room.service, queue=queue)

    async def start(self) -> None:
        """See `VersionPort`."""
        time_limit = self._options.variables_of(self._source).setup_timeout
        await self.model.start(*self._workers, time_limit=time_limit)

    async def close(self, grace: float | None, *, hurry: bool = False) -> None:
        """See `VersionPort`. Whoever asks a second time waits for the first."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(grace, hurry=hurry))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None, *, hurry: bool) -> None:
        room = vars(self).get("_room")  # there is none where nobody has asked for the service yet
        if room is not None and not await self._drain(room.service, grace):
            room.service.cancel_all()
            await room.service.drain(STOP_GRACE)
        stop_grace = STOP_GRACE if self.model.health is Health.READY else 0
        await asyncio.gather(self.model.stop(stop_grace), *(worker.stop(0) for worker in self._unused()))
        if room is not None:
            await self._webhooks_end(room.service, STOP_GRACE if hurry else self._options.webhooks.grace)
            await room.close()

    @staticmethod
    async def _drain(service: PredictionService, grace: float | None) -> bool:
        service.close()
        return await service.drain(grace)

    @staticmethod
    async def _webhooks_end(service: PredictionService, grace: float) -> None:
        if service.webhooks is not None:
            await service.webhooks.drain(grace)

    def _unused(self) -> list[ChildWorker]:
        taken = [replica.worker for replica in self.model.replicas]
        return [worker for worker in self._workers if worker not in taken]


class Shop:
    """The models that the options name, and the workers that have been spawned ahead of their loads."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._found: dict[str, ModelFolder] = {}
        self._ahead: dict[tuple[str, str], ServedVersion] = {}
        source = options.source
        self.on_disk = source if isinstance(source, Repository) else ModelAlone(source, options.target)
        self.attempts = Attempts()

    def spawn_ahead(self) -> None:
        """Spawn the workers of all that is to be loaded at the start: they start while the server imports."""
        for name in self.names():
            if self._options.load is not None and name not in self._options.load:
                self.note(name)
                continue
            try:
                folder = self._read(name)
            except ProjectError:
                continue  # its load will say so
            for number, source in folder.versions.items():
                if isinstance(source, ModelSource):
                    with contextlib.suppress(OSError):  # its load will say so, too
                        self._ahead[name, number] = ServedVersion(source, self._options, number)

    async def close(self) -> None:
        """End what has been spawned and never asked for."""
        await asyncio.gather(*(served.close(0, hurry=True) for served in self._ahead.values()))

    # as the catalogue's repository

    def names(self) -> list[str]:
        """See `RepositoryPort`."""
        source = self._options.source
        return source.names() if isinstance(source, Repository) else [source.name]

    def read(self, name: str) -> Wanted | None:
        """See `RepositoryPort`. What has been read ahead of a load is not read again for it."""
        folder = self._found.get(name)
        if not any(key[0] == name for key in self._ahead):
            if name not in self.names():
                return None
            try:
                folder = self._read(name)
            except ProjectError as error:
                raise LoadError(error.message) from error
        return None if folder is None else Wanted(tuple(folder.versions), folder.default_version)

    def note(self, name: str) -> None:
        """See `RepositoryPort`. It matters only where files are watched."""
        if not self._options.reload:
            return
        at = time.monotonic()
        digest = self.on_disk.digest(name)
        if digest:
            self.attempts.note(name, Attempt(digest, at))

    def open(self, name: str, version: str) -> ServedVersion:
        """See `RepositoryPort`."""
        ahead = self._ahead.pop((name, version), None)
        if ahead is not None:
            return ahead
        source = self._found[name].versions[version]
        if isinstance(source, ProjectError):
            raise LoadError(source.message)
        try:
            return ServedVersion(source, self._options, version)
        except OSError as error:  # its folder has just gone, or no process can be had
            raise LoadError(f"no worker can be started: {error.strerror or error}") from error

    def _read(self, name: str) -> ModelFolder:
        self.note(name)  # before it is read: a change in between is seen as one
        source = self._options.source
        if isinstance(source, Repository):
            found = source.read(name)
        else:
            again = source
            if name in self._found and self._options.find_again is not None:
                again = dataclasses.replace(self._options.find_again(), name=name)
                precheck(again)
            found = ModelFolder(name=name, versions={"1": again})
        self._found[name] = found
        return found
