"""Loads, reloads and unloads of all models, as tasks: for each model one at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import DORMANT, VersionState
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelEntry
from geartrain.service.models.loader import Attempt, Loader
from geartrain.service.models.repository import LoadError, RepositoryPort, Step, Wanted


class Loads:
    """Brings versions into service and out of it.

    For each model one at a time; what has begun goes on when its client no longer waits for it.
    """

    def __init__(
        self,
        repository: RepositoryPort,
        *,
        grace: float | None,
        tell: Callable[[Step], None],
        make_room: Callable[[ModelEntry], Awaitable[None]],
    ) -> None:
        """`make_room` returns when a model that is about to be loaded fits beside the others."""
        self._repository = repository
        self._loader = Loader(repository, grace=grace, tell=tell)
        self._tasks: set[asyncio.Future[None]] = set()
        self._spawned: list[tuple[ModelEntry, list[Attempt] | LoadError]] = []
        self._remote: list[ModelEntry] = []  # to be loaded when what lies elsewhere has been fetched
        self._make_room = make_room
        self._is_closing = False

    @property
    def alive(self) -> tuple[Deployment, ...]:
        """All deployments that may have workers, also those that have been replaced."""
        return tuple(self._loader.alive)

    # at the start

    def spawn(self, entry: ModelEntry) -> None:
        """Spawn the workers of a model for the first time: from now on it can be asked for. Needs no running loop."""
        if self._repository.has_remote_files(entry.name):
            entry.is_wanted = True
            entry.loading.begin_download(entry.name)
            self._remote.append(entry)
            return
        try:
            wanted = self._loader.accept(entry, self._repository.read(entry.name))
        except (LoadError, GeartrainError) as error:
            entry.is_wanted = True
            self._spawned.append((entry, LoadError(str(error))))
        else:
            self._spawned.append(
                (entry, [self._loader.open(entry, entry.version(number)) for number in wanted.versions])
            )

    def note_resting(self, entry: ModelEntry) -> None:
        """Have requests load a model that has not been loaded yet. Needs no running loop."""
        try:
            wanted = self._loader.accept(entry, self._repository.read(entry.name))
        except (LoadError, GeartrainError) as error:
            entry.is_wanted = True
            self._spawned.append((entry, LoadError(str(error))))
            return
        for number in wanted.versions:
            entry.version(number).rest()
        entry.settle()

    def begin(self) -> None:
        """Go on with what has been spawned. Nothing is raised, all is told."""
        spawned, self._spawned = self._spawned, []
        for entry, attempts in spawned:
            if isinstance(attempts, LoadError):
                self._loader.refuse(entry, attempts)
            else:
                _ = self._run(entry, self._finish_first(entry, attempts))
        remote, self._remote = self._remote, []
        for entry in remote:
            _ = self._run(entry, self._load(entry, anew=False))

    # for clients

    async def load(self, entry: ModelEntry, *, anew: bool = False) -> None:
        """Load a model, or load it anew, and wait for that; raises `GeartrainError`.

        What serves well and has not changed on disk is left alone, unless it shall be loaded `anew` all the same.
        """
        task = self._run(entry, self._load(entry, anew=anew))
        await asyncio.wait((task,))  # a waiter that gives up does not cancel the load for others
        if task.cancelled():
            raise GeartrainError(
                Code.LOAD_FAILED, f"load failed for model '{entry.name}': it has been unloaded meanwhile"
            )
        task.result()

    async def wake(self, entry: ModelEntry) -> None:
        """Wait until a model that rests is loaded; raises `NOT_READY` with the reason if it cannot be."""
        if not any(version.state in DORMANT for version in entry.versions.values()):
            return
        task = next(iter(entry.loading.tasks), None) or self._run(entry, self._load(entry, anew=False))
        await asyncio.wait((task,))
        if task.cancelled():
            raise GeartrainError(Code.NOT_READY, f"The model '{entry.name}' has been unloaded meanwhile.")
        error = task.exception()
        if isinstance(error, GeartrainError):
            code = error.code if error.code is Code.SHUTTING_DOWN else Code.NOT_READY
            raise GeartrainError(code, error.message) from error
        task.result()

    def rest(self, entry: ModelEntry, reason: str) -> None:
        """Unload a model, which has no work, until a request needs it. Returns at once."""
        self._loader.rest(entry, reason)

    async def unload(self, entry: ModelEntry) -> None:
        """Take a model out of service, and wait until its requests have ended. Loads under way are given up."""
        _give_up(entry.loading.tasks)
        async with entry.loading.lock:
            entry.is_wanted = False
            entry.fault = ""
            await asyncio.gather(*(self._loader.take_down(entry, version) for version in entry.versions.values()))

    # at the end

    def cease(self) -> None:
        """Load nothing more; what is being loaded is given up."""
        self._is_closing = True
        _give_up(self._tasks)

    def close(self) -> None:
        """Load nothing more, and admit nothing more; what is being loaded is given up."""
        self.cease()
        for deployment in self.alive:
            deployment.executions.is_closed = True

    async def stop(self) -> None:
        """End all there is."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(self._loader.end(deployment, 0) for deployment in self.alive))

    # loading

    def _run(self, entry: ModelEntry, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a load to its end, with or without waiters; its error, if any, is logged."""
        task = asyncio.ensure_future(load)
        entry.loading.tasks.add(task)
        task.add_done_callback(entry.loading.tasks.discard)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_heed)
        return task

    async def _finish_first(self, entry: ModelEntry, attempts: list[Attempt]) -> None:
        async with entry.loading.lock:
            await self._loader.finish(entry, attempts)

    async def _load(self, entry: ModelEntry, *, anew: bool) -> None:
        async with entry.loading.lock:
            if self._is_closing:
                raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and loads nothing more.")
            try:
                found = await self._loader.read(entry)
                if not anew and _is_served(entry, found):
                    return
                wanted = self._loader.accept(entry, found)
                await self._make_room(entry)
                versions = [entry.version(number) for number in wanted.versions]
                leaving = {end for version in versions for end in version.leaving}
                if leaving:
                    await asyncio.wait(leaving)  # never more than two of one version at once
                attempts = [self._loader.open(entry, version) for version in versions]
            except LoadError as error:
                self._loader.refuse(entry, error)
                raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{entry.name}': {error}") from error
            finally:
                entry.loading.download.end()
            await self._loader.finish(entry, attempts)


def _is_served(entry: ModelEntry, found: Wanted | None) -> bool:
    """True if just what has been found serves, with all of its workers: to load it again would change nothing."""
    if found is None or not found.digest or found != entry.loading.done or entry.fault or not entry.is_wanted:
        return False
    versions = [entry.versions[number] for number in found.versions if number in entry.versions]
    return len(versions) == len(found.versions) and all(
        version.state is VersionState.READY and not version.reason and version.deployment.workers.are_all_ready
        for version in versions
    )


def _give_up(tasks: Iterable[asyncio.Future[None]]) -> None:
    for task in tasks:
        if isinstance(task, asyncio.Task) and not task.cancelling():  # a second time would keep it from cleaning up
            task.cancel()


def _heed(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a load that may have no waiter: it has been logged."""
    if not task.cancelled():
        with contextlib.suppress(GeartrainError):
            task.result()
