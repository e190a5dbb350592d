"""The reconciler: brings the versions of models from the states that they are in to those that are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import DORMANT, VersionState
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelEntry, Version
from geartrain.service.models.repository import NOTHING, LoadError, RepositoryPort, Step, Wanted
from geartrain.service.workers.pool import ModelSetupError

logger = logging.getLogger(__name__)


class Attempt(msgspec.Struct, frozen=True, eq=False):
    """A version with its new workers, which are on their way, or the reason for which they could not be spawned."""

    version: Version
    result: Deployment | LoadError


class Reconciler:
    """Changes what is wanted of a model, and acts on the difference to the states of its versions (`VERSION_STEPS`).

    For each model one change at a time. One that has begun goes on when its client no longer waits for it. New workers
    come first, then the switch, then the end of the old ones.
    """

    def __init__(
        self,
        repository: RepositoryPort,
        *,
        grace: float | None,
        tell: Callable[[Step], None],
        make_room: Callable[[ModelEntry], Awaitable[None]],
    ) -> None:
        """`grace`: the seconds that the predictions of replaced or unloaded versions have; None for no limit.

        `make_room` returns when a model that is about to be loaded fits beside the others.
        """
        self._repository = repository
        self._grace = grace
        self._tell = tell
        self._make_room = make_room
        self._alive: set[Deployment] = set()
        self._tasks: set[asyncio.Future[None]] = set()
        self._at_start: list[tuple[ModelEntry, Sequence[Attempt] | LoadError]] = []  # until `begin`
        self._remote: list[ModelEntry] = []  # to be loaded from elsewhere by `begin`
        self._is_closing = False

    @property
    def alive(self) -> tuple[Deployment, ...]:
        """All deployments that may have workers, also those that have been replaced."""
        return tuple(self._alive)

    # at the start

    def spawn(self, entry: ModelEntry) -> None:
        """Spawn the workers of a model for the first time: from now on it can be asked for. Needs no running loop."""
        if self._repository.has_remote_files(entry.name):
            entry.is_wanted = True
            entry.loading.begin_download(entry.name)
            self._remote.append(entry)
        elif (wanted := self._want_first(entry)) is not None:
            self._at_start.append((entry, [self._open(entry, entry.version(number)) for number in wanted.versions]))

    def note_resting(self, entry: ModelEntry) -> None:
        """Have requests load a model that has not been loaded yet. Needs no running loop."""
        wanted = self._want_first(entry)
        if wanted is not None:
            for number in wanted.versions:
                entry.version(number).rest()
            entry.settle()

    def begin(self) -> None:
        """Go on with the models of the start. Nothing is raised, all is told."""
        at_start, self._at_start = self._at_start, []
        for entry, attempts in at_start:
            if isinstance(attempts, LoadError):
                self._refuse(entry, attempts)
            else:
                _ = self._run(entry, self._finish_first(entry, attempts))
        remote, self._remote = self._remote, []
        for entry in remote:
            _ = self._run(entry, self._load(entry, anew=False))

    # changes of what is wanted

    async def load(self, entry: ModelEntry, *, anew: bool = False) -> None:
        """Load a model, or load it anew, and wait for that; raises `GeartrainError`.

        A model that serves well and has not changed on disk is left alone, unless it shall be loaded `anew` all the
        same.
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
        for version in entry.versions.values():
            if version.is_loaded:
                self._retire(version, version.rest(), self._grace)
                self._tell(Step("unloaded", entry.name, version.number, reason=reason))
        entry.settle()

    async def unload(self, entry: ModelEntry) -> None:
        """Take a model out of service, and wait until its requests have ended. Loads under way are given up."""
        _give_up(entry.loading.tasks)
        async with entry.loading.lock:
            entry.is_wanted = False
            entry.fault = ""
            await asyncio.gather(*(self._take_down(entry, version) for version in entry.versions.values()))

    # at the end

    def cease(self) -> None:
        """Load nothing more; what is being loaded is given up."""
        self._is_closing = True
        _give_up(self._tasks)

    def close(self) -> None:
        """Load nothing more, and admit nothing more; what is being loaded is given up."""
        self.cease()
        for deployment in self._alive:
            deployment.executions.is_closed = True

    async def stop(self) -> None:
        """End all there is."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(self._end(deployment, 0) for deployment in self._alive))

    # a load

    def _run(self, entry: ModelEntry, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a load to its end, with or without waiters; its error, if any, is logged."""
        task = asyncio.ensure_future(load)
        entry.loading.tasks.add(task)
        task.add_done_callback(entry.loading.tasks.discard)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieve)
        return task

    async def _finish_first(self, entry: ModelEntry, attempts: Sequence[Attempt]) -> None:
        async with entry.loading.lock:
            await self._reconcile(entry, attempts)

    async def _load(self, entry: ModelEntry, *, anew: bool) -> None:
        async with entry.loading.lock:
            if self._is_closing:
                raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and loads nothing more.")
            try:
                found = await self._read(entry)
                if not anew and _is_served(entry, found):
                    return
                wanted = _want(entry, found)
                await self._make_room(entry)
                versions = [entry.version(number) for number in wanted.versions]
                leaving = {end for version in versions for end in version.leaving}
                if leaving:
                    await asyncio.wait(leaving)  # never more than two of one version at once
                attempts = [self._open(entry, version) for version in versions]
            except LoadError as error:
                self._refuse(entry, error)
                raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{entry.name}': {error}") from error
            finally:
                entry.loading.download.end()
            await self._reconcile(entry, attempts)

    async def _read(self, entry: ModelEntry) -> Wanted | None:
        """Fetch the remote files of a model, and read which of its versions shall be served; raises `LoadError`.

        It is None if the model is not in the repository.
        """
        if await asyncio.to_thread(self._repository.has_remote_files, entry.name):
            entry.loading.begin_download(entry.name)
            await self._repository.fetch(entry.name, entry.loading.download)
        return await asyncio.to_thread(self._repository.read, entry.name)

    def _want_first(self, entry: ModelEntry) -> Wanted | None:
        """Note at the start which versions of a model shall be served; None if that cannot be read."""
        try:
            return _want(entry, self._repository.read(entry.name))
        except (LoadError, GeartrainError) as error:
            entry.is_wanted = True
            self._at_start.append((entry, LoadError(str(error))))
            return None

    def _refuse(self, entry: ModelEntry, error: LoadError) -> None:
        """Note that a model is wrong as a whole: its present versions go on."""
        entry.is_wanted, entry.fault = True, str(error)
        for version in entry.versions.values():
            if version.is_loaded:
                version.refuse(str(error))
        self._tell(Step("reload-failed" if entry.available else "setup-failed", entry.name, reason=str(error)))

    # the versions

    async def _reconcile(self, entry: ModelEntry, attempts: Sequence[Attempt]) -> None:
        """Wait for new workers, and let them take over; then let go of the versions that are no longer wanted."""
        entry.loading.done = NOTHING
        results = await asyncio.gather(*(self._bring_up(entry, each) for each in attempts), return_exceptions=True)
        faults = []
        for attempt, result in zip(attempts, results, strict=True):
            if isinstance(result, LoadError | ModelSetupError):
                faults.append(f"version {attempt.version.number} is at UNAVAILABLE state: {result};")
            elif isinstance(result, BaseException):
                raise result
        wanted = {attempt.version.number for attempt in attempts}
        for number, version in tuple(entry.versions.items()):
            if number not in wanted:
                await self._take_down(entry, version)
                entry.forget(number)
        if faults:
            raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{entry.name}': {' '.join(faults)}")
        entry.loading.done = entry.wanted

    def _open(self, entry: ModelEntry, version: Version) -> Attempt:
        """Spawn the new workers of a version."""
        try:
            deployment = self._repository.open(version.record)
        except LoadError as error:
            self._retire(version, version.refuse(str(error)), 0)
            entry.settle()
            return Attempt(version, error)
        self._alive.add(deployment)
        self._retire(version, version.begin(deployment), 0)
        entry.settle()
        return Attempt(version, deployment)

    async def _bring_up(self, entry: ModelEntry, attempt: Attempt) -> None:
        """Have a version served by its new workers; raises `LoadError` or `ModelSetupError`."""
        version, deployment = attempt.version, attempt.result
        if isinstance(deployment, LoadError):
            self._tell_failure(entry, version, str(deployment), is_served=version.is_loaded)
            raise deployment
        try:
            await deployment.start()
        except ModelSetupError as error:
            is_served = version.fail(error.reason)
            entry.settle()
            if is_served:
                await self._end(deployment, 0)
            # Otherwise its workers are kept: they can be asked why.
            self._tell_failure(entry, version, error.reason, is_served=is_served)
            raise
        except BaseException:
            version.give_up()
            entry.settle()
            await self._end(deployment, 0)
            raise
        self._retire(version, version.finish(deployment), self._grace)
        entry.settle()
        self._tell(Step("ready", entry.name, version.number, slots=deployment.workers.permits.size))

    def _tell_failure(self, entry: ModelEntry, version: Version, reason: str, *, is_served: bool) -> None:
        self._tell(Step("reload-failed" if is_served else "setup-failed", entry.name, version.number, reason=reason))

    async def _take_down(self, entry: ModelEntry, version: Version) -> None:
        """Take a version out of service, and wait until its predictions have ended."""
        for deployment in version.coming:  # its load was canceled before it had run at all
            version.give_up()
            entry.settle()
            await self._end(deployment, 0)
        if not version.begin_unload():
            return
        entry.settle()
        await asyncio.gather(self._end(version.deployment, self._grace), *version.leaving)
        version.finish_unload()
        entry.settle()
        self._tell(Step("unloaded", entry.name, version.number))

    def _retire(self, version: Version, deployments: Iterable[Deployment], grace: float | None) -> None:
        """End the deployments that a version no longer needs, in the background."""
        for deployment in deployments:
            end = asyncio.ensure_future(self._end(deployment, grace))
            version.leaving.add(end)
            end.add_done_callback(version.leaving.discard)

    async def _end(self, deployment: Deployment, grace: float | None) -> None:
        """End a deployment, whose predictions have `grace` seconds; never raises."""
        try:
            await deployment.close(grace)
        except Exception:
            logger.exception("a model version could not be closed")
        finally:
            self._alive.discard(deployment)


def _want(entry: ModelEntry, found: Wanted | None) -> Wanted:
    """Note which versions of a model shall be served; raise `NOT_FOUND` if it is not in the repository."""
    if found is None:
        msg = f"failed to load '{entry.name}', failed to poll from model repository"
        raise GeartrainError(Code.NOT_FOUND, msg)
    entry.wanted, entry.is_wanted, entry.fault = found, True, ""
    return found


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


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a load that may have no waiter: it has been logged."""
    if not task.cancelled():
        with contextlib.suppress(GeartrainError):
            task.result()
