"""A worker that is there only while there is something to run, with fake workers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import geartrain
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import FileRef, WorkerObserver
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.models.entry import ModelEntry, ModelRef
from geartrain.service.models.trainings import Trainings
from geartrain.service.workers.ondemand import OnDemandWorker
from geartrain.service.workers.pool import ModelSetupError
from tests.support.deployments import FakeOutbound, unspawned
from tests.support.fakes import FakeWorker

LIMIT = 40.0  # seconds
Print = Callable[[LogSource, str], None]


class Script:
    """What the runners of one bench do, and how far they are."""

    def __init__(self) -> None:
        self.setup_gate = asyncio.Event()
        self.setup_gate.set()
        self.run_gate = asyncio.Event()
        self.run_gate.set()
        self.setup_error: str | None = None
        self.file: Path | None = None
        self.in_setup = asyncio.Event()
        self.in_run = asyncio.Event()
        self.deaf = False  # to a cancel


class Trainer(geartrain.BaseRunner):
    """A runner of the fake worker."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def setup(self, say: Print) -> Any:  # the fake's own way
        """Say so, and wait."""
        say("stdout", "setting up\n")
        return self._wait()

    async def _wait(self) -> None:
        self.script.in_setup.set()
        await self.script.setup_gate.wait()
        if self.script.setup_error is not None:
            raise RuntimeError(self.script.setup_error)

    async def run(self, n: int = 1) -> Any:
        """Wait, and give a number or a file."""
        self.script.in_run.set()
        while not self.script.run_gate.is_set():
            try:
                await self.script.run_gate.wait()
            except asyncio.CancelledError:
                if not self.script.deaf:
                    raise
        return n if self.script.file is None else self.script.file


class Worker(FakeWorker):
    """Tells when it has come to an end."""

    def __init__(self, runner: Any, observer: WorkerObserver, *, inspect: bool) -> None:
        super().__init__(runner, observer)
        self.inspect = inspect
        self.stopped = asyncio.Event()
        self.died = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    def _own(self, name: str) -> Callable[..., Any] | None:
        return None if self.inspect and name == "setup" else super()._own(name)

    async def stop(self, grace: float) -> None:
        """See `WorkerPort`."""
        await self.may_stop.wait()
        await super().stop(grace)
        self.stopped.set()

    def die(self, reason: str) -> None:
        """See `FakeWorker`."""
        super().die(reason)
        self.died.set()


class Bench:
    """A deployment of a worker on demand, in the model that it is of."""

    def __init__(self, *, idle_limit: float | None, setup_limit: float | None, cancel_grace: float) -> None:
        self.script = Script()
        self.inspected: list[Worker] = []
        self.workers: list[Worker] = []
        self.load_output: list[str] = []
        self.made: list[OnDemandWorker] = []
        self.delivery = asyncio.Event()
        self.delivery.set()
        self.entry = ModelEntry("scripted")
        version = self.entry.version("1")
        self.deployment: Deployment = unspawned(
            functools.partial(self._make, idle_limit=idle_limit, setup_limit=setup_limit),
            record=version.record,
            settings=DeploymentSettings(noun="training", limits=Limits(cancel_grace=cancel_grace, queue=1)),
            outbound=FakeOutbound(outputs=self),
            on_setup_output=self.load_output.append,
        )
        self.predictions = self.deployment.predictions
        version.begin(self.deployment)
        self.entry.settle()
        self.ref = ModelRef(lambda: self.entry)

    def _make(self, observer: WorkerObserver, *, idle_limit: float | None, setup_limit: float | None) -> OnDemandWorker:
        worker = OnDemandWorker(
            self._spawn, on_load_output=observer.on_setup_log, idle_limit=idle_limit, setup_limit=setup_limit
        )
        self.made.append(worker)
        return worker

    @property
    def worker(self) -> OnDemandWorker:
        """The one of its replica."""
        (worker,) = self.made
        return worker

    async def load(self) -> None:
        """Make it ready."""
        self.deployment.workers.spawn()
        await self.deployment.start()

    def _spawn(self, observer: WorkerObserver, *, inspect: bool) -> Worker:
        worker = Worker(Trainer(self.script), observer, inspect=inspect)
        (self.inspected if inspect else self.workers).append(worker)
        return worker

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """See `OutputsPort`."""
        return None

    def kept_in(self, folder: Callable[[], Path]) -> Bench:
        """See `OutputsPort`."""
        raise NotImplementedError

    def of(self, prediction_id: str, prefix: str | None, request: RequestContext) -> Bench:
        """See `OutputsPort`."""
        return self

    @property
    def holds_content(self) -> bool:
        """See `OutputFilesPort`."""
        return True

    async def deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """See `OutputFilesPort`."""
        await self.delivery.wait()
        assert all(os.path.exists(file.filename) for file in files)  # noqa: ASYNC240, PTH110
        return output

    def create(self, n: int = 1) -> Prediction:
        """Admit a training."""
        return self.deployment.create(NewPrediction(b'{"n":%d}' % n))

    async def ended(self, prediction: Prediction) -> Prediction:
        """Wait for its end."""
        event = asyncio.Event()
        prediction.log.listen(lambda _: event.set())
        async with asyncio.timeout(LIMIT):
            while not prediction.is_terminal:
                await event.wait()
                event.clear()
        return prediction

    async def done(self, n: int = 1) -> Prediction:
        """Run a training to its end."""
        return await self.ended(self.create(n))


@contextlib.asynccontextmanager
async def bench(
    *, idle_limit: float | None = None, setup_limit: float | None = None, cancel_grace: float = 60.0
) -> AsyncIterator[Bench]:
    """Open one, and look that nothing is left of it."""
    b = Bench(idle_limit=idle_limit, setup_limit=setup_limit, cancel_grace=cancel_grace)
    await b.load()
    try:
        yield b
        if b.deployment.workers.permits.idle != 1:
            pytest.fail("the slot has not come back")
    finally:
        await b.deployment.workers.stop(0)
    assert all(worker.is_stopped or worker._death for worker in (*b.inspected, *b.workers))


async def within(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT):
        await event.wait()


async def test_to_load_is_not_to_set_up() -> None:
    async with bench() as b:
        assert b.deployment.workers.health is Health.READY
        assert [field.name for field in b.deployment.interface.signature.inputs] == ["n"]
        assert [worker.is_stopped for worker in b.inspected] == [True]
        assert b.workers == []
        assert (await b.worker.healthcheck()).healthy


async def test_setup_belongs_to_the_first_job() -> None:
    async with bench() as b:
        first, second = await b.done(1), await b.done(2)
        assert (first.output, first.logs) == (b"1", "setting up\n")
        assert (second.output, second.logs) == (b"2", "")
        assert len(b.workers) == 1
        assert b.load_output == []


async def test_worker_without_work_ends() -> None:
    async with bench(idle_limit=0) as b:
        await b.done()
        await within(b.workers[0].stopped)
        assert (await b.done(2)).output == b"2"
        assert len(b.workers) == 2


async def test_worker_with_work_stays() -> None:
    async with bench(idle_limit=0) as b:
        await b.done()
        b.script.run_gate.clear()
        second = b.create()  # before the loop turns: the idle time begins and ends
        await within(b.script.in_run)
        b.script.run_gate.set()
        assert (await b.ended(second)).status is Status.SUCCEEDED
        assert len(b.workers) == 1


async def test_worker_stays_until_its_files_have_been_read(tmp_path: Path) -> None:
    async with bench(idle_limit=0) as b:
        b.script.file = tmp_path / "weights"
        b.script.file.write_bytes(b"w")
        b.delivery.clear()
        training = b.create()
        await within(b.script.in_run)
        for _ in range(20):  # turns of the loop: time enough for an idle limit of none
            await asyncio.sleep(0)
        assert b.worker._unread
        assert not b.workers[0].is_stopped
        b.delivery.set()
        assert (await b.ended(training)).status is Status.SUCCEEDED
        await within(b.workers[0].stopped)


async def test_the_next_worker_waits_for_the_end_of_the_last() -> None:
    async with bench(idle_limit=60) as b:
        b.script.run_gate.clear()
        first = b.create()
        await within(b.script.in_run)
        b.workers[0].may_stop.clear()
        b.script.run_gate.set()
        await b.ended(first)
        b.worker._stop_clock()
        b.worker._end(1.0)  # as if the idle time were over
        second = b.create(2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(b.workers) == 1
        b.workers[0].may_stop.set()
        assert (await b.ended(second)).output == b"2"
        assert len(b.workers) == 2


async def test_cancel_during_setup() -> None:
    async with bench() as b:
        b.script.setup_gate.clear()
        training = b.create()
        await within(b.script.in_setup)
        assert b.predictions.cancel(training.id, ANYONE)
        assert b.predictions.cancel(training.id, ANYONE)  # to say it twice does no harm
        assert (await b.ended(training)).status is Status.CANCELED
        assert training.logs == "setting up\n"
        assert b.workers[0].is_stopped
        b.script.setup_gate.set()
        assert (await b.done(2)).output == b"2"


async def test_cancel_before_setup() -> None:
    async with bench() as b:
        training = b.create()
        b.predictions.cancel(training.id, ANYONE)
        assert (await b.ended(training)).status is Status.CANCELED
        assert b.workers == []


async def test_cancel_during_the_run() -> None:
    async with bench() as b:
        b.script.run_gate.clear()
        training = b.create()
        await within(b.script.in_run)
        b.predictions.cancel(training.id, ANYONE)
        assert (await b.ended(training)).status is Status.CANCELED
        b.script.run_gate.set()
        assert (await b.done(2)).output == b"2"
        assert len(b.workers) == 1


async def test_run_that_ignores_a_cancel_loses_its_worker() -> None:
    async with bench(cancel_grace=0.05) as b:
        b.script.run_gate.clear()
        b.script.deaf = True
        training = b.create()
        await within(b.script.in_run)
        b.predictions.cancel(training.id, ANYONE)
        assert (await b.ended(training)).status is Status.CANCELED
        await within(b.workers[0].died)
        b.script.run_gate.set()
        assert (await b.done(2)).output == b"2"
        assert len(b.workers) == 2


async def test_failed_setup_fails_its_job_alone() -> None:
    async with bench() as b:
        b.script.setup_error = "no memory"
        training = await b.done()
        assert (training.status, training.error) == (Status.FAILED, "setup() failed: RuntimeError: no memory")
        assert training.logs == "setting up\n"
        assert b.workers[0].is_stopped
        b.script.setup_error = None
        assert (await b.done(2)).output == b"2"


async def test_setup_takes_too_long() -> None:
    async with bench(setup_limit=0.01) as b:
        b.script.setup_gate.clear()
        training = await b.done()
        assert training.error == "worker setup timed out after 0.01 seconds"
        assert b.workers[0].is_stopped


async def test_lost_worker_fails_its_job_and_another_follows() -> None:
    async with bench() as b:
        b.script.run_gate.clear()
        training = b.create()
        waiting = b.create(2)
        await within(b.script.in_run)
        b.workers[0].die("killed by SIGKILL")
        assert (await b.ended(training)).error == "Worker crashed: killed by SIGKILL"
        b.script.run_gate.set()
        assert (await b.ended(waiting)).output == b"2"  # it stood in the queue
        assert b.deployment.workers.health is Health.READY
        assert len(b.workers) == 2


async def test_worker_lost_while_idle_is_followed_by_another() -> None:
    async with bench(idle_limit=60) as b:
        await b.done()
        b.workers[0].die("killed by SIGKILL")
        assert (await b.done(2)).output == b"2"
        assert len(b.workers) == 2


@pytest.mark.parametrize("stage", ["setup", "run"])
async def test_stop_in_the_middle(stage: str) -> None:
    async with bench() as b:
        gate, reached = (
            (b.script.setup_gate, b.script.in_setup) if stage == "setup" else (b.script.run_gate, b.script.in_run)
        )
        gate.clear()
        training = b.create()
        await within(reached)
        await b.worker.stop(0)
        assert b.workers[0].is_stopped
        assert (await b.ended(training)).status is (Status.CANCELED if stage == "setup" else Status.FAILED)
        if stage == "run":
            b.worker.on_lost("as the real one does not say when it is stopped")


# trainings


async def test_trainings_are_loaded_once_and_when_first_needed() -> None:
    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref, b.load)
    assert b.inspected == []
    await asyncio.gather(*(trainings.ready() for _ in range(3)))
    assert [field.name for field in (await trainings.signature()).inputs] == ["n"]
    assert len(b.inspected) == 1
    await trainings.stop()


async def test_a_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref, b.load)
    impatient, patient = (asyncio.ensure_future(trainings.ready()) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert impatient.cancelled()
    await trainings.stop()


async def test_trainings_that_cannot_be_loaded_say_why_every_time() -> None:
    async def load() -> None:
        raise ModelSetupError("train.py:1: SyntaxError", "")

    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref, load)
    for _ in range(2):
        with pytest.raises(GeartrainError, match=r"^The training cannot be loaded: train.py:1: SyntaxError$") as caught:
            await trainings.ready()
        assert caught.value.code is Code.NOT_READY
    await trainings.stop()


async def test_a_bug_in_loading_is_no_worse() -> None:
    async def load() -> None:
        raise OSError("no more processes")

    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref, load)
    with pytest.raises(GeartrainError, match="no more processes"):
        await trainings.signature()
    await trainings.stop()


async def test_closed_trainings_load_nothing() -> None:
    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref, b.load)
    trainings.close()
    with pytest.raises(GeartrainError, match="no new trainings") as caught:
        await trainings.ready()
    assert caught.value.code is Code.SHUTTING_DOWN
    assert b.inspected == []
    await trainings.stop()


async def test_trainings_that_end_while_they_are_loaded() -> None:
    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    never = asyncio.Event()

    async def load() -> None:
        await never.wait()

    trainings = Trainings(b.ref, load)
    waiting = asyncio.ensure_future(trainings.ready())
    await asyncio.sleep(0)
    await trainings.stop()
    with pytest.raises(GeartrainError) as caught:
        await waiting
    assert caught.value.code is Code.SHUTTING_DOWN


async def test_trainings_of_a_model_that_is_set_up_by_the_server_need_no_load() -> None:
    b = Bench(idle_limit=None, setup_limit=None, cancel_grace=60)
    trainings = Trainings(b.ref)
    await trainings.ready()
    with pytest.raises(GeartrainError) as caught:
        await trainings.signature()
    assert caught.value.code is Code.NOT_READY
    await trainings.stop()
