"""Takes up accepted predictions whose server was lost, or has ended before they had."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import (
    LOST_ERROR,
    UNREADABLE_ERROR,
    Delivery,
    End,
    Key,
    TakenOver,
    Verdict,
)
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord, Webhook
from geartrain.service.durable.durability import Durability
from geartrain.service.durable.history import encode_end
from geartrain.service.durable.runs import DurableRun
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.durable import NOTHING_STORED, StoredRequest, read_request, restore_files, resume

logger = logging.getLogger(__name__)

_MOST: Final = 256  # predictions that are taken up and not over: their inputs are in memory
_PAUSE: Final = 0.1  # seconds before a model that could not run one is asked again; doubled each time
_LONGEST_PAUSE: Final = 2.0
_REFUSED_FOR_GOOD: Final = frozenset({Code.INVALID_INPUT, Code.NO_STORAGE, Code.TOO_LARGE})

FindDeployment = Callable[[str, str], Awaitable[Deployment]]


class Takeover:
    """Runs again what was accepted, or ends it as its row says."""

    def __init__(self, durability: Durability, find: FindDeployment, *, clock: Callable[[], float] = time.time) -> None:
        """`find` returns what runs the predictions of a table of ids, in a version if one is named.

        It raises `GeartrainError` where there is nothing, now or for good: it is asked again. `clock` gives seconds
        since the epoch.
        """
        self._durability = durability
        self._find = find
        self._clock = clock
        self._held: dict[
            Key, asyncio.Future[None]
        ] = {}  # rows that are taken up, and the tasks that bring them to their models
        self._runs: set[DurableRun] = set()  # that have come so far, and are not over
        self._has_more = False
        self._looking: set[asyncio.Future[None]] = set()
        durability.on_run_over = self._on_over

    async def look(self) -> None:
        """Take over what there is, as far as there is room. Raises as the store does."""
        durability = self._durability
        room = _MOST - len(self._held) - len(self._runs)
        if room <= 0 or durability.is_leaving:
            return
        taken = await durability.store.ledger.take_over(durability.owner, limit=room)
        self._has_more = len(taken) == room
        for each in taken:
            key = each.row.ownership.key
            logger.info("a prediction is taken over", extra={**_fields(key), "verdict": each.verdict})
            task = asyncio.ensure_future(self._bring(each))
            self._held[key] = task
            task.add_done_callback(functools.partial(self._let_go, key))

    async def stop(self) -> None:
        """Take up nothing more; what has not come to its model is left to the next server."""
        tasks = (*self._looking, *self._held.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _let_go(self, key: Key, done: asyncio.Future[None]) -> None:
        if self._held.get(key) is done:
            del self._held[key]

    def _on_over(self, run: DurableRun) -> None:
        if run not in self._runs:
            return
        self._runs.discard(run)
        if self._has_more and not self._runs and not self._durability.is_leaving:
            looking = asyncio.ensure_future(self._look_again())
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    async def _look_again(self) -> None:
        try:
            await self.look()
        except GeartrainError as error:  # the next renewal of the lease looks again
            self._durability.note(error)

    async def _bring(self, taken: TakenOver) -> None:
        """Have a row run, or end it; until then, try again."""
        pause = _PAUSE
        while True:
            try:
                await self._settle(taken)
            except GeartrainError as error:
                self._durability.note(error)
                logger.debug("a prediction cannot be taken up yet", extra={"reason": error.message})
            except Exception:
                logger.exception("a prediction cannot be taken up", extra=_fields(taken.row.ownership.key))
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _settle(self, taken: TakenOver) -> None:
        stored = read_request(taken.request) if taken.request else NOTHING_STORED
        webhook = () if stored.webhook is None or "completed" not in stored.webhook.events else (stored.webhook,)
        match taken.verdict:
            case Verdict.RUN:
                await self._run(taken, stored, webhook)
            case Verdict.CANCEL:
                await self._end(taken, webhook, lambda prediction: prediction.cancel(at=self._clock()))
            case Verdict.LOST:
                await self._fail(taken, webhook, LOST_ERROR)
            case Verdict.UNREADABLE:
                await self._fail(taken, webhook, UNREADABLE_ERROR)

    async def _run(self, taken: TakenOver, stored: StoredRequest, webhook: tuple[Webhook, ...]) -> None:
        row = taken.row
        deployment = await self._find(row.ownership.key.model, stored.version)
        deployment.workers.check_ready()
        attachments = await restore_files(deployment, stored)
        try:
            run = resume(deployment, self._durability, row, stored=stored, attachments=attachments)
        except GeartrainError as error:
            if attachments is not None:
                await attachments.folder.remove()
            if error.code not in _REFUSED_FOR_GOOD:
                raise
            await self._fail(taken, webhook, error.message)
        else:
            self._runs.add(run)

    async def _fail(self, taken: TakenOver, webhook: tuple[Webhook, ...], error: str) -> None:
        await self._end(taken, webhook, lambda prediction: prediction.fail(error, at=self._clock()))

    async def _end(self, taken: TakenOver, webhook: tuple[Webhook, ...], end: Callable[[Prediction], None]) -> None:
        row, durability = taken.row, self._durability
        record = PredictionRecord(row.ownership.key.id, row.created_at, row.created_at)
        prediction = Prediction(record, row.echo, row.created_at)
        end(prediction)
        prediction.predict_time = None  # it has not run here
        await durability.store.ledger.finish(
            row.ownership,
            End(
                status=prediction.status,
                completed_at=prediction.completed_at or row.created_at,
                error=prediction.error or "",
                events=encode_end((), prediction, prediction),
                deliveries=tuple(Delivery(each, durability.encode_end(prediction)) for each in webhook),
            ),
        )
        if webhook:
            durability.on_delivery()


def _fields(key: Key) -> dict[str, str]:
    return {"model": key.model, "prediction_id": key.id}
