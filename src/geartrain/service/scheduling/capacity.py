"""Decides whether one more prediction may wait, and says to those who may not when to come again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.priorities import Priorities
from geartrain.service.scheduling.pace import Pace
from geartrain.service.scheduling.permits import PermitPool, SharedPermits

DEFAULT_QUEUE: Final = 1024  # requests that may wait, where requests do


class ModelPort(Protocol):
    """The scheduler's model."""

    health: Health

    @property
    def replicas(self) -> Sequence[object]:
        """The equal workers, whether they live or not."""

    permits: PermitPool | SharedPermits  # the slots of the workers that live

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""


class Capacity:
    """Number of predictions that may wait in one queue, beyond those with a free slot."""

    def __init__(self, model: ModelPort, *, queue: int, priorities: Priorities) -> None:
        """`queue`: how many predictions may wait, where the protocol of a client does not say it."""
        self.size = self._queue = queue
        self.priorities = priorities
        self.pace = Pace()
        self._model = model

    def configure(self, *, is_batching: bool) -> None:
        """Learn whether the model takes batches: then predictions may wait for one, whatever the operator says."""
        self.size = self._queue or (DEFAULT_QUEUE if is_batching else 0)

    def fits(self, waiting: int, size: int | None) -> bool:
        """True if one more may wait beside so many; `size` is that of the protocol's queue, None for the operator's."""
        limit = self.size if size is None else size
        return waiting < limit or waiting < limit + self._model.permits.idle  # mostly there is a place in the queue

    def fits_level(self, level: int, waiting: int) -> bool:
        """True if one more may wait in a level, in which so many do."""
        largest = self.priorities.levels[level].max_queue
        return largest is None or waiting < largest or self._model.permits.idle > 0

    def refusal(self, size: int | None, *, ahead: int) -> GeartrainError:
        """Create the error for a full queue. `ahead`: predictions that would be served before the refused one."""
        if size is None:
            code, message = Code.AT_CAPACITY, "At capacity - all prediction slots busy (--queue lets requests wait)"
        else:
            code, message = Code.QUEUE_FULL, "Exceeds maximum queue size"
        return GeartrainError(code, message, retry_after=self.retry_after(ahead))

    def retry_after(self, ahead: int) -> int:
        """Return in how many seconds there is likely to be a slot for one that has so many predictions before it."""
        return self.pace.retry_after(ahead, self._model.permits.size)
