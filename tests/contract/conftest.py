"""One bench for every kind of worker: a model, its service, and the parts around them under the test's control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import unittest.mock
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from geartrain.bridge.child import ChildWorker, Launch
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.errors import FieldError
from geartrain.domain.predictions.calls import FileRef, ModelCallPort, WorkerObserver
from geartrain.domain.predictions.events import Completed, Event, Log, Output, Start
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.outbound.workspace import Workspace
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.scheduler import Permit
from tests.contract.model import run as scripted
from tests.support.deployments import FakeOutbound, Spawn, deploy
from tests.support.fakes import FakeWorker
from tests.support.gates import Gates

ROOT = Path(__file__).parents[2]
LIMIT = 40.0  # seconds
NO_LIMITS = Limits()


class Deliveries:
    """Output files become `file:<content>`, once they are released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.released.set()
        self.error: str | None = None
        self.begun = 0

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """See `OutputsPort`."""
        return None

    def kept_in(self, folder: Callable[[], Path]) -> Deliveries:
        """See `OutputsPort`."""
        raise NotImplementedError

    def of(self, prediction_id: str, prefix: str | None, request: RequestContext) -> Deliveries:
        """See `OutputsPort`."""
        return self

    @property
    def holds_content(self) -> bool:
        """See `OutputFilesPort`."""
        return True

    async def deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """See `OutputFilesPort`."""
        self.begun += len(files)
        await self.released.wait()
        if self.error is not None:
            raise OSError(self.error)
        for file in files:
            if file.is_output:
                output = _content(file)
        for file in files:
            if not file.is_output:
                output = output.replace(file.token.encode(), b"file:" + _content(file))
        return output


def _content(file: FileRef) -> bytes:
    return Path(file.filename).read_bytes()


class Inputs:
    """The image of an input is fetched once it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.released.set()
        self.error: str | None = None
        self.fetching = asyncio.Event()
        self.folder: Path | None = None

    def needed(self, values: dict[str, Any]) -> bool:
        """See `InputFilesPort`."""
        return "image" in values

    def check(self, values: dict[str, Any]) -> tuple[FieldError, ...]:
        """See `InputFilesPort`."""
        return ()

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        """See `InputFilesPort`."""
        self.folder = folder()
        path = self.folder / "image"
        path.write_text(f"the content of {values['image']}", encoding="utf-8")
        self.fetching.set()
        await self.released.wait()
        if self.error is not None:
            raise OSError(self.error)
        return {**values, "image": str(path)}

    async def digests(self, folder: Path) -> None:
        """See `InputFilesPort`."""


class Bench:
    """A deployed model without a transport in front."""

    def __init__(self, spawn: Spawn, folder: Path, *, limits: Limits) -> None:
        self.folder = folder
        self.gates = Gates(folder / "gates")
        self.deliveries = Deliveries()
        self.inputs = Inputs()
        self.workspace = Workspace(folder)
        outbound = FakeOutbound(
            outputs=self.deliveries, input_files=lambda: self.inputs, new_folder=self.workspace.folder
        )
        self.is_lost = asyncio.Event()
        self.deployment = deploy(
            lambda observer: spawn(_Observer(observer, self.is_lost)),
            name="scripted",
            outbound=outbound,
            settings=DeploymentSettings(limits=limits),
        )
        self.workers = self.deployment.workers
        self.predictions = self.deployment.predictions
        self.starting: asyncio.Future[None] | None = None
        self.admitted: list[Prediction] = []
        self.is_stopped = False

    @property
    def worker(self) -> WorkerPort:
        """The only worker."""
        return self.workers.replicas[0].worker

    async def stop(self, grace: float) -> None:
        """End the worker."""
        self.is_stopped = True
        await self.workers.stop(grace)

    async def lost(self) -> None:
        """Wait until the model has heard of the end of its worker."""
        async with asyncio.timeout(LIMIT):
            await self.is_lost.wait()

    def gate(self, name: str = "gate") -> str:
        """The path of a gate, for a script."""
        return str(self.gates[name].path)

    def create(
        self,
        *steps: list[Any],
        prediction_id: str | None = None,
        image: str | None = None,
        schedule: SchedulePolicy = NO_SCHEDULE,
    ) -> Prediction:
        """Admit a prediction of these steps."""
        values = {"script": json.dumps(steps), **({} if image is None else {"image": image})}
        new = NewPrediction(json.dumps(values).encode(), prediction_id, schedule=schedule)
        prediction = self.deployment.create(new)
        self.admitted.append(prediction)
        return prediction

    async def ended(self, prediction: Prediction) -> Prediction:
        """Wait for its end."""
        await self._until(prediction, lambda: prediction.is_terminal)
        return prediction

    async def done(self, *steps: list[Any], **options: Any) -> Prediction:
        """Run a prediction of these steps to its end."""
        return await self.ended(self.create(*steps, **options))

    async def said(self, prediction: Prediction, text: str) -> None:
        """Wait until it has printed that."""
        await self._until(prediction, lambda: text in prediction.logs)

    async def given(self, prediction: Prediction, count: int) -> None:
        """Wait until it has given so many outputs."""
        await self._until(prediction, lambda: len(prediction.chunks) >= count)

    async def _until(self, prediction: Prediction, condition: Callable[[], bool]) -> None:
        event = asyncio.Event()
        prediction.log.listen(lambda _: event.set())
        async with asyncio.timeout(LIMIT):
            while not condition():
                assert not prediction.is_terminal, f"it ended: {prediction.error} {prediction.logs}"
                await event.wait()
                event.clear()

    async def idle(self, slots: int) -> None:
        """Wait until that many slots are free."""
        pool = self.workers.permits
        if pool.idle == slots:
            return
        event = asyncio.Event()
        release = pool.release

        def release_and_tell(permit: Permit) -> None:
            release(permit)
            event.set()

        with unittest.mock.patch.object(pool, "release", release_and_tell):
            async with asyncio.timeout(LIMIT):
                while pool.idle != slots:
                    await event.wait()
                    event.clear()

    def kill_worker(self) -> None:
        """Let it die as a process dies that is killed from outside."""
        if isinstance(self.worker, FakeWorker):
            self.worker.die("killed by SIGKILL (out of memory, or killed from outside)")
        elif isinstance(self.worker, ChildWorker):
            os.kill(self.worker._process.pid, signal.SIGKILL)

    def check(self) -> None:
        """What holds of every prediction, whatever happened: it ended once, and everything is given back."""
        for prediction in self.admitted:
            check_log(prediction)
        if self.workers.health is Health.READY and not self.is_stopped:
            assert self.workers.permits.idle == self.workers.permits.size
        assert not list(self.folder.glob("geartrain-*/prediction-*")), "a prediction has left its folder"


def check_log(prediction: Prediction) -> None:
    """A log has one beginning, one end, and nothing after it; indices count up."""
    events = events_of(prediction)
    assert prediction.is_terminal
    assert [type(event) for event in events].count(Completed) == 1
    assert events[-1] == Completed(prediction.status)
    if prediction.started_at is not None:
        assert [type(event) for event in events].count(Start) == 1
        assert isinstance(events[0], Start)
    outputs = [event for event in events if isinstance(event, Output)]
    assert [event.index for event in outputs] == list(range(len(outputs)))


def events_of(prediction: Prediction) -> list[Event]:
    """All that happened."""
    return prediction.log.read(0)


def story(prediction: Prediction) -> list[str]:
    """What happened between start and end, in short; prints in a row as one."""
    words: list[str] = []
    was_log = False
    for event in events_of(prediction):
        is_log = isinstance(event, Log)
        if isinstance(event, Log):
            words[-1:] = [words[-1] + event.data] if was_log else [*words[-1:], event.data]
        elif isinstance(event, Output):
            words.append(bytes(event.chunk).decode())
        elif not isinstance(event, Start | Completed):
            words.append(type(event).__name__.lower())
        was_log = is_log
    return words


class _Observer:
    """The replica, and who else wants to know that the worker is gone."""

    def __init__(self, replica: WorkerObserver, is_lost: asyncio.Event) -> None:
        self.on_setup_log = replica.on_setup_log
        self.on_loaded = replica.on_loaded
        self.on_own_metrics = replica.on_own_metrics
        self._replica = replica
        self._is_lost = is_lost

    def on_model_call(self, call: ModelCallPort) -> None:
        """See `WorkerObserver`."""
        raise AssertionError(call.model)

    def on_lost(self, reason: str) -> None:
        """See `WorkerObserver`."""
        self._replica.on_lost(reason)
        self._is_lost.set()


def leftovers(folder: Path) -> list[Path]:
    """What nobody has tidied up."""
    return list(folder.glob("geartrain-*"))


OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything of a test lies, temporary files included."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextlib.asynccontextmanager
async def _bench(
    kind: str,
    folder: Path,
    *,
    streams: bool = True,
    slots: int = 1,
    limits: Limits = NO_LIMITS,
    module: ModuleType = scripted,
    ready: bool = True,
) -> AsyncIterator[Bench]:
    """`ready=False`: setup is not waited for, only the signature; `Bench.starting` is what is left to do."""
    is_async = not kind.startswith("sync child")
    wakeup: WakeupMode = "blocking" if kind.endswith("blocking") else "adaptive"
    runner = f"{'Async' if is_async else 'Sync'}{'Stream' if streams else 'Value'}"

    def spawn(observer: WorkerObserver) -> WorkerPort:
        if kind == "fake":
            return FakeWorker(getattr(module, runner)(), observer, slots=slots)
        path = Path(module.__file__ or "")
        environment = {"PYTHONPATH": str(ROOT)}
        return ChildWorker(Launch(f"{path.name}:{runner}", path.parent, environment, slots, wakeup=wakeup), observer)

    bench = Bench(spawn, folder, limits=limits)
    bench.starting = starting = asyncio.ensure_future(bench.deployment.start())
    try:
        async with asyncio.timeout(LIMIT):
            await (starting if ready else bench.deployment.loaded.wait())
        yield bench
        for prediction in bench.admitted:
            await bench.ended(prediction)
        bench.check()
    finally:
        bench.deployment.executions.is_closed = True
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await bench.workers.stop(0)
        await bench.workspace.close()
        bench.gates.remove()
    assert not leftovers(folder)


@pytest.fixture(params=["fake", "async child", "sync child", "sync child blocking"])
def bench(request: pytest.FixtureRequest, folder: Path) -> OpenBench:
    """Open a bench with a worker of each kind, of one slot."""
    return lambda **options: _bench(request.param, folder, **options)


@pytest.fixture(params=["fake", "async child", "async child blocking"])
def async_bench(request: pytest.FixtureRequest, folder: Path) -> OpenBench:
    """Open a bench with a worker of each kind that can have several slots."""
    return lambda **options: _bench(request.param, folder, **options)
