"""Waiting for what happens, in place of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from geartrain.domain.predictions.events import Event
from geartrain.domain.predictions.prediction import Prediction

Case = TypeVar("Case")

LIMIT = 40.0  # seconds


async def event_of(prediction: Prediction, kind: type[Event]) -> None:
    """Wait until the prediction's log has an event of that kind."""
    happened = asyncio.Event()

    def listen(event: Event) -> None:
        if isinstance(event, kind):
            happened.set()

    prediction.log.listen(listen)
    for event in prediction.log.read(prediction.log.first_index):
        listen(event)
    async with asyncio.timeout(LIMIT):
        await happened.wait()


async def for_each(check: Callable[[Case], Coroutine[Any, Any, None]], *cases: Case) -> None:
    """Check all cases at the same time, where each of them mostly waits."""
    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(check(case))
