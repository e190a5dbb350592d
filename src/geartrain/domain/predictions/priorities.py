"""The priority levels of a model's queue, and how long and how many requests of each may wait.

The meaning is that of Triton's `ModelDynamicBatching` and `ModelQueuePolicy`, for models with and without batches.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from geartrain.domain.errors import Code, GeartrainError

MAX_LEVELS: Final = 100


class Level(msgspec.Struct, frozen=True):
    """Waiting of requests with one priority.

    `max_queue` is how many may, `timeout` how many seconds one may; None for no limit of the level's own. One that has
    waited so long is refused (`reject`), or waits until all others of its level and of higher ones that are still in
    time have begun (`continue`).
    """

    max_queue: int | None = None
    timeout: float | None = None
    on_timeout: Literal["reject", "continue"] = "reject"


class Priorities(msgspec.Struct, frozen=True):
    """The levels, the highest first; none for a model that serves all in one order.

    `default` is the number of the level, from 1, of a request that asks for none.
    """

    levels: tuple[Level, ...] = ()
    default: int = 1

    def level_of(self, priority: int) -> int:
        """Return the index of the level that a request's `priority` names; 0 means the default.

        Raises `INVALID_INPUT` for one that is not there.
        """
        if priority > len(self.levels):
            msg = (
                f"parameter 'priority' is {priority}, out of range: this model takes 1, the highest, to "
                f"{len(self.levels)}, or 0 for its default, {self.default}"
            )
            raise GeartrainError(Code.INVALID_INPUT, msg)
        return (priority or self.default) - 1


NO_PRIORITIES: Final = Priorities()
