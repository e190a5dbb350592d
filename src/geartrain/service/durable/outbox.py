"""Delivers the webhooks that tell of ends: each is in the store until it has arrived."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.ledger import LONGEST_PAUSE, OutboxEntry
from geartrain.service.durable.durability import Durability
from geartrain.service.ports import WebhookSenderPort

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # deliveries
_MOST_ATTEMPTS: Final = 24  # with the pauses between them, about 16 hours


class OutboxDispatcher:
    """Delivers what is due: what this server has ended, and what others have left."""

    def __init__(self, durability: Durability, sender_of: Callable[[str], WebhookSenderPort]) -> None:
        """`sender_of` gives what sends the webhooks of a table of ids, which is that of a model or its trainings."""
        self._durability = durability
        self._sender_of = sender_of
        self._due = asyncio.Event()
        self._running: dict[int, asyncio.Future[None]] = {}  # by the number of the entry
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        durability.on_delivery = self._due.set

    def start(self) -> None:
        """Deliver from now on."""
        self._due.set()
        self._task = asyncio.ensure_future(self._run())

    async def drain(self, seconds: float) -> None:
        """Deliver what is due, at most so many seconds; the rest is left in the store."""
        self._is_ending = True
        self._due.set()
        task = () if self._task is None else (self._task,)
        with contextlib.suppress(TimeoutError, GeartrainError):
            async with asyncio.timeout(seconds):
                if task:  # it ends by itself: the entries that it is leasing would wait until their loan ends
                    await asyncio.wait(task)
                await self._deliver_due()
                if self._running:
                    await asyncio.wait(tuple(self._running.values()))
        await _cancel((*task, *self._running.values()))

    async def _run(self) -> None:
        while not self._is_ending:
            with contextlib.suppress(TimeoutError):
                # Others leave entries, and loans end, without telling anybody.
                async with asyncio.timeout(self._durability.settings.lease / 3):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._deliver_due()
            except GeartrainError as error:
                self._durability.note(error)
            except Exception:
                logger.exception("the outbox could not be read")

    async def _deliver_due(self) -> None:
        store, lease = self._durability.store, self._durability.settings.lease
        while True:
            room = _AT_ONCE - len(self._running)
            if not room:
                await asyncio.wait(tuple(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
                continue
            entries = await store.outbox.lease(self._durability.owner, limit=room, seconds=lease)
            for entry in entries:
                if entry.number not in self._running:
                    task = asyncio.ensure_future(self._deliver(entry, 0.8 * lease))
                    self._running[entry.number] = task
                    task.add_done_callback(functools.partial(self._forget, entry.number))
            if len(entries) < room:
                return

    def _forget(self, number: int, _done: asyncio.Future[None]) -> None:
        del self._running[number]

    async def _deliver(self, entry: OutboxEntry, seconds: float) -> None:
        """Try until the loan is nearly over; then the entry is due again later, for any server.

        While the receiver has not answered the webhook before it, nothing is tried, and the entry is due again when the
        loan is over.
        """
        outbox = self._durability.store.outbox
        ends = asyncio.get_running_loop().time() + seconds
        if entry.key in self._durability.telling:
            _, unanswered = await asyncio.wait((self._durability.telling[entry.key],), timeout=seconds)
            if unanswered:
                return
        reason: str | None = "it took too long"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                delivery = entry.delivery
                reason = await self._sender_of(entry.key.model).deliver(delivery.webhook, delivery.body)
        try:
            if reason is None:
                await outbox.remove((entry.number,))
            elif entry.attempts >= _MOST_ATTEMPTS:
                logger.warning("the webhook of a finished prediction is given up", extra=_fields(entry, reason))
                await outbox.remove((entry.number,))
            else:
                logger.info("the webhook of a finished prediction waits", extra=_fields(entry, reason))
                await outbox.retry_later(entry.number, min(2.0**entry.attempts, LONGEST_PAUSE))
        except GeartrainError as error:  # it is due again when the loan is over
            self._durability.note(error)


def _fields(entry: OutboxEntry, reason: str) -> dict[str, str]:
    return {"model": entry.key.model, "prediction_id": entry.key.id, "reason": reason}


async def _cancel(tasks: tuple[asyncio.Future[None], ...]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
