"""The two state machines: of a prediction, and of a model's setup and health.

Tables without a clock, a loop or a socket. To change a machine, change its table; an illegal step raises, and a
terminal state has no way out. Spec: Cog's HTTP API, "Status Lifecycle" and "Health States"; container runtime, the
health diagram.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """Where a prediction stands."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Health(StrEnum):
    """Where a model stands. `BUSY` and `UNHEALTHY` are never stored: a report derives them from a `READY` model."""

    UNKNOWN = "UNKNOWN"
    STARTING = "STARTING"
    READY = "READY"
    BUSY = "BUSY"
    SETUP_FAILED = "SETUP_FAILED"
    DEFUNCT = "DEFUNCT"
    UNHEALTHY = "UNHEALTHY"


PREDICTION_STEPS: Final[dict[Status, frozenset[Status]]] = {
    # A prediction may end before its run began: its input could not be fetched, it was canceled, the worker died.
    Status.STARTING: frozenset({Status.PROCESSING, Status.FAILED, Status.CANCELED}),
    Status.PROCESSING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
}

HEALTH_STEPS: Final[dict[Health, frozenset[Health]]] = {
    Health.UNKNOWN: frozenset({Health.STARTING}),
    # DEFUNCT: a restart that failed was the last one. The first start of a server ends in SETUP_FAILED instead.
    Health.STARTING: frozenset({Health.READY, Health.SETUP_FAILED, Health.DEFUNCT}),
    Health.READY: frozenset({Health.DEFUNCT, Health.STARTING}),  # starting again, where the operator wants that
    Health.SETUP_FAILED: frozenset(),
    Health.DEFUNCT: frozenset(),
}


class IllegalStepError(RuntimeError):
    """A state machine was asked for a step that its table does not have: a bug of ours, never of a client."""


def next_status(current: Status, wanted: Status) -> Status:
    """Return `wanted` if a prediction may go there from `current`; raise `IllegalStepError` if not."""
    if wanted not in PREDICTION_STEPS[current]:
        msg = f"a prediction cannot go from {current} to {wanted}"
        raise IllegalStepError(msg)
    return wanted


def next_health(current: Health, wanted: Health) -> Health:
    """Return `wanted` if a model may go there from `current`; raise `IllegalStepError` if not."""
    if wanted not in HEALTH_STEPS.get(current, frozenset()):
        msg = f"a model cannot go from {current} to {wanted}"
        raise IllegalStepError(msg)
    return wanted
