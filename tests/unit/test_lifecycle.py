"""The state machines: every pair of states, allowed or refused. Two are as the documents' diagrams say."""

from __future__ import annotations

import itertools
import types
from typing import Any

import pytest

from geartrain.domain import lifecycle
from geartrain.domain.lifecycle import (
    CallState,
    ExecutionState,
    Health,
    IllegalStepError,
    Status,
    next_health,
    next_status,
)
from geartrain.domain.prediction import Prediction
from geartrain.domain.work import ItemInput
from geartrain.service.scheduling.call import Call
from geartrain.service.scheduling.execution import NO_TICKET, Execution

S, H, E, C = Status, Health, ExecutionState, CallState

STATUS_STEPS = {
    (S.STARTING, S.PROCESSING),
    (S.STARTING, S.FAILED),
    (S.STARTING, S.CANCELED),
    (S.PROCESSING, S.SUCCEEDED),
    (S.PROCESSING, S.FAILED),
    (S.PROCESSING, S.CANCELED),
}
HEALTH_STEPS = {
    (H.UNKNOWN, H.STARTING),
    (H.STARTING, H.READY),
    (H.STARTING, H.SETUP_FAILED),
    (H.STARTING, H.DEFUNCT),
    (H.READY, H.DEFUNCT),
    (H.READY, H.STARTING),
}


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(Status, Status)))
def test_status(current: Status, wanted: Status) -> None:
    if (current, wanted) in STATUS_STEPS:
        assert next_status(current, wanted) is wanted
    else:
        with pytest.raises(IllegalStepError):
            next_status(current, wanted)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(Health, Health)))
def test_health(current: Health, wanted: Health) -> None:
    if (current, wanted) in HEALTH_STEPS:
        assert next_health(current, wanted) is wanted
    else:
        with pytest.raises(IllegalStepError):
            next_health(current, wanted)


EXECUTION_STEPS = {
    (E.ADMITTED, E.PREPARING),
    (E.ADMITTED, E.WAITING),
    (E.ADMITTED, E.ASSIGNED),
    (E.ADMITTED, E.OVER),
    (E.PREPARING, E.WAITING),
    (E.PREPARING, E.ASSIGNED),
    (E.PREPARING, E.CLOSING),
    (E.WAITING, E.ASSIGNED),
    (E.WAITING, E.PREFETCHED),
    (E.WAITING, E.CLOSING),
    (E.WAITING, E.OVER),
    (E.ASSIGNED, E.RUNNING),
    (E.ASSIGNED, E.WAITING),
    (E.ASSIGNED, E.CLOSING),
    (E.ASSIGNED, E.OVER),
    (E.PREFETCHED, E.RUNNING),
    (E.PREFETCHED, E.WAITING),
    (E.PREFETCHED, E.CLOSING),
    (E.PREFETCHED, E.OVER),
    (E.RUNNING, E.CANCELING),
    (E.RUNNING, E.CLOSING),
    (E.RUNNING, E.OVER),
    (E.CANCELING, E.CLOSING),
    (E.CANCELING, E.OVER),
    (E.CLOSING, E.OVER),
}
CALL_STEPS = {
    (C.ASSIGNED, C.RUNNING),
    (C.ASSIGNED, C.UNSTARTED),
    (C.ASSIGNED, C.OVER),
    (C.RUNNING, C.CANCELING),
    (C.RUNNING, C.ENDED),
    (C.RUNNING, C.OVER),
    (C.CANCELING, C.KILLED),
    (C.CANCELING, C.ENDED),
    (C.CANCELING, C.OVER),
    (C.KILLED, C.ENDED),
    (C.KILLED, C.OVER),
    (C.ENDED, C.KILLED),
    (C.ENDED, C.OVER),
}


def test_tables_of_executions_and_calls() -> None:
    for table, steps, states in (
        (lifecycle.EXECUTION_STEPS, EXECUTION_STEPS, ExecutionState),
        (lifecycle.CALL_STEPS, CALL_STEPS, CallState),
    ):
        assert {(current, wanted) for current, found in table.items() for wanted in found} == steps
        assert set(table) == set(states)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(ExecutionState, ExecutionState)))
def test_execution(current: ExecutionState, wanted: ExecutionState) -> None:
    scheduler: Any = types.SimpleNamespace(waiting=0)
    item = ItemInput("id", b"{}")
    execution = Execution(scheduler, Prediction("id", b"{}", 0.0), item, ticket=NO_TICKET, at=0.0)
    execution.state = current
    if (current, wanted) in EXECUTION_STEPS:
        execution._step(wanted)
        assert execution.state is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"an execution cannot go from {current} to {wanted}"):
            execution._step(wanted)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(CallState, CallState)))
def test_call(current: CallState, wanted: CallState) -> None:
    scheduler: Any = types.SimpleNamespace(waiting=0)
    member = Execution(scheduler, Prediction("id", b"{}", 0.0), ItemInput("id", b"{}"), ticket=NO_TICKET, at=0.0)
    call = Call("id", scheduler, scheduler, members=[member])
    call.state = current
    if (current, wanted) in CALL_STEPS:
        call._step(wanted)
        assert call.state is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"a call cannot go from {current} to {wanted}"):
            call._step(wanted)
