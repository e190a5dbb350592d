"""A deployment's health from its start to its end, with a worker that has no process."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.state_machine import IllegalStepError
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings
from geartrain.service.readers import completion
from geartrain.service.scheduling.context import Clocks
from geartrain.service.workers import pool
from geartrain.service.workers.pool import ModelSetupError, WorkerPool
from tests.support.deployments import deploy, unspawned
from tests.support.fakes import FakeWorker

Say = Callable[[LogSource, str], None]


class Plain:
    async def run(self, text: str = "") -> str:
        return text


class Failing(Plain):
    def setup(self, say: Say) -> None:
        say("stdout", "loading\n")
        raise RuntimeError("boom in setup")


class Waiting(Plain):
    """Its setup ends when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()

    async def setup(self, say: Say) -> None:
        say("stderr", "waiting\n")
        self.began.set()
        await self.go.wait()


class Checked(Plain):
    """Its healthcheck gives what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.began = asyncio.Event()
        self.verdict: Any = None
        self.runs = 0

    async def healthcheck(self) -> Any:
        self.runs += 1
        self.began.set()
        await self.go.wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def clock() -> Callable[[], float]:
    ticks = count(1000)
    return lambda: float(next(ticks))


def spawned(runner: Any, *, slots: int = 1, setup_timeout: float | None = None, **options: Any) -> Deployment:
    settings = DeploymentSettings(setup_timeout=setup_timeout)
    spawn = functools.partial(FakeWorker, runner, slots=slots)
    return deploy(spawn, settings=settings, **{"clocks": Clocks(clock()), **options})


async def started(runner: Any, *, slots: int = 1) -> tuple[Deployment, FakeWorker]:
    deployment = spawned(runner, slots=slots)
    await deployment.start()
    return deployment, worker_of(deployment)


def worker_of(deployment: Deployment) -> FakeWorker:
    worker = deployment.workers.replicas[0].worker
    assert isinstance(worker, FakeWorker)
    return worker


def inputs(deployment: Deployment) -> list[str]:
    return [field.name for field in deployment.interface.signature.inputs]


def refusal(deployment: Deployment) -> GeartrainError:
    """Why no prediction can be made."""
    with pytest.raises(GeartrainError) as caught:
        deployment.create(NewPrediction())
    assert caught.value.code is Code.NOT_READY
    with pytest.raises(GeartrainError, match=re.escape(caught.value.message)):
        deployment.workers.check_ready()
    return caught.value


# setup


async def test_before_a_worker_is_there() -> None:
    deployment = unspawned(functools.partial(FakeWorker, Plain()))
    assert (await deployment.report()).health is Health.UNKNOWN
    assert "not begun" in refusal(deployment).message
    for attribute in ("interface", "admission", "slots"):
        with pytest.raises(GeartrainError, match="not begun") as caught:
            getattr(deployment, attribute)
        assert caught.value.code is Code.NOT_READY
    replica = deployment.workers.replicas[0]
    for attribute in ("worker", "info"):
        with pytest.raises(RuntimeError):
            getattr(replica, attribute)
    assert (deployment.workers.permits.size, deployment.workers.permits.acquire()) == (0, None)
    await deployment.close(0)


async def test_setup_that_succeeds() -> None:
    runner, heard = Waiting(), list[str]()
    deployment = spawned(runner, slots=3, setup_timeout=60, on_setup_output=heard.append)
    starting = asyncio.ensure_future(deployment.start())
    await runner.began.wait()
    report = await deployment.report()
    assert (report.health, report.setup.logs, report.setup.completed_at) == (Health.STARTING, "waiting\n", None)
    assert "not finished yet" in refusal(deployment).message
    runner.go.set()
    await starting
    report = await deployment.report()
    assert report.health is Health.READY
    assert (report.setup.started_at, report.setup.completed_at, report.setup.failed) == (1000, 1001, False)
    assert heard == ["waiting\n"]
    assert deployment.workers.permits.size == 3
    assert inputs(deployment) == ["text"]
    assert not deployment.interface.validator.check(b'{"text":"x"}')


class Heard:
    """Hears workers, and keeps it in order."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def on_loaded(self, info: WorkerInfo) -> None:
        self.steps.append([field.name for field in info.signature.inputs])

    def on_health(self, health: Health) -> None:
        self.steps.append(health)

    def on_setup_output(self, text: str) -> None:
        self.steps.append(text)

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)


async def test_observer_hears_what_concerns_all_workers_in_order() -> None:
    runner, heard = Waiting(), Heard()
    workers = WorkerPool(lambda _index, observer: FakeWorker(runner, observer), heard)
    assert heard.steps == []
    workers.spawn()
    runner.go.set()
    await workers.start()
    # Once more when it is ready: a worker that follows another one may differ.
    assert heard.steps == [Health.STARTING, ["text"], "waiting\n", ["text"], Health.READY]
    heard.steps.clear()
    workers.replicas[0].on_lost("gone")
    assert heard.steps == [Health.DEFUNCT]


async def test_no_worker_is_left_when_one_of_several_cannot_be_spawned() -> None:
    made: list[FakeWorker] = []

    class Dying(FakeWorker):
        killed = ""

        def kill(self, reason: str) -> None:
            self.killed = reason

    def spawn(observer: Any) -> FakeWorker:
        if len(made) == 2:
            raise OSError(11, "Resource temporarily unavailable")
        made.append(Dying(Plain(), observer))
        return made[-1]

    with pytest.raises(OSError, match="temporarily unavailable"):
        deploy(spawn, settings=DeploymentSettings(replicas=3))
    assert [vars(worker).get("killed") for worker in made] == ["another replica could not be started"] * 2


async def test_signature_is_known_while_setup_runs_and_after_it_has_failed() -> None:
    runner = Waiting()
    deployment = spawned(runner, slots=3)
    starting = asyncio.ensure_future(deployment.start())
    await deployment.loaded.wait()
    workers = deployment.workers
    assert (workers.health, deployment.slots, workers.permits.size) == (Health.STARTING, 3, 0)
    assert inputs(deployment) == ["text"]
    assert [spec.name for spec in deployment.interface.view.inputs] == ["text"]
    assert deployment.interface.validator.check(b'{"nope":1}')
    with pytest.raises(GeartrainError) as caught:
        deployment.admission.check(NewPrediction(b'{"nope":1}'))
    assert caught.value.code is Code.INVALID_INPUT
    with pytest.raises(GeartrainError):
        workers.check_ready()
    runner.go.set()
    await starting
    assert (deployment.slots, workers.permits.size) == (3, 3)

    failed = spawned(Failing())
    with pytest.raises(ModelSetupError):
        await failed.start()
    assert failed.loaded.is_set()
    assert inputs(failed) == ["text"]
    assert failed.slots == 1


async def test_setup_that_raises() -> None:
    deployment = spawned(Failing())
    with pytest.raises(ModelSetupError) as caught:
        await deployment.start()
    assert caught.value.reason == "setup() failed: RuntimeError: boom in setup"
    assert caught.value.logs == "loading\n"
    report = await deployment.report()
    assert (report.health, report.setup.failed, report.setup.completed_at) == (Health.SETUP_FAILED, True, 1001)
    assert report.setup.logs == "loading\nsetup() failed: RuntimeError: boom in setup\n"  # D13: both are there
    assert "Setup has failed" in refusal(deployment).message
    with pytest.raises(IllegalStepError):
        await deployment.start()


async def test_setup_that_takes_too_long() -> None:
    deployment = spawned(Waiting(), setup_timeout=0.01)
    with pytest.raises(ModelSetupError, match=r"worker setup timed out after 0\.01 seconds"):
        await deployment.start()
    assert worker_of(deployment).is_stopped
    report = await deployment.report()
    assert report.health is Health.SETUP_FAILED
    assert report.setup.logs == "waiting\nworker setup timed out after 0.01 seconds\n"


async def test_setup_that_is_given_up_is_no_failure() -> None:
    """The server stops while setup is running."""
    runner = Waiting()
    deployment = spawned(runner)
    starting = asyncio.ensure_future(deployment.start())
    await runner.began.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert deployment.workers.health is Health.STARTING
    await deployment.close(0)
    assert worker_of(deployment).is_stopped


# after setup


async def test_busy_while_every_slot_is_in_use() -> None:
    deployment, _ = await started(Plain(), slots=2)
    first, second = deployment.workers.permits.acquire(), deployment.workers.permits.acquire()
    assert first is not None
    assert second is not None
    assert (await deployment.report()).health is Health.BUSY
    deployment.workers.permits.release(first)
    assert (await deployment.report()).health is Health.READY
    assert deployment.workers.health is Health.READY


async def test_lost_worker_is_the_end() -> None:
    deployment, worker = await started(Checked())
    worker.die("killed by SIGKILL")
    report = await deployment.report()
    assert (report.health, report.defunct_reason) == (Health.DEFUNCT, "Worker crashed: killed by SIGKILL")
    assert report.setup.completed_at is not None
    assert "worker is gone" in refusal(deployment).message
    assert deployment.interface.signature.inputs  # what it takes is still known
    with pytest.raises(IllegalStepError):
        deployment.workers.replicas[0].on_lost("again")


# the author's healthcheck; observed Cog, section 4


@pytest.mark.parametrize("verdict", [True, None, 0, "x", [], 1.5])
async def test_healthy(verdict: object) -> None:
    runner = Checked()
    deployment, _ = await started(runner)
    runner.verdict = verdict
    report = await deployment.report()
    assert (report.health, report.healthcheck_error, runner.runs) == (Health.READY, None, 1)


@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        (False, "Healthcheck failed: user-defined healthcheck returned False"),
        (RuntimeError("hc boom"), "Healthcheck failed: RuntimeError: hc boom"),
    ],
)
async def test_unhealthy(verdict: object, error: str) -> None:
    runner = Checked()
    deployment, worker = await started(runner)
    runner.verdict = verdict
    report = await deployment.report()
    assert (report.health, report.healthcheck_error) == (Health.UNHEALTHY, error)
    assert (deployment.workers.health, worker.is_stopped) == (Health.READY, False)
    prediction = deployment.create(NewPrediction(b'{"text":"x"}'))  # predictions are still accepted
    await completion(prediction)
    assert prediction.output == b'"x"'
    runner.verdict = True
    assert (await deployment.report()).health is Health.READY


async def test_unhealthy_comes_before_busy() -> None:
    runner = Checked()
    deployment, _ = await started(runner)
    runner.verdict = False
    assert deployment.workers.permits.acquire() is not None
    assert (await deployment.report()).health is Health.UNHEALTHY


async def test_requests_at_once_share_one_run() -> None:
    runner = Checked()
    deployment, _ = await started(runner)
    runner.go.clear()
    asking = [asyncio.ensure_future(deployment.report()) for _ in range(20)]
    await runner.began.wait()
    asking.append(asyncio.ensure_future(deployment.report()))
    runner.verdict = False
    runner.go.set()
    assert {(await report).health for report in asking} == {Health.UNHEALTHY}
    assert runner.runs == 1
    await deployment.report()
    assert runner.runs == 2


async def test_client_that_leaves_takes_nobodys_answer_away() -> None:
    runner = Checked()
    deployment, _ = await started(runner)
    runner.go.clear()
    leaving, staying = (asyncio.ensure_future(deployment.report()) for _ in range(2))
    await runner.began.wait()
    leaving.cancel()
    runner.go.set()
    assert (await staying).health is Health.READY


async def test_check_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "HEALTHCHECK_TIMEOUT", 0.01)
    runner = Checked()
    deployment, _ = await started(runner)
    runner.go.clear()
    error = "Healthcheck failed: user-defined healthcheck timed out after 0.01 seconds"
    reports = [await deployment.report() for _ in range(3)]
    assert [(report.health, report.healthcheck_error) for report in reports] == [(Health.UNHEALTHY, error)] * 3
    assert runner.runs == 1  # while it hangs there is no second
    runner.go.set()
    monkeypatch.undo()
    while (await deployment.report()).health is not Health.READY:
        pass
    assert (await deployment.report()).health is Health.READY
    assert runner.runs > 1


async def test_worker_lost_during_a_check() -> None:
    runner = Checked()
    deployment, worker = await started(runner)
    runner.go.clear()
    asking = asyncio.ensure_future(deployment.report())
    await runner.began.wait()
    worker.die("gone")
    assert (await asking).health is Health.DEFUNCT


async def test_worker_lost_before_the_check_begins() -> None:
    """`GET /health-check` answers whatever happens."""
    deployment, worker = await started(Checked())
    asking = asyncio.ensure_future(deployment.report())
    await asyncio.sleep(0)  # it has asked, and nobody has begun to answer
    worker.die("gone")
    assert (await asking).health is Health.DEFUNCT


async def test_no_check_while_the_model_is_not_ready() -> None:
    class Both(Checked, Failing):
        pass

    runner = Both()
    deployment = spawned(runner)
    with pytest.raises(ModelSetupError):
        await deployment.start()
    assert (await deployment.report()).healthcheck_error is None
    assert runner.runs == 0


async def test_stop_ends_the_worker() -> None:
    deployment, worker = await started(Plain())
    await deployment.close(1)
    assert worker.is_stopped
    assert deployment.workers.health is Health.READY  # it was told to go: nothing is wrong with it
