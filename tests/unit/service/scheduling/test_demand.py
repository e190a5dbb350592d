"""When a run is taken for the only one: only then its end is awaited on the spot."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.calls import (
    CallInput,
    CallListener,
    HealthVerdict,
    ItemEnd,
    Succeeded,
    WorkerInfo,
)
from geartrain.domain.signature.types import OutputSpec, Signature, TypeSpec
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.scheduling.call import Demand
from tests.support.deployments import deploy


def test_some_runs_are_not_awaited_so_that_others_are_seen() -> None:
    demand = Demand()
    likely = []
    for _ in range(20):
        likely.append(demand.is_single)
        demand.end_call(alone=True)
    assert likely == [number > 2 and number % 8 != 0 for number in range(20)]


def test_others_that_were_seen_once_are_expected_for_long() -> None:
    demand = Demand()
    for _ in range(10):
        demand.end_call(alone=True)
    demand.end_call(alone=False)
    runs = 0
    while not demand.is_single:
        demand.end_call(alone=True)
        runs += 1
    assert runs > 60
    demand.end_call(alone=False)
    assert not demand.is_single


class Worker:
    """Keeps its call until the test ends it."""

    def __init__(self) -> None:
        self.calls: list[tuple[CallInput, CallListener]] = []

    async def start(self) -> WorkerInfo:
        return WorkerInfo(Signature((), OutputSpec(TypeSpec("string"))), 1, is_async=False, has_healthcheck=False)

    is_debugged = False

    @property
    def may_prefetch(self) -> bool:
        return False

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        listener.on_begin()
        self.calls.append((call, listener))

    def end(self) -> bool:
        """End its call; return whether it was taken for the only one."""
        call, listener = self.calls.pop()
        listener.on_end((ItemEnd(0, Succeeded(b'"a"', 0.1)),), idle=True)
        return call.single_client

    def cancel(self, slot: int, call_id: str) -> None:
        raise NotImplementedError

    def discard(self, files: object) -> None:
        raise NotImplementedError

    pids = ()

    def kill(self, reason: str) -> None:
        raise NotImplementedError

    async def healthcheck(self) -> HealthVerdict:
        raise NotImplementedError

    async def stop(self, grace: float) -> None:
        raise NotImplementedError


def _ask_alone(deployment: Deployment, worker: Worker) -> None:
    """Ask so often, one after the other, that the next one is taken for a single client's."""
    likely = []
    for _ in range(4):
        deployment.create(NewPrediction())
        likely.append(worker.end())
    assert likely == [False, False, False, True]


async def _served(queue: int) -> tuple[Deployment, Worker]:
    worker = Worker()
    deployment = deploy(lambda _observer: worker, settings=DeploymentSettings(limits=Limits(queue=queue)))
    await deployment.start()
    _ask_alone(deployment, worker)
    return deployment, worker


async def test_one_that_waits_is_somebody_else() -> None:
    deployment, worker = await _served(queue=1)
    deployment.create(NewPrediction())
    deployment.create(NewPrediction())
    assert worker.end()
    assert not worker.end()
    deployment.create(NewPrediction())
    assert not worker.end()


async def test_one_that_is_refused_is_somebody_else() -> None:
    deployment, worker = await _served(queue=0)
    deployment.create(NewPrediction())
    with pytest.raises(GeartrainError):
        deployment.create(NewPrediction())
    worker.end()
    deployment.create(NewPrediction())
    assert not worker.end()
