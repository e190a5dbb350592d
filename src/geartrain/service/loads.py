"""Loads, reloads and unloads: a new version first, then the switch, then the end of the old one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.model import ModelSetupError
from geartrain.service.shelves import LoadError, RepositoryPort, Shelf, Step, Version, VersionPort, Wanted

logger = logging.getLogger(__name__)


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
        settle: Callable[[Shelf], None],
    ) -> None:
        """`settle` is called whenever something else can be asked for."""
        self.alive: set[VersionPort] = set()  # all that has workers
        self._repository = repository
        self._grace = grace
        self._tell = tell
        self._settle = settle
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def begin(self, shelf: Shelf) -> None:
        """Begin to load a model for the first time: from now on it can be asked for. Nothing is raised, all is told."""
        try:
            wanted = self._accept(shelf, self._repository.read(shelf.name))
        except LoadError as error:
            self._refuse(shelf, error)
            return
        openings = [self._open(shelf, shelf.version(number)) for number in wanted.versions]
        _ = self._run(shelf, self._finish_first(shelf, openings))

    async def load(self, shelf: Shelf) -> None:
        """Load a model, or load it anew, and wait for that; raises `GeartrainError`."""
        task = self._run(shelf, self._load(shelf))
        await asyncio.wait((task,))  # whoever gives up waiting takes nothing from the others
        if task.cancelled():
            raise GeartrainError(
                Code.LOAD_FAILED, f"load failed for model '{shelf.name}': it has been unloaded meanwhile"
            )
        task.result()

    async def unload(self, shelf: Shelf) -> None:
        """Take a model out of service, and wait until its requests have ended. Loads under way are given up."""
        _give_up(shelf.loads)
        async with shelf.lock:
            shelf.is_wanted = False
            shelf.fault = ""
            await asyncio.gather(*(self._take_down(shelf, version) for version in shelf.versions.values()))

    def close(self) -> None:
        """Load nothing more; what is being loaded is given up."""
        self._is_closing = True
        _give_up(self._tasks)

    async def stop(self, *, hurry: bool) -> None:
        """End all there is."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(self._end(served, 0, hurry=hurry) for served in tuple(self.alive)))

    # loading

    def _run(self, shelf: Shelf, load: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Go on with a load, whoever waits for it; its error, if any, is told."""
        task = asyncio.ensure_future(load)
        for tasks in (shelf.loads, self._tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        task.add_done_callback(_heed)
        return task

    async def _finish_first(self, shelf: Shelf, openings: list[_Opening]) -> None:
        async with shelf.lock:
            await self._finish(shelf, openings)

    async def _load(self, shelf: Shelf) -> None:
        async with shelf.lock:
            if self._is_closing:
                raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and loads nothing more.")
            try:
                wanted = self._accept(shelf, await asyncio.to_thread(self._repository.read, shelf.name))
            except LoadError as error:
                self._refuse(shelf, error)
                raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{shelf.name}': {error}") from error
            versions = [shelf.version(number) for number in wanted.versions]
            leaving = [version.leaving for version in versions if version.leaving is not None]
            if leaving:
                await asyncio.wait(leaving)  # never more than two of one version at once
            await self._finish(shelf, [self._open(shelf, version) for version in versions])

    def _accept(self, shelf: Shelf, wanted: Wanted | None) -> Wanted:
        if wanted is None:
            msg = f"failed to load '{shelf.name}', failed to poll from model repository"
            raise GeartrainError(Code.NOT_FOUND, msg)
        shelf.wanted, shelf.is_wanted, shelf.fault = wanted, True, ""
        return wanted

    def _refuse(self, shelf: Shelf, error: LoadError) -> None:
        """A model is wrong as a whole: what there is of it goes on."""
        shelf.is_wanted, shelf.fault = True, str(error)
        for version in shelf.versions.values():
            if version.state == "READY":
                version.reason = f"reload failed: {error}"
        self._tell(Step("reload-failed" if shelf.inferences else "setup-failed", shelf.name, reason=str(error)))

    def _open(self, shelf: Shelf, version: Version) -> _Opening:
        """Have new workers of a version on their way."""
        opening = _Opening(version)
        is_first = version.state != "READY"
        if is_first:
            version.state, version.reason = "LOADING", ""
        try:
            opening.new = self._repository.open(shelf.name, version.number)
        except LoadError as error:
            opening.error = error
        else:
            self.alive.add(opening.new)
            if is_first:
                version.served = opening.new
                self._settle(shelf)
        return opening

    async def _finish(self, shelf: Shelf, openings: list[_Opening]) -> None:
        """Wait for new workers, and let them take over; then let go of the versions that are wanted no longer."""
        results = await asyncio.gather(*(self._bring_up(shelf, each) for each in openings), return_exceptions=True)
        faults = []
        for opening, result in zip(openings, results, strict=True):
            if isinstance(result, LoadError | ModelSetupError):
                faults.append(f"version {opening.version.number} is at UNAVAILABLE state: {result};")
            elif isinstance(result, BaseException):
                raise result
        kept = {opening.version.number for opening in openings}
        for number, version in tuple(shelf.versions.items()):
            if number not in kept:
                if version.served is not None:
                    await self._take_down(shelf, version)
                shelf.forget(number)
        if faults:
            raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{shelf.name}': {' '.join(faults)}")

    async def _bring_up(self, shelf: Shelf, opening: _Opening) -> None:
        """Have a version served by its new workers; raises `LoadError` or `ModelSetupError`."""
        version, old = opening.version, opening.old
        try:
            if opening.new is None:
                raise opening.error or LoadError("there is nothing to load")
            await opening.new.start()
        except BaseException as error:
            await self._on_failure(shelf, opening, error)
            raise
        if old is not None and version.state == "READY":
            old.inference.service.make_way(opening.new.inference.service)
        version.served, version.state, version.reason = opening.new, "READY", ""
        self._settle(shelf)
        if old is not None:
            version.leaving = asyncio.ensure_future(self._end(old, self._grace))
        permits = opening.new.inference.service.model.permits
        self._tell(Step("ready", shelf.name, version.number, slots=permits.size))

    async def _on_failure(self, shelf: Shelf, opening: _Opening, error: BaseException) -> None:
        version, old, new = opening.version, opening.old, opening.new
        reason = error.reason if isinstance(error, ModelSetupError) else str(error)
        is_canceled = not isinstance(error, LoadError | ModelSetupError)
        if version.state == "READY":  # it goes on as it was
            if new is not None:
                await self._end(new, 0)
            if not is_canceled:
                version.reason = f"reload failed: {reason}"
                self._tell(Step("reload-failed", shelf.name, version.number, reason=reason))
            return
        version.state, version.reason = "UNAVAILABLE", "unloaded" if is_canceled else reason
        version.served = None if is_canceled else new  # what has failed can still be asked why
        self._settle(shelf)
        for each in (old, new if is_canceled else None):
            if each is not None:
                await self._end(each, 0)
        if not is_canceled:
            self._tell(Step("setup-failed", shelf.name, version.number, reason=reason))

    # unloading

    async def _take_down(self, shelf: Shelf, version: Version) -> None:
        served = version.served
        if served is None:
            version.state, version.reason = "UNAVAILABLE", "unloaded"
            return
        version.state, version.reason = "UNLOADING", ""
        self._settle(shelf)
        leaving = () if version.leaving is None else (version.leaving,)
        await asyncio.gather(self._end(served, self._grace), *leaving)
        version.state, version.reason, version.served = "UNAVAILABLE", "unloaded", None
        self._settle(shelf)
        self._tell(Step("unloaded", shelf.name, version.number))

    async def _end(self, served: VersionPort, grace: float | None, *, hurry: bool = False) -> None:
        try:
            await served.close(grace, hurry=hurry)
        except Exception:
            logger.exception("a model version could not be closed")
        finally:
            self.alive.discard(served)


class _Opening:
    """A version on its way: who serves it now, and who shall, or why nobody can."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.old = version.served
        self.new: VersionPort | None = None
        self.error: LoadError | None = None


def _give_up(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        if not task.cancelling():  # a second time would keep it from cleaning up
            task.cancel()


def _heed(task: asyncio.Task[None]) -> None:
    """Look at the error of a load that nobody may wait for: it has been told."""
    if not task.cancelled():
        with contextlib.suppress(GeartrainError):
            task.result()
