"""Webhooks: one more reader of a prediction's event log, with a task of its own for each prediction that asks for it.

A receiver is told of a prediction by its whole state, so there is nothing to queue: however slow it is, what waits for
it is the latest state. Order is kept by telling one thing at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from geartrain.domain.errors import FieldError
from geartrain.domain.predictions.events import Event, Log, Output
from geartrain.domain.predictions.prediction import Prediction, Webhook, WebhookEvent
from geartrain.service.ports import WebhookSenderPort
from geartrain.service.readers import ChangeReader

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_INTERVAL: Final = 0.5  # seconds

_PROGRESS: Final[dict[WebhookEvent, type[Event]]] = {"output": Output, "logs": Log}

Snapshot = Callable[[Prediction, WebhookEvent], Awaitable[bytes]]


class Backlog(msgspec.Struct, frozen=True):
    """Most webhooks that may wait after their predictions have ended, and most bytes of state in them.

    Beyond that the one that waits longest is given up: a receiver that is down must not use up the server's memory.
    """

    webhooks: int = 10_000
    bytes: int = 256 * 1024**2


class Webhooks:
    """The webhooks of one service."""

    def __init__(
        self,
        sender: WebhookSenderPort,
        snapshot: Snapshot,
        *,
        interval: float = DEFAULT_INTERVAL,
        backlog: Backlog | None = None,
    ) -> None:
        """`snapshot` makes a body; `interval` is the least time between two of `output` and `logs`, in seconds."""
        self.sender = sender
        self.snapshot = snapshot
        self.interval = interval
        self._backlog = backlog or Backlog()
        self._tasks: dict[asyncio.Task[None], _Delivery] = {}
        self._ended: dict[_Delivery, int] = {}  # bytes held, the longest waiting first
        self._held = 0

    def check(self, webhook: Webhook) -> tuple[FieldError, ...]:
        """Return the faults of a target."""
        fault = self.sender.fault(webhook.url)
        return () if fault is None else (FieldError(("body", "webhook"), fault, "value_error.url"),)

    def follow(self, prediction: Prediction, webhook: Webhook) -> None:
        """Tell a receiver of a prediction, from its start on. Returns at once."""
        if webhook.events:
            _ = self._begin(_Delivery(self, prediction, webhook, tells_end=True))

    def follow_until_end(self, prediction: Prediction, webhook: Webhook) -> asyncio.Future[None]:
        """Do the same, but leave the end to somebody else: what is returned is done when all else has been told."""
        return self._begin(_Delivery(self, prediction, webhook, tells_end=False))

    def _begin(self, delivery: _Delivery) -> asyncio.Future[None]:
        delivery.task = asyncio.ensure_future(delivery.run(delivery.read()))
        self._tasks[delivery.task] = delivery
        delivery.task.add_done_callback(self._done)
        return delivery.task

    # at the end

    async def drain(self, grace: float) -> None:
        """Deliver what there is within `grace` seconds; all predictions have ended, or are about to."""
        if not self._tasks:
            return
        loop = asyncio.get_running_loop()
        for delivery in self._tasks.values():
            delivery.finish_by(loop.time() + grace / 2)
        self.sender.end_pauses()
        await asyncio.wait(tuple(self._tasks), timeout=grace)
        if self._tasks:
            logger.warning("webhooks are given up: the server ends", extra={"count": len(self._tasks)})

    async def close(self) -> None:
        """Deliver no more."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.sender.close()

    # for the deliveries

    def ended(self, delivery: _Delivery, size: int) -> None:
        """A prediction has ended; its delivery holds `size` bytes until it is done."""
        self._ended[delivery] = size
        self._held += size
        while len(self._ended) > self._backlog.webhooks or (self._held > self._backlog.bytes and len(self._ended) > 1):
            oldest = next(iter(self._ended))
            self._release(oldest)
            oldest.give_up()

    def _release(self, delivery: _Delivery) -> None:
        self._held -= self._ended.pop(delivery, 0)

    def _done(self, task: asyncio.Task[None]) -> None:
        delivery = self._tasks.pop(task)
        self._release(delivery)
        del delivery.task  # one that was canceled refers to the frames that it was in, and these to the delivery
        if not task.cancelled() and (bug := task.exception()) is not None:
            logger.error("a webhook's delivery failed", exc_info=bug)


class _Delivery:
    """The webhooks that one receiver gets for one prediction."""

    task: asyncio.Task[None]

    def __init__(self, webhooks: Webhooks, prediction: Prediction, webhook: Webhook, *, tells_end: bool) -> None:
        self._webhooks = webhooks
        self._tells_end = tells_end
        self._webhook = webhook
        self._prediction = prediction
        self._fields = _fields(prediction, webhook)
        self._reached = True  # the last time
        self._limit: asyncio.Timeout | None = None  # of what is being told, unless it is the end
        self._ends: float | None = None  # when every limit strikes, on the loop's clock, once the server is to end

    def read(self) -> ChangeReader:
        """Begin to read; only the task keeps the reader, which refers to the delivery."""
        kinds = frozenset(kind for name, kind in _PROGRESS.items() if name in self._webhook.events)
        return ChangeReader(self._prediction, kinds, on_end=self._on_end)

    async def run(self, reader: ChangeReader) -> None:
        """Send all webhooks of the prediction, in order."""
        events = self._webhook.events
        with contextlib.closing(reader):
            if "start" in events:
                await self._tell("start")
            if events != {"start"}:
                await self._follow(reader)
        if self._tells_end and "completed" in events:
            del reader
            await self._tell_end()

    def finish_by(self, ends: float) -> None:
        """Send everything but the end by then, a time on the loop's clock."""
        self._ends = ends
        if self._limit is not None:
            self._limit.reschedule(ends)

    def give_up(self) -> None:
        """Give this delivery up, because too many webhooks wait for receivers."""
        self.task.cancel()
        logger.warning("a webhook is given up: too much waits for receivers", extra=self._fields)

    async def _follow(self, reader: ChangeReader) -> None:
        """Tell of outputs and logs at most once an interval, until the end."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await reader.change()
            await reader.end(until=due)
            if reader.over:
                break
            due = loop.time() + self._webhooks.interval
            reader.changed = False
            await self._tell("output")
        if reader.changed:
            await self._tell_last_change(due)

    async def _tell_last_change(self, due: float) -> None:
        """Tell of what changed just before the end, if it was not to be held back, or if nothing else will tell it."""
        now = asyncio.get_running_loop().time()
        if "completed" not in self._webhook.events:
            await self._within_limit(asyncio.sleep(due - now))
            await self._tell("output")
        elif now >= due and self._reached:
            await self._tell("output")

    async def _tell(self, event: WebhookEvent) -> None:
        prediction = self._prediction
        snapshot = self._webhooks.snapshot
        failure = await self._within_limit(
            self._webhooks.sender.send(self._webhook, lambda: snapshot(prediction, event))
        )
        self._reached = failure is None
        if failure is not None:
            logger.debug("a webhook was not delivered", extra={**self._fields, "reason": failure})

    async def _within_limit(self, work: Coroutine[Any, Any, T]) -> T | str:
        try:
            async with asyncio.timeout_at(self._ends) as self._limit:
                return await work
        except TimeoutError:
            return "the server ends"
        finally:
            self._limit = None

    async def _tell_end(self) -> None:
        body = await self._webhooks.snapshot(self._prediction, "completed")
        del self._prediction  # the body is all that a delivery of many minutes needs
        failure = await self._webhooks.sender.deliver(self._webhook, body)
        if failure is not None:
            logger.warning(
                "the webhook of a finished prediction was not delivered",
                extra={**self._fields, "reason": failure},
            )

    def _on_end(self) -> None:
        prediction = self._prediction
        self._webhooks.ended(self, prediction.kept_size)


def _fields(prediction: Prediction, webhook: Webhook) -> dict[str, str]:
    """Return the log fields of a delivery. Of the receiver it is the host alone: a URL may hold secrets."""
    return {
        "model": prediction.record.model,
        "prediction_id": prediction.id,
        "request_id": prediction.record.request.request_id,
        "receiver": urlsplit(webhook.url).netloc.rpartition("@")[2],
    }
