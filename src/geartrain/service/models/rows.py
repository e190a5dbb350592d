"""Admission of the rows of a data set, many at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ItemInput
from geartrain.domain.predictions.inference import NO_SCHEDULE
from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.scheduling.execution import Ticket
from geartrain.service.scheduling.rows import RowExecution, RowGroup, RowListener


def takes_rows(deployment: Deployment) -> bool:
    """Return True if rows need nothing before their run: no files, and no look at answers that are kept."""
    return deployment.admission.input_files is None and deployment.answers is None


def begin_rows(deployment: Deployment, rows: Iterable[tuple[Any, bytes]], listener: RowListener, *, queue: int) -> None:
    """Check rows, each with its input as a JSON object, and have them wait in the queue, which has so many places.

    `listener` receives the end of each. Raises `GeartrainError` for what concerns all of them, as `Deployment.create`
    does; then none has begun.
    """
    workers, scheduler, executions = deployment.workers, deployment.scheduler, deployment.executions
    if workers.health is not Health.READY:
        raise workers.not_ready()
    if executions.is_closed:
        raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new rows.")
    context, admission, new_id = scheduler.context, deployment.admission, deployment.predictions.new_id
    measure, is_batching = scheduler.pending.measure, scheduler.is_batching
    group = RowGroup(listener, deployment.name, deployment.version, context.clock())
    ticket = scheduler.admit((), NO_SCHEDULE, size=queue)
    begun: list[RowExecution] = []
    for row, data in rows:
        size = 1
        try:
            admission.check(NewPrediction(data))
            if is_batching:
                key, size = measure(data, None)
                if key != ticket.key:
                    ticket = Ticket(key, NO_SCHEDULE, ticket.level)
        except GeartrainError as error:
            listener.on_refused(row, error)
            continue
        execution = RowExecution(scheduler, row, ItemInput(new_id(), data, size), ticket=ticket, group=group)
        executions.live.add(execution)
        if context.traces is not None:
            execution.begin_trace()
        begun.append(execution)
    scheduler.submit_all(begun)
