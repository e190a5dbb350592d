"""The wiring: what is told of a start, and how an app without a listener ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import geartrain.server.repository
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.project.source import ModelSource
from geartrain.server import App, Progress, ServeOptions, build, log_progress
from geartrain.server.workers import Placement
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.workers.pool import ModelSetupError
from tests.support.fakes import FakeWorker

SOURCE = ModelSource(name="pets", root=Path("/models/pets"), runner="run.py:Runner")


def test_step_is_one_record_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "geartrain.server")
    log_progress(Progress(stage="ready", model="pets", slots=2))
    log_progress(Progress(stage="setup-failed", model="pets", text="boom"))
    ready, failed = caplog.records
    assert (ready.message, ready.levelname, vars(ready)["slots"], vars(ready)["model"]) == ("ready", "INFO", 2, "pets")
    assert (failed.message, failed.levelname, vars(failed)["text"]) == ("setup-failed", "ERROR", "boom")
    assert "url" not in vars(ready)


class Stopped(FakeWorker):
    """Remembers how long it was given to end."""

    grace: float | None = None

    async def stop(self, grace: float) -> None:
        self.grace = grace
        await super().stop(grace)


class Runner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def run(self, name: str) -> str:
        await self.gate.wait()
        return name


class TalkingRunner(Runner):
    def setup(self, say: Any) -> None:
        say("stdout", "loading\n")


class BrokenRunner(Runner):
    def setup(self, say: Any) -> None:
        say("stdout", "loading\n")
        raise RuntimeError("boom")


class Bench:
    """An app of one model, whose worker has no process."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.workers: list[Stopped] = []
        self.progress: list[Progress] = []
        self.app: App = build(ServeOptions(source=SOURCE, on_progress=self.progress.append))

    def launch(
        self, source: ModelSource, observer: Any, *, wakeup: str, placement: Placement, debugging: object
    ) -> Stopped:
        assert (source, wakeup) == (SOURCE, "adaptive")
        self.workers.append(Stopped(self.runner, observer))
        return self.workers[-1]

    @property
    def stages(self) -> list[tuple[str, str, str]]:
        """What has been told, and of which version."""
        return [(step.stage, step.version, step.text) for step in self.progress]


@pytest.fixture
async def benches(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Runner], Bench]]:
    made: list[Bench] = []

    def make(runner: Runner) -> Bench:
        made.append(Bench(runner))
        monkeypatch.setattr(geartrain.server.repository, "launch", made[-1].launch)
        return made[-1]

    yield make
    for bench in made:
        await bench.app.stop()
        assert all(worker.is_stopped for worker in bench.workers)


Make = Callable[[Runner], Bench]


@pytest.mark.parametrize(("runner", "grace"), [(Runner, 1.0), (BrokenRunner, 0)])
async def test_only_a_worker_that_was_ready_is_given_time_to_end(
    runner: type[Runner], grace: float, benches: Make
) -> None:
    bench = benches(runner())
    bench.app.spawn()
    await bench.app.start()
    try:
        deployment = await bench.app.ready()
        assert (deployment.name, deployment.version) == ("pets", "1")
    except ModelSetupError:
        assert grace == 0
    await bench.app.stop()
    assert [worker.grace for worker in bench.workers] == [grace]


async def test_nothing_is_started_before_it_is_told_to(benches: Make) -> None:
    bench = benches(TalkingRunner())
    assert (bench.workers, bench.app.catalogue.names()) == ([], [])
    bench.app.spawn()
    assert len(bench.workers) == 1
    await asyncio.sleep(0)
    assert bench.progress == []
    assert bench.app.catalogue.find("pets").workers.health is Health.UNKNOWN
    await bench.app.start()
    await bench.app.ready()
    assert bench.stages == [("setup-output", "", "loading\n"), ("ready", "", "")]


async def test_model_that_cannot_be_set_up_says_why_and_what_it_printed(benches: Make) -> None:
    bench = benches(BrokenRunner())
    bench.app.spawn()
    await bench.app.start()
    with pytest.raises(ModelSetupError) as caught:
        await bench.app.ready()
    assert (caught.value.reason, caught.value.logs) == ("setup() failed: RuntimeError: boom", "loading\n")
    assert [stage for stage, _, _ in bench.stages] == ["setup-output", "setup-failed"]


async def test_what_is_wrong_with_a_request_is_found_before_setup_is_over(benches: Make) -> None:
    class SlowRunner(Runner):
        async def setup(self, _say: Any) -> None:
            await self.gate.wait()

    def check(deployment: Deployment) -> None:
        assert deployment.workers.health is Health.STARTING
        deployment.admission.check(NewPrediction(b'{"nope":1}'))

    bench = benches(SlowRunner())
    bench.app.spawn()
    await bench.app.start()
    with pytest.raises(GeartrainError) as caught:
        await bench.app.ready(check)
    assert caught.value.code is Code.INVALID_INPUT


@pytest.mark.parametrize("grace", [0.0, None])
async def test_app_that_stops_admits_nothing_and_ends_what_runs(grace: float | None, benches: Make) -> None:
    bench = benches(Runner())
    bench.app.spawn()
    await bench.app.start()
    deployment = await bench.app.ready()
    prediction = deployment.create(NewPrediction(b'{"name":"Tom"}'))
    bench.app.close()
    with pytest.raises(GeartrainError) as caught:
        deployment.create(NewPrediction(b'{"name":"Tom"}'))
    assert caught.value.code is Code.SHUTTING_DOWN
    assert not await bench.app.drain(0)
    stopping = asyncio.ensure_future(bench.app.stop(grace=grace))
    if grace is None:
        await asyncio.sleep(0)
        bench.runner.gate.set()
    await asyncio.wait_for(stopping, 40)
    assert prediction.status == ("canceled" if grace == 0 else "succeeded")
    assert await bench.app.drain(0)


async def test_load_that_is_asked_for_after_the_end_is_refused(benches: Make) -> None:
    bench = benches(Runner())
    bench.app.spawn()
    await bench.app.start()
    await bench.app.ready()
    bench.app.close()
    with pytest.raises(GeartrainError) as caught:
        await bench.app.catalogue.load("pets")
    assert caught.value.code is Code.SHUTTING_DOWN
