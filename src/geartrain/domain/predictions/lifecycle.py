"""The state machines: of a prediction, of its execution, of a call, of a version of a model, and of its health.

Tables without a clock, a loop or a socket; see `geartrain.domain.state_machine`. Spec: Cog's HTTP API, "Status
Lifecycle" and "Health States"; container runtime, the health diagram.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from geartrain.domain.state_machine import steps_to


class Status(StrEnum):
    """State of a prediction."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Health(StrEnum):
    """State of a model. `BUSY` and `UNHEALTHY` are never stored: a report derives them from a `READY` model."""

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


class ExecutionState(StrEnum):
    """State of an execution."""

    ADMITTED = "admitted"
    CLAIMING = "claiming"  # its id, or its input, is being written to the store
    PREPARING = "preparing"  # the files of its input are being fetched
    WAITING = "waiting"  # in the queue
    SHARING = "sharing"  # the run of an equal request
    ASSIGNED = "assigned"  # a member of a call that has a slot and has not begun
    PREFETCHED = "prefetched"  # a member of a call that begins when the one before it on its slot is over
    RUNNING = "running"
    CANCELING = "canceling"  # its run has been asked to stop
    CLOSING = "closing"  # its run is over; its outputs are being delivered, or its files removed
    OVER = "over"


class CallState(StrEnum):
    """State of a call."""

    ASSIGNED = "assigned"  # handed to a slot, and not begun
    WITHDRAWN = "withdrawn"  # handed to a slot, and to be left out there: no member is left
    RUNNING = "running"
    CANCELING = "canceling"  # the worker has been asked to stop it
    KILLED = "killed"  # it did not stop in time, and its worker is being killed
    ENDED = "ended"  # every member has ended, and the slot is still in use
    DELIVERING = "delivering"  # its run is over; the slot is held until its output files are delivered
    UNSTARTED = "unstarted"  # its worker died before it began: its members wait again
    OVER = "over"


EXECUTION_STEPS: Final[dict[ExecutionState, frozenset[ExecutionState]]] = {
    ExecutionState.ADMITTED: frozenset(
        {
            ExecutionState.CLAIMING,
            ExecutionState.PREPARING,
            ExecutionState.WAITING,
            ExecutionState.SHARING,
            ExecutionState.ASSIGNED,
            ExecutionState.PREFETCHED,
            ExecutionState.OVER,
        }
    ),
    # Closing: the files of its input are still being removed.
    ExecutionState.SHARING: frozenset({ExecutionState.CLOSING, ExecutionState.OVER}),
    # Over: the store has refused it, or it was canceled meanwhile.
    ExecutionState.CLAIMING: frozenset(
        {
            ExecutionState.PREPARING,
            ExecutionState.WAITING,
            ExecutionState.ASSIGNED,
            ExecutionState.PREFETCHED,
            ExecutionState.OVER,
        }
    ),
    # Over: its admission failed before the first file was fetched. Closing, without a run: its answer is kept.
    ExecutionState.PREPARING: frozenset(
        {
            ExecutionState.WAITING,
            ExecutionState.SHARING,
            ExecutionState.ASSIGNED,
            ExecutionState.PREFETCHED,
            ExecutionState.CLOSING,
            ExecutionState.OVER,
        }
    ),
    ExecutionState.WAITING: frozenset(
        {ExecutionState.ASSIGNED, ExecutionState.PREFETCHED, ExecutionState.CLOSING, ExecutionState.OVER}
    ),
    # Back to waiting: the worker died before the call began.
    ExecutionState.ASSIGNED: frozenset(
        {ExecutionState.RUNNING, ExecutionState.WAITING, ExecutionState.CLOSING, ExecutionState.OVER}
    ),
    ExecutionState.PREFETCHED: frozenset(
        {ExecutionState.RUNNING, ExecutionState.WAITING, ExecutionState.CLOSING, ExecutionState.OVER}
    ),
    ExecutionState.RUNNING: frozenset({ExecutionState.CANCELING, ExecutionState.CLOSING, ExecutionState.OVER}),
    ExecutionState.CANCELING: frozenset({ExecutionState.CLOSING, ExecutionState.OVER}),
    ExecutionState.CLOSING: frozenset({ExecutionState.OVER}),
    ExecutionState.OVER: frozenset(),
}

CALL_STEPS: Final[dict[CallState, frozenset[CallState]]] = {
    # A call may end before it began: its input could not be handed to the worker.
    CallState.ASSIGNED: frozenset({CallState.RUNNING, CallState.WITHDRAWN, CallState.UNSTARTED, CallState.OVER}),
    # Killed: it had begun all the same, and did not stop in time.
    CallState.WITHDRAWN: frozenset({CallState.KILLED, CallState.ENDED, CallState.UNSTARTED, CallState.OVER}),
    CallState.RUNNING: frozenset({CallState.CANCELING, CallState.ENDED, CallState.DELIVERING, CallState.OVER}),
    CallState.CANCELING: frozenset({CallState.KILLED, CallState.ENDED, CallState.DELIVERING, CallState.OVER}),
    CallState.KILLED: frozenset({CallState.ENDED, CallState.DELIVERING, CallState.OVER}),
    CallState.DELIVERING: frozenset({CallState.OVER}),
    CallState.ENDED: frozenset({CallState.OVER}),
    CallState.UNSTARTED: frozenset(),
    CallState.OVER: frozenset(),
}


class VersionState(StrEnum):
    """State of a model version."""

    ABSENT = "absent"  # never loaded, or unloaded
    LOADING = "loading"  # its first workers are on their way
    READY = "ready"  # it is served
    RELOADING = "reloading"  # it is served, and the workers that shall replace the present ones are on their way
    FAILED = "failed"  # its workers could not be set up; they are kept to say why
    REFUSED = "refused"  # no worker of it could be spawned
    UNLOADING = "unloading"  # its last predictions are under way
    RESTING = "resting"  # it has no workers, and a request loads it
    WAKING = "waking"  # resting, with its workers on their way: requests wait for them


DORMANT: Final = frozenset({VersionState.RESTING, VersionState.WAKING})
"""Requests for a version wait until it is loaded."""

VERSION_STEPS: Final[dict[VersionState, frozenset[VersionState]]] = {
    VersionState.ABSENT: frozenset({VersionState.LOADING, VersionState.REFUSED, VersionState.RESTING}),
    # Absent: it was unloaded before it was ready.
    VersionState.LOADING: frozenset({VersionState.READY, VersionState.FAILED, VersionState.ABSENT}),
    VersionState.READY: frozenset({VersionState.RELOADING, VersionState.UNLOADING, VersionState.RESTING}),
    VersionState.RELOADING: frozenset({VersionState.READY}),  # by the new workers, or still by the old ones
    VersionState.FAILED: frozenset({VersionState.LOADING, VersionState.REFUSED, VersionState.UNLOADING}),
    VersionState.REFUSED: frozenset({VersionState.LOADING, VersionState.REFUSED, VersionState.ABSENT}),
    VersionState.UNLOADING: frozenset({VersionState.ABSENT}),
    # Absent: it was unloaded by a request, and no request loads it any more.
    VersionState.RESTING: frozenset({VersionState.WAKING, VersionState.REFUSED, VersionState.ABSENT}),
    # Resting: its load was given up.
    VersionState.WAKING: frozenset({VersionState.READY, VersionState.FAILED, VersionState.RESTING}),
}


TO_STATUS: Final = steps_to("a prediction", PREDICTION_STEPS)
TO_HEALTH: Final = steps_to("a model", HEALTH_STEPS)
TO_EXECUTION_STATE: Final = steps_to("an execution", EXECUTION_STEPS)
TO_CALL_STATE: Final = steps_to("a call", CALL_STEPS)
TO_VERSION_STATE: Final = steps_to("a version of a model", VERSION_STEPS)
