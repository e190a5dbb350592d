"""The load, reload and unload of one model: new workers first, then the switch, then the end of the old ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelEntry
from geartrain.service.models.repository import NOTHING, LoadError, RepositoryPort, Step, Wanted
from geartrain.service.models.version import Version
from geartrain.service.workers.pool import ModelSetupError

logger = logging.getLogger(__name__)


class Opening(msgspec.Struct, frozen=True, eq=False):
    """A version whose new workers are on their way."""

    version: Version
    deployment: Deployment


class Refusal(msgspec.Struct, frozen=True, eq=False):
    """A version whose worker could not be spawned."""

    version: Version
    error: LoadError


Attempt = Opening | Refusal


class Loader:
    """Brings the versions of models into service and out of it. Its caller begins one change of a model at a time."""

    def __init__(self, repository: RepositoryPort, *, grace: float | None, tell: Callable[[Step], None]) -> None:
        """`grace`: the seconds that the predictions of what is replaced or unloaded have; None for no limit."""
        self.alive: set[Deployment] = set()  # all that may have workers, also those that have been replaced
        self._repository = repository
        self._grace = grace
        self._tell = tell

    async def read(self, entry: ModelEntry) -> Wanted | None:
        """Fetch what lies elsewhere of a model, and read what shall be served of it; raises `LoadError`.

        It is None if the model is not in the repository.
        """
        if await asyncio.to_thread(self._repository.has_remote_files, entry.name):
            entry.loading.begin_download(entry.name)
            await self._repository.fetch(entry.name, entry.loading.download)
        return await asyncio.to_thread(self._repository.read, entry.name)

    def accept(self, entry: ModelEntry, wanted: Wanted | None) -> Wanted:
        """Note what shall be served of a model; raise `NOT_FOUND` if it is not in the repository."""
        if wanted is None:
            msg = f"failed to load '{entry.name}', failed to poll from model repository"
            raise GeartrainError(Code.NOT_FOUND, msg)
        entry.wanted, entry.is_wanted, entry.fault = wanted, True, ""
        return wanted

    def refuse(self, entry: ModelEntry, error: LoadError) -> None:
        """A model is wrong as a whole: what there is of it goes on."""
        entry.is_wanted, entry.fault = True, str(error)
        for version in entry.versions.values():
            if version.is_loaded:
                version.refuse(str(error))
        self._tell(Step("reload-failed" if entry.available else "setup-failed", entry.name, reason=str(error)))

    def open(self, entry: ModelEntry, version: Version) -> Attempt:
        """Spawn the new workers of a version."""
        try:
            deployment = self._repository.open(version.record)
        except LoadError as error:
            self._retire(version, version.refuse(str(error)), 0)
            entry.settle()
            return Refusal(version, error)
        self.alive.add(deployment)
        self._retire(version, version.begin(deployment), 0)
        entry.settle()
        return Opening(version, deployment)

    async def finish(self, entry: ModelEntry, attempts: list[Attempt]) -> None:
        """Wait for new workers, and let them take over; then let go of the versions that are wanted no longer."""
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
                await self.take_down(entry, version)
                entry.forget(number)
        if faults:
            raise GeartrainError(Code.LOAD_FAILED, f"load failed for model '{entry.name}': {' '.join(faults)}")
        entry.loading.done = entry.wanted

    async def _bring_up(self, entry: ModelEntry, attempt: Attempt) -> None:
        """Have a version served by its new workers; raises `LoadError` or `ModelSetupError`."""
        version = attempt.version
        if isinstance(attempt, Refusal):
            self._tell_failure(entry, version, str(attempt.error), is_served=version.is_loaded)
            raise attempt.error
        deployment = attempt.deployment
        try:
            await deployment.start()
        except ModelSetupError as error:
            is_served = version.fail(error.reason)
            entry.settle()
            if is_served:
                await self.end(deployment, 0)
            # Otherwise its workers are kept: they can be asked why.
            self._tell_failure(entry, version, error.reason, is_served=is_served)
            raise
        except BaseException:
            version.give_up()
            entry.settle()
            await self.end(deployment, 0)
            raise
        self._retire(version, version.finish(deployment), self._grace)
        entry.settle()
        self._tell(Step("ready", entry.name, version.number, slots=deployment.workers.permits.size))

    def _tell_failure(self, entry: ModelEntry, version: Version, reason: str, *, is_served: bool) -> None:
        self._tell(Step("reload-failed" if is_served else "setup-failed", entry.name, version.number, reason=reason))

    def _retire(self, version: Version, deployments: Iterable[Deployment], grace: float | None) -> None:
        """End what a version no longer needs, in the background."""
        for deployment in deployments:
            end = asyncio.ensure_future(self.end(deployment, grace))
            version.leaving.add(end)
            end.add_done_callback(version.leaving.discard)

    def rest(self, entry: ModelEntry, reason: str) -> None:
        """Take the loaded versions of a model out of service until a request needs them."""
        for version in entry.versions.values():
            if version.is_loaded:
                self._retire(version, version.rest(), self._grace)
                self._tell(Step("unloaded", entry.name, version.number, reason=reason))
        entry.settle()

    async def take_down(self, entry: ModelEntry, version: Version) -> None:
        """Take a version out of service, and wait until its predictions have ended."""
        for deployment in version.coming:  # its load was canceled before it had run at all
            version.give_up()
            entry.settle()
            await self.end(deployment, 0)
        if not version.begin_unload():
            return
        entry.settle()
        await asyncio.gather(self.end(version.deployment, self._grace), *version.leaving)
        version.finish_unload()
        entry.settle()
        self._tell(Step("unloaded", entry.name, version.number))

    async def end(self, deployment: Deployment, grace: float | None) -> None:
        """End a deployment, whose predictions have `grace` seconds; never raises."""
        try:
            await deployment.close(grace)
        except Exception:
            logger.exception("a model version could not be closed")
        finally:
            self.alive.discard(deployment)
