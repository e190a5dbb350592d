"""The warm-up of workers, none of which has a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from geartrain.authoring.decorators import batched
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.deployment import Deployment, DeploymentSettings
from geartrain.service.ports import WorkerPort
from geartrain.service.workers.pool import ModelSetupError, RestartPolicy
from geartrain.service.workers.warmup import Examples
from tests.support.deployments import close, deploy
from tests.support.fakes import FakeWorker


class Runner:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.is_set_up = False
        self.say: Any = None

    def setup(self, _say: Any) -> None:
        self.is_set_up = True

    async def run(self, text: str) -> str:
        self.seen.append(text)
        if text == "wrong":
            raise ValueError("not this one")
        self.say(f"ran {text}\n", "stdout")
        return text


class Batched(Runner):
    @batched
    async def run(self, text: list[str]) -> list[str]:  # type: ignore[override]
        self.seen.append(text)
        return text


class Team:
    """A deployment of fakes, which spawns a worker for each of the runners in turn."""

    def __init__(self, *runners: Runner, inputs: tuple[bytes, ...], replicas: int = 1, restarts: bool = False) -> None:
        self.runners = runners
        self.workers: list[FakeWorker] = []
        settings = DeploymentSettings(
            replicas=replicas,
            examples=Examples(inputs),
            restarts=RestartPolicy(first_delay=0.0) if restarts else None,
        )
        self.deployment = deploy(self._spawn, settings=settings)

    def _spawn(self, observer: WorkerObserver) -> WorkerPort:
        self.workers.append(FakeWorker(self.runners[len(self.workers)], observer))
        return self.workers[-1]

    @property
    def counted(self) -> int:
        """The predictions that the statistics know of."""
        statistics = self.deployment.scheduler.context.counts.statistics("m", "1")
        return statistics.execution_count + statistics.inference_count

    async def failure(self) -> ModelSetupError:
        """Start, and return why that fails."""
        with pytest.raises(ModelSetupError) as caught:
            await asyncio.wait_for(self.deployment.start(), 40)
        return caught.value


@pytest.fixture
async def closing() -> AsyncIterator[list[Deployment]]:
    """Deployments that are ended after the test."""
    deployments: list[Deployment] = []
    yield deployments
    for deployment in deployments:
        await close(deployment)


async def test_each_replica_runs_the_examples_before_it_is_ready(closing: list[Deployment]) -> None:
    first, second = Runner(), Runner()
    team = Team(first, second, inputs=(b'{"text":"a"}', b'{"text":"b"}'), replicas=2)
    closing.append(team.deployment)
    await asyncio.wait_for(team.deployment.start(), 40)
    assert first.seen == second.seen == ["a", "b"]
    assert team.deployment.workers.health is Health.READY
    assert team.deployment.workers.setup.logs.count("ran a") == 2
    assert team.counted == 0


async def test_a_worker_that_follows_a_crashed_one_is_warmed_up_too(closing: list[Deployment]) -> None:
    first, second = Runner(), Runner()
    team = Team(first, second, inputs=(b'{"text":"a"}',), restarts=True)
    closing.append(team.deployment)
    await asyncio.wait_for(team.deployment.start(), 40)
    team.workers[0].kill("boom")
    async with asyncio.timeout(40):
        while team.deployment.workers.health is not Health.READY or len(team.workers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert second.seen == ["a"]


async def test_batched_models_are_warmed_up(closing: list[Deployment]) -> None:
    runner = Batched()
    team = Team(runner, inputs=(b'{"text":"a"}',))
    closing.append(team.deployment)
    await asyncio.wait_for(team.deployment.start(), 40)
    assert runner.seen == [["a"]]


async def test_an_example_that_fails_is_a_setup_that_failed() -> None:
    team = Team(Runner(), inputs=(b'{"text":"a"}', b'{"text":"wrong"}'))
    failure = await team.failure()
    assert failure.reason == "`warmup[1]` in geartrain.yaml could not be run: ValueError: not this one"
    assert "ran a" in failure.logs
    assert team.deployment.workers.health is Health.SETUP_FAILED
    assert team.workers[0].is_stopped


async def test_an_example_that_does_not_fit_is_found_before_setup() -> None:
    runner = Runner()
    team = Team(runner, inputs=(b'{"txt":"a"}',))
    failure = await team.failure()
    assert "`warmup[0]` in geartrain.yaml does not fit the model" in failure.reason
    assert "text" in failure.reason
    assert not runner.seen
