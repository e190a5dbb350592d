"""Batches and queues of a `config.pbtxt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from geartrain.domain.predictions.priorities import MAX_LEVELS, NO_PRIORITIES, Level, Priorities
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb

_SECOND: Final = 1_000_000  # microseconds


def read_batching(config: pb.ModelConfig) -> Mapping[str, Any] | None:
    """Return the settings of batches; None where the configuration is silent and the model's file decides.

    Raises ProjectError that names the field.
    """
    largest = config.max_batch_size
    given = config.dynamic_batching
    if not largest:
        return None
    sizes = sorted(set(given.preferred_batch_size))
    if sizes and not 1 <= sizes[0] <= sizes[-1] <= largest:
        raise ProjectError(
            f"`dynamic_batching.preferred_batch_size` has {sizes}; write sizes from 1 to `max_batch_size`, {largest}"
        )
    return {
        "max_size": largest,
        "refuse_larger": True,
        "gather": config.HasField("dynamic_batching"),
        "preferred_sizes": tuple(sizes),
        "max_delay": given.max_queue_delay_microseconds / _SECOND,
    }


def read_queue(config: pb.ModelConfig) -> int | None:
    """Return the number of requests that may wait; None if it is not the same for all of them."""
    given = config.dynamic_batching
    return None if given.priority_levels else given.default_queue_policy.max_queue_size or None


def read_priorities(config: pb.ModelConfig) -> Priorities:
    """Return the priority levels; one without a name where only a limit of time is set. Raises ProjectError."""
    given = config.dynamic_batching
    count, default = given.priority_levels, given.default_priority_level
    if count > MAX_LEVELS:
        raise ProjectError(f"`dynamic_batching.priority_levels` is {count}; there may be {MAX_LEVELS}")
    if not count:
        level = _level(given.default_queue_policy)
        return Priorities((level,), 1) if level.timeout is not None else NO_PRIORITIES
    if not 1 <= default <= count:
        raise ProjectError(
            f"`dynamic_batching.default_priority_level` is {default}; write a level from 1, the highest, to {count}"
        )
    own = given.priority_queue_policy
    for number in own:
        if not 1 <= number <= count:
            raise ProjectError(f"`dynamic_batching.priority_queue_policy` has level {number}; there are 1 to {count}")
    levels = [_level(own.get(number, given.default_queue_policy)) for number in range(1, count + 1)]
    return Priorities(tuple(levels), default)


def _level(policy: pb.ModelQueuePolicy) -> Level:
    waits = policy.timeout_action == pb.ModelQueuePolicy.DELAY
    timeout = policy.default_timeout_microseconds
    return Level(
        max_queue=policy.max_queue_size or None,
        timeout=timeout / _SECOND if timeout else None,
        on_timeout="continue" if waits and timeout else "reject",
    )
