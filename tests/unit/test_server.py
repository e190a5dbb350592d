"""The wiring: what is told of a start, and how the service without a door ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import geartrain.server.services
from geartrain.bridge.child import SetupError
from geartrain.project.source import ModelSource
from geartrain.server import Progress, ServeOptions, log_progress, open_service
from geartrain.service.model import ModelSetupError
from tests.fakes import FakeWorker

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
    async def run(self, name: str) -> str:
        return name


class BrokenRunner(Runner):
    def setup(self, say: Any) -> None:
        raise RuntimeError("boom")


@pytest.mark.parametrize(("runner", "grace"), [(Runner, 1.0), (BrokenRunner, 0)])
async def test_only_a_worker_that_was_ready_is_given_time_to_end(
    runner: type[Runner], grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Stopped] = []

    def launch(_source: ModelSource, model: Any, *, wakeup: str) -> Stopped:
        assert wakeup == "adaptive"
        workers.append(Stopped(runner(), model))
        return workers[-1]

    monkeypatch.setattr(geartrain.server.services, "launch", launch)
    try:
        async with open_service(ServeOptions(source=SOURCE)) as service:
            assert service.model.name == "pets"
    except (ModelSetupError, SetupError):
        assert grace == 0
    assert [worker.grace for worker in workers] == [grace]
