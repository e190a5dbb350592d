"""The state machines: every pair of states, allowed or refused. Two are as the documents' diagrams say."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest

from geartrain.domain.predictions import lifecycle
from geartrain.domain.predictions.calls import ItemInput
from geartrain.domain.predictions.lifecycle import (
    DORMANT,
    CallState,
    ExecutionState,
    Health,
    Status,
    VersionState,
)
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.state_machine import IllegalStepError
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.models.entry import Version
from geartrain.service.models.repository import IndexEntry
from geartrain.service.scheduling.call import Call
from geartrain.service.scheduling.execution import CANCELED, NO_TICKET, Execution
from geartrain.service.statistics import Counts
from tests.support.deployments import unspawned
from tests.support.hand_worker import HandWorker

S, H, E, C, V = Status, Health, ExecutionState, CallState, VersionState

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
        assert lifecycle.TO_STATUS[wanted](current) is wanted
    else:
        with pytest.raises(IllegalStepError):
            lifecycle.TO_STATUS[wanted](current)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(Health, Health)))
def test_health(current: Health, wanted: Health) -> None:
    if (current, wanted) in HEALTH_STEPS:
        assert lifecycle.TO_HEALTH[wanted](current) is wanted
    else:
        with pytest.raises(IllegalStepError):
            lifecycle.TO_HEALTH[wanted](current)


EXECUTION_STEPS = {
    (E.ADMITTED, E.CLAIMING),
    (E.CLAIMING, E.PREPARING),
    (E.CLAIMING, E.WAITING),
    (E.CLAIMING, E.ASSIGNED),
    (E.CLAIMING, E.OVER),
    (E.ADMITTED, E.PREPARING),
    (E.ADMITTED, E.WAITING),
    (E.ADMITTED, E.SHARING),
    (E.SHARING, E.CLOSING),
    (E.SHARING, E.OVER),
    (E.ADMITTED, E.ASSIGNED),
    (E.ADMITTED, E.OVER),
    (E.PREPARING, E.WAITING),
    (E.PREPARING, E.SHARING),
    (E.PREPARING, E.ASSIGNED),
    (E.PREPARING, E.CLOSING),
    (E.PREPARING, E.OVER),
    (E.WAITING, E.ASSIGNED),
    (E.ADMITTED, E.PREFETCHED),
    (E.CLAIMING, E.PREFETCHED),
    (E.PREPARING, E.PREFETCHED),
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
    (C.ASSIGNED, C.WITHDRAWN),
    (C.WITHDRAWN, C.KILLED),
    (C.WITHDRAWN, C.ENDED),
    (C.WITHDRAWN, C.UNSTARTED),
    (C.WITHDRAWN, C.OVER),
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
    (C.RUNNING, C.DELIVERING),
    (C.CANCELING, C.DELIVERING),
    (C.KILLED, C.DELIVERING),
    (C.DELIVERING, C.OVER),
    (C.ENDED, C.OVER),
}


VERSION_STEPS = {
    (V.ABSENT, V.LOADING),
    (V.ABSENT, V.REFUSED),
    (V.LOADING, V.READY),
    (V.LOADING, V.FAILED),
    (V.LOADING, V.ABSENT),
    (V.READY, V.RELOADING),
    (V.READY, V.UNLOADING),
    (V.RELOADING, V.READY),
    (V.FAILED, V.LOADING),
    (V.FAILED, V.REFUSED),
    (V.FAILED, V.UNLOADING),
    (V.REFUSED, V.LOADING),
    (V.REFUSED, V.REFUSED),
    (V.REFUSED, V.ABSENT),
    (V.UNLOADING, V.ABSENT),
    (V.ABSENT, V.RESTING),
    (V.READY, V.RESTING),
    (V.RESTING, V.WAKING),
    (V.RESTING, V.REFUSED),
    (V.RESTING, V.ABSENT),
    (V.WAKING, V.READY),
    (V.WAKING, V.FAILED),
    (V.WAKING, V.RESTING),
}


def test_tables() -> None:
    for table, steps, states in (
        (lifecycle.EXECUTION_STEPS, EXECUTION_STEPS, ExecutionState),
        (lifecycle.CALL_STEPS, CALL_STEPS, CallState),
        (lifecycle.VERSION_STEPS, VERSION_STEPS, VersionState),
    ):
        assert {(current, wanted) for current, found in table.items() for wanted in found} == steps
        assert set(table) == set(states)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(ExecutionState, ExecutionState)))
def test_execution(current: ExecutionState, wanted: ExecutionState) -> None:
    scheduler: Any = types.SimpleNamespace(waiting=0, context=types.SimpleNamespace(max_output_size=0))
    item = ItemInput("id", b"{}")
    execution = Execution(scheduler, Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0), item, ticket=NO_TICKET)
    execution.state = current
    if (current, wanted) in EXECUTION_STEPS:
        execution._step(wanted)
        assert execution.state is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"an execution cannot go from {current} to {wanted}"):
            execution._step(wanted)


@pytest.mark.parametrize("state", ExecutionState)
def test_an_execution_counts_as_waiting_until_it_has_a_slot(state: ExecutionState) -> None:
    """Some methods of each prediction go to their state without `_step`, and come to the same."""
    call: Any = types.SimpleNamespace(on_member_over=lambda: None)
    methods: dict[ExecutionState, Callable[[Execution], None]] = {
        E.ASSIGNED: lambda execution: execution.assign(call, prefetched=False),
        E.PREFETCHED: lambda execution: execution.assign(call, prefetched=True),
        E.RUNNING: lambda execution: execution.begin(1.0),
        E.OVER: lambda execution: execution._finish(CANCELED, 1.0),
    }
    for wanted, method in methods.items():
        counts = []
        by_step: Callable[[Execution], None] = functools.partial(Execution._step, wanted=wanted)
        for step in (method, by_step):
            context = types.SimpleNamespace(run_timeout=None, counts=Counts(), max_output_size=0)
            scheduler: Any = types.SimpleNamespace(waiting=0, context=context, on_over=lambda _: None)
            prediction = Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0)
            execution = Execution(scheduler, prediction, ItemInput("id", b"{}"), ticket=NO_TICKET)
            execution.state = state
            execution._call = call
            if (state, wanted) in EXECUTION_STEPS:
                step(execution)
                assert execution.state is wanted
            else:
                with pytest.raises(IllegalStepError):
                    step(execution)
            counts.append(scheduler.waiting)
        assert counts[0] == counts[1]


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(CallState, CallState)))
def test_call(current: CallState, wanted: CallState) -> None:
    scheduler: Any = types.SimpleNamespace(waiting=0, context=types.SimpleNamespace(max_output_size=0))
    member = Execution(
        scheduler, Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0), ItemInput("id", b"{}"), ticket=NO_TICKET
    )
    call = Call(scheduler, scheduler, members=[member])
    call.state = current
    if (current, wanted) in CALL_STEPS:
        call._step(wanted)
        assert call.state is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"a call cannot go from {current} to {wanted}"):
            call._step(wanted)


WITH_DEPLOYMENT = {V.LOADING, V.READY, V.RELOADING, V.FAILED, V.UNLOADING, V.WAKING}


def deployment_of(record: VersionRecord) -> Deployment:
    return unspawned(HandWorker, record=record)


def version_in(state: VersionState) -> Version:
    """Return a version that has come to a state in the usual way."""
    version = Version(VersionRecord("m", "1"))
    if state is V.REFUSED:
        version.refuse("no class Runner")
    if state in {V.RESTING, V.WAKING}:
        version.rest()
    if state in WITH_DEPLOYMENT:
        version.begin(deployment_of(version.record))
    if state in {V.READY, V.RELOADING, V.UNLOADING}:
        version.finish(version.deployment)
    if state is V.RELOADING:
        version.begin(deployment_of(version.record))
    if state is V.FAILED:
        version.fail("no weights")
    if state is V.UNLOADING:
        version.begin_unload()
    assert version.state is state
    return version


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(VersionState, VersionState)))
def test_version(current: VersionState, wanted: VersionState) -> None:
    version = version_in(current)
    if (current, wanted) in VERSION_STEPS:
        version._step(wanted)
        assert version.state is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"a version of a model cannot go from {current} to {wanted}"):
            version._step(wanted)
        assert version.state is current


@pytest.mark.parametrize("state", VersionState)
def test_what_a_version_says_in_each_state(state: VersionState) -> None:
    version = version_in(state)
    assert version.has_deployment == (state in WITH_DEPLOYMENT)
    assert version.is_loaded == (state in {V.READY, V.RELOADING})
    assert version.is_ready == (state in DORMANT)  # no worker has been started
    if state in WITH_DEPLOYMENT:
        assert version.deployment.version == "1"
        version.deployment.workers.health = Health.READY
    else:
        with pytest.raises(RuntimeError, match=f"version 1 has no deployment: it is {state}"):
            _ = version.deployment
    assert version.is_ready == (version.is_loaded or state in DORMANT)
    expected = {
        V.ABSENT: ("UNAVAILABLE", ""),
        V.LOADING: ("LOADING", ""),
        V.READY: ("READY", ""),
        V.RELOADING: ("READY", ""),
        V.FAILED: ("UNAVAILABLE", "no weights"),
        V.REFUSED: ("UNAVAILABLE", "no class Runner"),
        V.UNLOADING: ("UNLOADING", ""),
        V.RESTING: ("READY", "not loaded; a request loads it"),
        V.WAKING: ("READY", "not loaded; a request loads it"),
    }
    entry = version.entry()
    assert (entry.name, entry.version) == ("m", "1")
    assert (entry.state, entry.reason) == expected[state]


MOVES: dict[str, Callable[[Version], Any]] = {
    "begin": lambda version: version.begin(deployment_of(version.record)),
    "refuse": lambda version: version.refuse("wrong"),
    "finish": lambda version: version.finish(deployment_of(version.record)),
    "fail": lambda version: version.fail("wrong"),
    "begin_unload": lambda version: version.begin_unload(),
    "rest": lambda version: version.rest(),
}
OLD = "the deployment of before"
# What each move returns, and where it leads to; what is not here is a bug of whoever calls it.
EXPECTED: dict[tuple[str, VersionState], tuple[Any, VersionState]] = {
    ("begin", V.ABSENT): ((), V.LOADING),
    ("begin", V.REFUSED): ((), V.LOADING),
    ("begin", V.FAILED): ((OLD,), V.LOADING),
    ("begin", V.READY): ((), V.RELOADING),
    ("begin", V.RESTING): ((), V.WAKING),
    ("refuse", V.ABSENT): ((), V.REFUSED),
    ("refuse", V.REFUSED): ((), V.REFUSED),
    ("refuse", V.FAILED): ((OLD,), V.REFUSED),
    ("refuse", V.READY): ((), V.READY),
    ("refuse", V.RELOADING): ((), V.RELOADING),
    ("refuse", V.RESTING): ((), V.REFUSED),
    ("finish", V.LOADING): ((OLD,), V.READY),
    ("finish", V.RELOADING): ((OLD,), V.READY),
    ("finish", V.WAKING): ((OLD,), V.READY),
    ("fail", V.LOADING): (False, V.FAILED),
    ("fail", V.RELOADING): (True, V.READY),
    ("fail", V.WAKING): (False, V.FAILED),
    ("begin_unload", V.ABSENT): (False, V.ABSENT),
    ("begin_unload", V.REFUSED): (False, V.ABSENT),
    ("begin_unload", V.READY): (True, V.UNLOADING),
    ("begin_unload", V.FAILED): (True, V.UNLOADING),
    ("begin_unload", V.RESTING): (False, V.ABSENT),
    ("rest", V.ABSENT): ((), V.RESTING),
    ("rest", V.READY): ((OLD,), V.RESTING),
}


@pytest.mark.parametrize(("move", "current"), list(itertools.product(MOVES, VersionState)))
def test_every_move_of_a_version_in_every_state(move: str, current: VersionState) -> None:
    version = version_in(current)
    old = (version.deployment,) if current in WITH_DEPLOYMENT else ()
    if (move, current) not in EXPECTED:
        with pytest.raises(RuntimeError):
            MOVES[move](version)
        assert version.state is current
        return
    result = MOVES[move](version)
    returned, state = EXPECTED[move, current]
    assert result == (old if returned == (OLD,) else returned)
    assert version.state is state
    if version.has_deployment and (move, current) in {("fail", V.LOADING), ("fail", V.RELOADING), ("begin", V.READY)}:
        assert (version.deployment,) == old  # which says why, or serves on
    elif version.has_deployment and move in {"begin", "finish"}:
        assert version.deployment not in old


def test_reasons_of_a_version() -> None:
    version = version_in(V.READY)
    version.refuse("no class Runner")
    assert version.reason == "reload failed: no class Runner"
    version.begin(deployment_of(version.record))
    assert version.reason == "reload failed: no class Runner"  # until that one is ready
    version.give_up()
    assert (version.state, version.reason) == (V.READY, "reload failed: no class Runner")
    version.begin(deployment_of(version.record))
    assert version.fail("no weights")
    assert version.reason == "reload failed: no weights"
    new = deployment_of(version.record)
    version.begin(new)
    version.finish(new)
    assert (version.reason, version.deployment) == ("", new)
    assert version.begin_unload()
    version.finish_unload()
    assert (version.state, version.reason) == (V.ABSENT, "unloaded")
    version.begin(deployment_of(version.record))
    assert version.reason == ""
    version.give_up()
    assert (version.state, version.reason) == (V.ABSENT, "unloaded")


def test_load_that_is_given_up_leaves_a_version_at_rest() -> None:
    version = version_in(V.WAKING)
    version.give_up()
    assert (version.state, version.reason) == (V.RESTING, "not loaded; a request loads it")


def test_version_whose_workers_are_gone_is_unavailable_and_says_why() -> None:
    version = version_in(V.READY)
    version.deployment.workers.health = Health.DEFUNCT
    version.deployment.workers.replicas[0].lost = "Worker crashed: gone"
    assert version.entry() == IndexEntry("m", "1", "UNAVAILABLE", "Worker crashed: gone")
    assert version.is_loaded  # a crash shall not change the answers
    assert not version.is_ready
