"""A model with several equal workers, none of which has a process; and who waits for one of their slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.predictions.inference import InferRequest, SchedulePolicy
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models import inference
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits, VersionRecord
from geartrain.service.readers import completion
from geartrain.service.scheduling.context import Clocks
from geartrain.service.scheduling.pending import DEFAULT_QUEUE
from geartrain.service.workers.pool import ModelSetupError, RestartPolicy
from tests.support.deployments import deploy
from tests.support.fakes import FakeWorker


class Runner:
    """Runs until its gate is open, and counts what runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.running = 0
        self.verdict = True

    async def run(self, text: str = "") -> str:
        self.running += 1
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return self.name

    async def healthcheck(self) -> bool:
        return self.verdict


class Broken(Runner):
    def setup(self, _say: Any) -> None:
        raise RuntimeError("no memory")


class Team:
    """A deployment with a worker for each runner; later ones follow those that have died."""

    def __init__(
        self,
        *runners: Runner,
        later: Sequence[Runner] = (),
        slots: int = 1,
        restarts: RestartPolicy | None = None,
        inference_queue: int = DEFAULT_QUEUE,
    ) -> None:
        self.runners = runners
        self.workers: list[FakeWorker] = []  # in the order of their replicas, then of their restarts
        self.record = VersionRecord("m", "1")
        self._rest = [*runners, *later]
        self._slots = slots
        settings = DeploymentSettings(
            replicas=len(runners), restarts=restarts, limits=Limits(queue=10), inference_queue=inference_queue
        )
        self.deployment = deploy(self._spawn, record=self.record, settings=settings)

    def _spawn(self, observer: WorkerObserver) -> FakeWorker:
        self.workers.append(FakeWorker(self._rest.pop(0), observer, slots=self._slots))
        return self.workers[-1]

    async def start(self) -> Team:
        await self.deployment.start()
        return self

    def ask(self) -> Prediction:
        return self.deployment.create(NewPrediction())

    def open(self) -> None:
        for runner in self.runners:
            runner.gate.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)


async def test_work_is_spread_over_the_replicas() -> None:
    team = await Team(Runner("a"), Runner("b"), slots=2).start()
    predictions = [team.ask() for _ in range(5)]
    await until(lambda: [runner.running for runner in team.runners] == [2, 2])
    assert team.deployment.workers.permits.size == 4
    assert (await team.deployment.report()).health is Health.BUSY
    team.open()
    for prediction in predictions:
        await completion(prediction)
    assert {prediction.output for prediction in predictions} == {b'"a"', b'"b"'}
    assert team.deployment.workers.permits.idle == 4


async def test_a_replica_that_dies_fails_only_its_own() -> None:
    team = await Team(Runner("a"), Runner("b")).start()
    first, second, waiting = team.ask(), team.ask(), team.ask()
    await until(lambda: all(runner.running for runner in team.runners))
    team.workers[0].die("killed by SIGKILL")
    await completion(first)
    assert (first.status, first.error) == ("failed", "Worker crashed: killed by SIGKILL")
    assert team.deployment.workers.health is Health.READY
    assert team.deployment.workers.permits.size == 1
    team.open()
    for prediction in (second, waiting):
        await completion(prediction)
        assert prediction.output == b'"b"'
    report = await team.deployment.report()
    assert report.health is Health.READY
    assert [(each.status, each.reason) for each in report.replicas] == [
        (Health.DEFUNCT, "Worker crashed: killed by SIGKILL"),
        (Health.READY, None),
    ]


async def test_with_the_last_replica_the_model_is_gone() -> None:
    team = await Team(Runner("a"), Runner("b")).start()
    for _ in range(2):
        team.ask()
    waiting = team.ask()
    for worker in team.workers:
        worker.die("gone")
    assert waiting.status == "failed"
    report = await team.deployment.report()
    assert (report.health, report.defunct_reason) == (Health.DEFUNCT, "Worker crashed: gone")
    with pytest.raises(GeartrainError):
        team.ask()


async def test_single_replicas_are_restarted() -> None:
    new = Runner("c")
    new.gate.set()
    team = await Team(Runner("a"), Runner("b"), later=[new], restarts=RestartPolicy(first_delay=0)).start()
    team.workers[0].die("gone")
    await until(lambda: team.deployment.workers.permits.size == 2)
    restarts = team.deployment.workers.restarts
    assert (restarts.count, restarts.last_reason) == (1, "Worker crashed: gone")
    assert (await team.deployment.report()).restarts == restarts
    busy = team.ask()  # of equals, any
    other = team.ask()
    team.open()
    await completion(busy)
    await completion(other)
    assert {busy.output, other.output} == {b'"b"', b'"c"'}


class Other(Runner):
    """Takes something else, and is set up when it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def setup(self, _say: Any) -> None:
        self.begun.set()
        await self.go.wait()

    async def run(self, number: int = 1) -> str:  # type: ignore[override]
        return f"{self.name}{number}"


def inputs(deployment: Deployment) -> list[str]:
    return [field.name for field in deployment.interface.signature.inputs]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_restarted_worker_changes_the_signature_when_it_is_ready(replicas: int) -> None:
    other = Other("c")
    other.gate.set()
    runners = [Runner(name) for name in "ab"[:replicas]]
    team = await Team(*runners, later=[other], restarts=RestartPolicy(first_delay=0)).start()
    deployment = team.deployment
    replica, before = deployment.workers.replicas[0], deployment.interface
    team.workers[0].die("gone")
    await other.begun.wait()
    assert deployment.interface is before
    assert inputs(deployment) == ["text"]
    other.go.set()
    await until(lambda: replica.health is Health.READY)
    assert inputs(deployment) == ["number"]
    assert [spec.name for spec in deployment.interface.view.inputs] == ["number"]
    assert [field.name for field in before.signature.inputs] == ["text"]
    with pytest.raises(GeartrainError) as caught:
        deployment.create(NewPrediction(b'{"text":"x"}'))
    assert (caught.value.code, caught.value.fields[0].loc) == (Code.INVALID_INPUT, ("body", "input", "text"))
    if replicas == 1:  # of several, the other one takes what it took before
        prediction = deployment.create(NewPrediction(b'{"number":7}'))
        await completion(prediction)
        assert prediction.output == b'"c7"'


async def test_restarted_worker_that_says_the_same_changes_nothing() -> None:
    again = Runner("b")
    again.gate.set()
    team = await Team(Runner("a"), later=[again], restarts=RestartPolicy(first_delay=0)).start()
    before, admission = team.deployment.interface, team.deployment.admission
    team.workers[0].die("gone")
    await until(lambda: team.deployment.workers.health is Health.READY)
    assert len(team.workers) == 2
    assert team.deployment.interface is before
    assert team.deployment.admission is admission
    prediction = team.ask()
    await completion(prediction)
    assert prediction.output == b'"b"'


async def test_first_replica_that_is_loaded_tells_the_signature() -> None:
    first, second = Other("a"), Other("b")
    team = Team(first, second, slots=2)
    starting = asyncio.ensure_future(team.start())
    deployment = team.deployment
    await deployment.loaded.wait()
    assert (inputs(deployment), deployment.slots, deployment.workers.permits.size) == (["number"], 4, 0)
    with pytest.raises(GeartrainError) as caught:
        deployment.create(NewPrediction(b'{"nope":1}'))
    assert caught.value.code is Code.NOT_READY
    second.go.set()
    first.go.set()
    await starting
    assert deployment.workers.permits.size == 4


class SettingUp(Runner):
    """Its setup goes on until the test ends the worker, or lets it go on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def setup(self, _say: Any) -> None:
        self.began.set()
        await self.go.wait()


class Restarted:
    """A deployment of one replica that is READY, and the workers that follow each other in it."""

    def __init__(self, *runners: Runner, policy: RestartPolicy, setup_timeout: float | None = None) -> None:
        self.now = 0.0
        self.workers: list[FakeWorker] = []  # all but the first
        self._runners = list(runners)
        self.deployment = deploy(
            self._spawn,
            settings=DeploymentSettings(restarts=policy, setup_timeout=setup_timeout),
            clocks=Clocks(lambda: self.now),
        )

    def _spawn(self, observer: WorkerObserver) -> FakeWorker:
        if not hasattr(self, "first"):
            self.first = FakeWorker(Runner("a"), observer)
            return self.first
        if not self._runners:
            raise OSError(11, "Resource temporarily unavailable")
        self.workers.append(FakeWorker(self._runners.pop(0), observer))
        return self.workers[-1]

    async def crash(self) -> None:
        await self.deployment.start()
        self.first.die("killed by SIGKILL")


async def test_a9_a_death_during_a_restart_is_one_more_crash() -> None:
    dying, well = SettingUp("b"), Runner("c")
    restarted = Restarted(dying, well, policy=RestartPolicy(limit=3, first_delay=0))
    await restarted.crash()
    await dying.began.wait()
    restarted.workers[0].die("killed while starting")
    await until(lambda: restarted.deployment.workers.restarts.count == 2)
    report = await restarted.deployment.report()
    assert (report.health, report.defunct_reason) == (Health.STARTING, "Worker crashed: killed while starting")
    assert restarted.deployment.workers.restarts.last_reason == "Worker crashed: killed while starting"
    await until(lambda: restarted.deployment.workers.health is Health.READY)
    assert restarted.workers[0].is_stopped  # nothing of it is left
    assert restarted.deployment.workers.replicas[0].worker is restarted.workers[1]
    await restarted.deployment.close(0)


async def test_a9_deaths_during_restarts_reach_the_limit() -> None:
    dying = [SettingUp(str(number)) for number in range(3)]
    restarted = Restarted(*dying, policy=RestartPolicy(limit=3, first_delay=0))
    await restarted.crash()
    for number, runner in enumerate(dying):
        await runner.began.wait()
        restarted.workers[number].die(f"death {number}")
    await until(lambda: restarted.deployment.workers.health is Health.DEFUNCT)
    report = await restarted.deployment.report()
    assert report.defunct_reason == "Worker crashed: death 2; no further restart: the limit of restarts in a row is 3"
    assert restarted.deployment.workers.restarts.count == len(restarted.workers) == 3


async def test_a9_a_setup_that_fails_or_hangs_in_a_restart_is_one_more_crash() -> None:
    hanging, well = SettingUp("c"), Runner("d")
    restarted = Restarted(Broken("b"), hanging, well, policy=RestartPolicy(limit=3, first_delay=0), setup_timeout=0.01)
    await restarted.crash()
    await until(lambda: len(restarted.workers) == 2)
    report = await restarted.deployment.report()
    assert (report.health, report.defunct_reason) == (Health.STARTING, "setup() failed: RuntimeError: no memory")
    await until(lambda: restarted.deployment.workers.health is Health.READY)
    assert restarted.deployment.workers.restarts.last_reason == "worker setup timed out after 0.01 seconds"
    assert [worker.is_stopped for worker in restarted.workers] == [True, True, False]


async def test_a9_a_process_that_cannot_be_had_is_one_more_crash() -> None:
    restarted = Restarted(policy=RestartPolicy(limit=2, first_delay=0))
    await restarted.crash()
    await until(lambda: restarted.deployment.workers.health is Health.DEFUNCT)
    report = await restarted.deployment.report()
    assert report.setup.failed
    assert (report.defunct_reason or "").startswith("no worker can be started: Resource temporarily unavailable; no ")


async def test_a9_slow_deaths_during_restarts_begin_no_new_row() -> None:
    dying = [SettingUp(str(number)) for number in range(2)]
    restarted = Restarted(*dying, policy=RestartPolicy(limit=2, first_delay=0, good_for=60))
    await restarted.crash()
    for number, runner in enumerate(dying):
        await runner.began.wait()
        restarted.now += 3600  # of setup, which is no time that it has served
        restarted.workers[number].die("gone")
    await until(lambda: restarted.deployment.workers.health is Health.DEFUNCT)


async def test_a9_stopping_during_a_restart_starts_no_other_worker() -> None:
    dying = SettingUp("b")
    restarted = Restarted(dying, Runner("c"), policy=RestartPolicy(first_delay=0))
    await restarted.crash()
    await dying.began.wait()
    await restarted.deployment.close(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(restarted.workers) == 1
    assert restarted.workers[0].is_stopped


async def test_one_replica_is_enough_to_be_ready() -> None:
    team = Team(Broken("a"), Runner("b"))
    await team.start()
    report = await team.deployment.report()
    assert report.health is Health.READY
    assert [each.status for each in report.replicas] == [Health.SETUP_FAILED, Health.READY]
    assert report.replicas[0].reason == "setup() failed: RuntimeError: no memory"


async def test_when_all_fail_the_model_has_failed() -> None:
    team = Team(Broken("a"), Broken("b"))
    with pytest.raises(ModelSetupError, match="no memory"):
        await team.start()
    report = await team.deployment.report()
    assert (report.health, report.setup.failed) == (Health.SETUP_FAILED, True)
    assert report.setup.logs.count("no memory") == 2


async def test_one_sick_replica_makes_the_model_unhealthy() -> None:
    team = await Team(Runner("a"), Runner("b")).start()
    assert (await team.deployment.report()).health is Health.READY
    team.runners[1].verdict = False
    report = await team.deployment.report()
    assert report.health is Health.UNHEALTHY
    assert report.healthcheck_error == "Healthcheck failed: user-defined healthcheck returned False"


# the queue of the Open Inference Protocol


def infer(deployment: Deployment, timeout: float | None = None) -> Prediction:
    return inference.create_from_json(deployment, b"{}", InferRequest((), schedule=SchedulePolicy(timeout)))


async def test_beyond_the_queue_a_request_is_refused() -> None:
    team = await Team(Runner("a"), inference_queue=2).start()
    predictions = [infer(team.deployment) for _ in range(3)]
    with pytest.raises(GeartrainError) as caught:
        infer(team.deployment)
    assert (caught.value.code, caught.value.message) == (Code.QUEUE_FULL, "Exceeds maximum queue size")
    team.open()
    for prediction in predictions:
        await completion(prediction)
        assert prediction.status == "succeeded"
    assert team.record.counts.faults["REJECTED"] == 1
    team.record.counts.settle()
    assert team.record.counts.successes == 3


async def test_t16_a_timeout_is_honoured_at_once() -> None:
    team = await Team(Runner("a")).start()
    deployment = team.deployment
    running = infer(deployment)
    waiting = infer(deployment, timeout=0.01)
    patient = infer(deployment, timeout=30)
    async with asyncio.timeout(40):
        await completion(waiting)
    assert (waiting.status, waiting.error_code, waiting.error) == (
        "failed",
        Code.TIMED_OUT,
        "timed out after 0.01 s",
    )
    assert running.status == "processing"
    team.open()
    for prediction in (running, patient):
        await completion(prediction)
        assert prediction.status == "succeeded"
    counts = team.record.counts
    assert (counts.faults["REJECTED"], counts.runs) == (1, 2)
    statistics = counts.statistics("m", "1")
    assert statistics.fail.count == 1
    assert statistics.queue.ns > 0
