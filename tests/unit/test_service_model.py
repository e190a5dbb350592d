"""A model's health from its start to its end, with a worker that has no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.events import LogSource
from geartrain.domain.lifecycle import Health, IllegalStepError
from geartrain.service import model as model_module
from geartrain.service.model import Model, ModelSetupError
from tests.fakes import FakeWorker

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


async def started(runner: Any, *, slots: int = 1) -> tuple[Model, FakeWorker]:
    model = Model("m", clock=clock())
    worker = FakeWorker(runner, model, slots=slots)
    await model.start(worker)
    return model, worker


def refusal(model: Model) -> GeartrainError:
    """Why no prediction can be made."""
    with pytest.raises(GeartrainError) as caught:
        _ = model.worker
    assert caught.value.code is Code.NOT_READY
    return caught.value


# setup


async def test_before_a_worker_is_there() -> None:
    model = Model("m")
    assert (await model.report()).health is Health.UNKNOWN
    assert "not begun" in refusal(model).message
    for attribute in ("info", "signature", "validator"):
        with pytest.raises(GeartrainError) as caught:
            getattr(model, attribute)
        assert caught.value.code is Code.NOT_READY
    assert (model.permits.size, model.permits.acquire()) == (0, None)
    await model.stop(0)


async def test_setup_that_succeeds() -> None:
    model, runner = Model("m", clock=clock()), Waiting()
    heard: list[tuple[str, str]] = []
    model.on_setup_output = lambda source, text: heard.append((source, text))
    starting = asyncio.ensure_future(model.start(FakeWorker(runner, model, slots=3), time_limit=60))
    await runner.began.wait()
    report = await model.report()
    assert (report.health, report.setup.logs, report.setup.completed_at) == (Health.STARTING, "waiting\n", None)
    assert "not finished yet" in refusal(model).message
    runner.go.set()
    await starting
    report = await model.report()
    assert report.health is Health.READY
    assert (report.setup.started_at, report.setup.completed_at, report.setup.failed) == (1000, 1001, False)
    assert heard == [("stderr", "waiting\n")]
    assert model.permits.size == 3
    assert [field.name for field in model.signature.inputs] == ["text"]
    assert not model.validator.check(b'{"text":"x"}')


async def test_signature_is_known_while_setup_runs_and_after_it_has_failed() -> None:
    model, runner = Model("m"), Waiting()
    starting = asyncio.ensure_future(model.start(FakeWorker(runner, model, slots=3)))
    await model.loaded.wait()
    assert (model.health, model.slots, model.permits.size) == (Health.STARTING, 3, 0)
    assert [field.name for field in model.signature.inputs] == ["text"]
    assert [spec.name for spec in model.view.inputs] == ["text"]
    assert model.validator.check(b'{"nope":1}')
    with pytest.raises(GeartrainError):
        model.check_ready()
    runner.go.set()
    await starting
    assert (model.slots, model.permits.size) == (3, 3)

    failed = Model("m")
    with pytest.raises(ModelSetupError):
        await failed.start(FakeWorker(Failing(), failed))
    assert [field.name for field in failed.signature.inputs] == ["text"]
    assert failed.slots == 1


async def test_setup_that_raises() -> None:
    model = Model("m", clock=clock())
    with pytest.raises(ModelSetupError) as caught:
        await model.start(FakeWorker(Failing(), model))
    assert caught.value.reason == "setup() failed: RuntimeError: boom in setup"
    assert caught.value.logs == "loading\n"
    report = await model.report()
    assert (report.health, report.setup.failed, report.setup.completed_at) == (Health.SETUP_FAILED, True, 1001)
    assert report.setup.logs == "loading\nsetup() failed: RuntimeError: boom in setup\n"  # D13: both are there
    assert "Setup has failed" in refusal(model).message
    with pytest.raises(IllegalStepError):
        await model.start(FakeWorker(Plain(), model))


async def test_setup_that_takes_too_long() -> None:
    model, runner = Model("m"), Waiting()
    worker = FakeWorker(runner, model)
    with pytest.raises(ModelSetupError, match=r"worker setup timed out after 0\.01 seconds"):
        await model.start(worker, time_limit=0.01)
    assert worker.is_stopped
    report = await model.report()
    assert report.health is Health.SETUP_FAILED
    assert report.setup.logs == "waiting\nworker setup timed out after 0.01 seconds\n"


async def test_setup_that_is_given_up_is_no_failure() -> None:
    """The server stops while setup is running."""
    model, runner = Model("m"), Waiting()
    starting = asyncio.ensure_future(model.start(FakeWorker(runner, model)))
    await runner.began.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert model.health is Health.STARTING
    await model.stop(0)


# after setup


async def test_busy_while_every_slot_is_in_use() -> None:
    model, _ = await started(Plain(), slots=2)
    first, second = model.permits.acquire(), model.permits.acquire()
    assert first is not None
    assert second is not None
    assert (await model.report()).health is Health.BUSY
    model.permits.release(first)
    assert (await model.report()).health is Health.READY
    assert model.health is Health.READY


async def test_lost_worker_is_the_end() -> None:
    model, worker = await started(Checked())
    worker.die("killed by SIGKILL")
    report = await model.report()
    assert (report.health, report.defunct_reason) == (Health.DEFUNCT, "Worker crashed: killed by SIGKILL")
    assert report.setup.completed_at is not None
    assert "worker is gone" in refusal(model).message
    assert model.signature.inputs  # what it takes is still known
    with pytest.raises(IllegalStepError):
        model.on_lost("again")


# the author's healthcheck; observed Cog, section 4


@pytest.mark.parametrize("verdict", [True, None, 0, "x", [], 1.5])
async def test_healthy(verdict: object) -> None:
    runner = Checked()
    model, _ = await started(runner)
    runner.verdict = verdict
    report = await model.report()
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
    model, worker = await started(runner)
    runner.verdict = verdict
    report = await model.report()
    assert (report.health, report.healthcheck_error) == (Health.UNHEALTHY, error)
    assert model.worker is worker  # predictions are still accepted
    runner.verdict = True
    assert (await model.report()).health is Health.READY


async def test_unhealthy_comes_before_busy() -> None:
    runner = Checked()
    model, _ = await started(runner)
    runner.verdict = False
    assert model.permits.acquire() is not None
    assert (await model.report()).health is Health.UNHEALTHY


async def test_requests_at_once_share_one_run() -> None:
    runner = Checked()
    model, _ = await started(runner)
    runner.go.clear()
    asking = [asyncio.ensure_future(model.report()) for _ in range(20)]
    await runner.began.wait()
    asking.append(asyncio.ensure_future(model.report()))
    runner.verdict = False
    runner.go.set()
    assert {(await report).health for report in asking} == {Health.UNHEALTHY}
    assert runner.runs == 1
    await model.report()
    assert runner.runs == 2


async def test_client_that_leaves_takes_nobodys_answer_away() -> None:
    runner = Checked()
    model, _ = await started(runner)
    runner.go.clear()
    leaving, staying = (asyncio.ensure_future(model.report()) for _ in range(2))
    await runner.began.wait()
    leaving.cancel()
    runner.go.set()
    assert (await staying).health is Health.READY


async def test_check_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "HEALTHCHECK_TIMEOUT", 0.01)
    runner = Checked()
    model, _ = await started(runner)
    runner.go.clear()
    error = "Healthcheck failed: user-defined healthcheck timed out after 0.01 seconds"
    reports = [await model.report() for _ in range(3)]
    assert [(report.health, report.healthcheck_error) for report in reports] == [(Health.UNHEALTHY, error)] * 3
    assert runner.runs == 1  # while it hangs there is no second
    runner.go.set()
    monkeypatch.undo()
    while (await model.report()).health is not Health.READY:
        pass
    assert (await model.report()).health is Health.READY
    assert runner.runs > 1


async def test_worker_lost_during_a_check() -> None:
    runner = Checked()
    model, worker = await started(runner)
    runner.go.clear()
    asking = asyncio.ensure_future(model.report())
    await runner.began.wait()
    worker.die("gone")
    assert (await asking).health is Health.DEFUNCT


async def test_worker_lost_before_the_check_begins() -> None:
    """`GET /health-check` answers whatever happens."""
    model, worker = await started(Checked())
    asking = asyncio.ensure_future(model.report())
    await asyncio.sleep(0)  # it has asked, and nobody has begun to answer
    worker.die("gone")
    assert (await asking).health is Health.DEFUNCT


async def test_no_check_while_the_model_is_not_ready() -> None:
    class Both(Checked, Failing):
        pass

    runner = Both()
    model = Model("m")
    with pytest.raises(ModelSetupError):
        await model.start(FakeWorker(runner, model))
    assert (await model.report()).healthcheck_error is None
    assert runner.runs == 0


async def test_stop_ends_the_worker() -> None:
    model, worker = await started(Plain())
    await model.stop(1)
    assert worker.is_stopped
    assert model.health is Health.READY  # it was told to go: nothing is wrong with it
