"""The models that clients have asked for, on all servers that share a store: who loads one has all of them load it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Final, Protocol

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.ledger import WantedModel
from geartrain.service.durable.durability import Durability

logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0  # seconds between two looks at what is wanted


class ModelControl(Protocol):
    """Loads and unloads models as clients ask for it. See `Catalogue`."""

    async def load(self, name: str) -> None:
        """Load a model of the repository; return when it is ready."""

    async def unload(self, name: str) -> None:
        """Take a model out of service; return when its requests have ended."""


class SharedControl:
    """Does here what clients ask for, and has the other servers follow."""

    def __init__(self, models: ModelControl, durability: Durability) -> None:
        self._models = models
        self._durability = durability
        self._done: dict[str, int] = {}  # the revisions that this server has followed, by model
        self._following: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    # requests of clients

    async def load(self, name: str) -> None:
        """Load a model here, and then everywhere: what cannot be loaded here is asked of no other server."""
        await self._models.load(name)
        await self._say(name, is_wanted=True)

    async def unload(self, name: str) -> None:
        """Take a model out of service here, and then everywhere."""
        await self._models.unload(name)
        await self._say(name, is_wanted=False)

    async def _say(self, name: str, *, is_wanted: bool) -> None:
        wanted = await self._durability.store.replicas.want(name, is_wanted=is_wanted)
        self._done[name] = max(wanted.revision, self._done.get(name, 0))

    # requests of other servers

    def start(self) -> None:
        """Follow what was asked of any server from now on, and what was asked before."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Follow nothing more."""
        tasks = [*self._following.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(GeartrainError):  # a store that is away is told of by the lease
                self.apply(await self._durability.store.replicas.wanted())
            await asyncio.sleep(_INTERVAL)

    def apply(self, models: tuple[WantedModel, ...]) -> None:
        """Begin to follow what is new. For each model one thing after the other."""
        for wanted in models:
            name = wanted.model
            if wanted.revision > self._done.get(name, 0) and name not in self._following:
                self._done[name] = wanted.revision
                task = asyncio.ensure_future(self._follow(wanted))
                self._following[name] = task
                task.add_done_callback(functools.partial(self._on_followed, name))

    def _on_followed(self, name: str, _done: asyncio.Future[None]) -> None:
        del self._following[name]

    async def _follow(self, wanted: WantedModel) -> None:
        try:
            if wanted.is_wanted:
                await self._models.load(wanted.model)
            else:
                await self._models.unload(wanted.model)
        except GeartrainError as error:
            what = "loaded" if wanted.is_wanted else "unloaded"
            logger.warning(
                "a model could not be %s as another server was asked to",
                what,
                extra={"model": wanted.model, "reason": error.message},
            )
        except Exception:
            logger.exception("what another server was asked for could not be done")
