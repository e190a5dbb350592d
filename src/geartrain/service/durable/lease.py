"""The lease of this server, which keeps other servers from taking its predictions over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.ledger import Hold
from geartrain.service.durable.durability import Durability
from geartrain.service.durable.runs import RunState

logger = logging.getLogger(__name__)

_TIDY_INTERVAL: Final = 60.0  # seconds between two removals of old rows
_REMOVED_AT_ONCE: Final = 1000


class Lease:
    """Renews the lease three times in its time, and does what the store has to say at each of them.

    The store judges leases by its own clock, and this server its own lease by a monotonic one. A lease that the store
    has ended too early means that its clock was set forward: then the leases of the other servers have ended as well,
    though they run. They have the time of a lease to renew theirs before anything is taken over.
    """

    def __init__(
        self,
        durability: Durability,
        *,
        address: str,
        is_dead: Callable[[str], bool],
        take_over: Callable[[], Awaitable[None]],
    ) -> None:
        """`address`: where other servers can ask this one, empty for nowhere.

        `is_dead` says of the owner of a lease whether it has certainly ended, though its lease runs. `take_over` is
        asked after each renewal.
        """
        self._durability = durability
        self._address = address
        self._is_dead = is_dead
        self._take_over = take_over
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None  # because of a claim
        self._is_over = False
        self._ends_at = 0.0  # at the latest, on the clock of the loop
        self._take_over_at = 0.0
        self._tidy_at = 0.0
        durability.renew = self._renew_now

    async def start(self) -> None:
        """Get the lease, and keep it from now on. If the store gives no answer it is tried again."""
        await self._try(self._begin)
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Give the lease back: what this server has not ended can be taken over at once."""
        self._is_over = True
        for task in (self._task, self._renewing):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        await self._try(lambda: self._durability.store.replicas.leave(self._durability.owner))

    async def _run(self) -> None:
        while True:
            if asyncio.get_running_loop().time() >= self._take_over_at:
                await self._try(self._take_over)
            await self._try(self._tidy)
            await asyncio.sleep(self._durability.settings.lease / 3)
            await self._try(self._renew)

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do a step; what is wrong with the store is remembered, and no more: the next time may be better."""
        try:
            await step()
        except GeartrainError as error:
            self._durability.note(error)
            logger.warning("the store of predictions gave no answer", extra={"reason": error.message})
        except Exception:
            logger.exception("the store of predictions could not be asked")

    async def _begin(self) -> None:
        await self._renew()
        replicas = self._durability.store.replicas
        for replica in await replicas.alive():
            if replica.owner != self._durability.owner and self._is_dead(replica.owner):
                await replicas.leave(replica.owner)  # a server of this machine that was killed

    async def _renew_now(self) -> None:
        """Renew the lease out of turn: a claim has found that it has ended. One renewal serves all that wait."""
        if self._is_over:
            return
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())
        await asyncio.shield(self._renewing)

    async def _renew(self) -> None:
        durability, lease = self._durability, self._durability.settings.lease
        now = asyncio.get_running_loop().time()
        was_running = await durability.store.replicas.renew(durability.owner, address=self._address, seconds=lease)
        if not was_running and now < self._ends_at:
            logger.warning("the clock of the store of predictions was set forward")
            self._take_over_at = now + lease
        self._ends_at = now + lease
        durability.note(None)
        held = {run.ownership: run for run in durability.runs.values() if run.state is RunState.HELD}
        if not held:
            return
        owned = {each.ownership: each for each in await durability.store.ledger.owned(durability.owner)}
        for ownership, run in held.items():
            if run.state is not RunState.HELD:
                continue  # it has ended meanwhile
            if ownership not in owned:
                run.on_hold(Hold.FENCED)
            elif owned[ownership].is_cancel_requested:
                run.on_hold(Hold.CANCELING)

    async def _tidy(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY_INTERVAL
        durability = self._durability
        while await durability.store.ledger.remove_old(durability.settings.retention, limit=_REMOVED_AT_ONCE) >= (
            _REMOVED_AT_ONCE
        ):
            pass
