"""An admission that fails at any step leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

import geartrain.service
from geartrain.domain.errors import Code
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.principal import ANYONE
from geartrain.service.durable.durability import Durability, DurableSettings
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.models.rows import RowEnds, RowExecution, begin_rows
from geartrain.service.readers import completion
from geartrain.service.scheduling.execution import Execution
from geartrain.service.scheduling.scheduler import Scheduler
from tests.support.deployments import FakeOutbound, deploy
from tests.support.fake_store import FakeStore
from tests.support.hand_worker import WITH_FILES, HandWorker

SERVICE = str(Path(geartrain.service.__file__).parent)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
HANDED_OVER = {"on_begin", "undo", "_take_back", "fail"}  # a worker has the call from then on; the others undo


class InjectedError(Exception):
    """The failure of one step."""


@contextmanager
def failing_at(step: int) -> Iterator[None]:
    """Raise `InjectedError` in place of the `step`-th call of a function of the service, 0 for the first one."""
    calls = 0
    has_raised = False
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls, has_raised
        if event != "call" or has_raised or not frame.f_code.co_filename.startswith(SERVICE) or _is_past(frame):
            return
        calls += 1
        if calls > step:
            has_raised = True
            raise InjectedError(frame.f_code.co_qualname)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _is_past(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in HANDED_OVER:
            return True
        frame = frame.f_back
    return False


class Bench:
    """A model with one slot, whose calls a test ends by hand."""

    def __init__(self, *, files: bool = False, store: bool = False, cache: bool = False) -> None:
        outbound = FakeOutbound(input_files=Fetching, new_folder=Folder)
        self.durability: Durability | None = None
        if store:
            self.durability = Durability(
                FakeStore(), owner="me", settings=DurableSettings(), encode_end=lambda each: each.id.encode()
            )
            outbound.durability = self.durability

        def spawn(observer: Any) -> HandWorker:
            self.worker = HandWorker(observer, signature=WITH_FILES) if files else HandWorker(observer)
            return self.worker

        self.deployment: Deployment = deploy(
            spawn,
            settings=DeploymentSettings(limits=Limits(queue=5), cache=CacheSettings() if cache else None),
            outbound=outbound,
        )

    def taken(self) -> tuple[int, int, int, int, int]:
        """What predictions hold: places, ids, executions, slots, entries of the queue."""
        deployment = self.deployment
        scheduler, permits = deployment.scheduler, deployment.workers.permits
        in_use = permits.size - permits.idle
        live = len(deployment.predictions.live), len(deployment.executions.live)
        return scheduler.waiting, *live, in_use, len(scheduler.pending.queue)

    async def settle(self) -> None:
        """Let tasks go on, and end the calls that were canceled, as a worker does."""
        for _ in range(20):
            await asyncio.sleep(0)
            for call in list(self.worker.calls):
                if call.was_canceled and not call.is_over and call is self.worker._current(0):
                    call.cancel()


class Folder:
    """A folder that nothing is put into."""

    def path(self) -> Path:
        """See `FolderPort`."""
        return Path("/nowhere")

    async def remove(self) -> None:
        """See `FolderPort`."""


class Fetching:
    """Files that are there at once."""

    def needed(self, values: dict[str, Any]) -> bool:
        """See `InputFilesPort`."""
        return "image" in values

    def check(self, values: dict[str, Any]) -> tuple[()]:
        """See `InputFilesPort`."""
        return ()

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        """See `InputFilesPort`."""
        return values

    async def digests(self, folder: Path) -> dict[str, str]:
        """See `InputFilesPort`."""
        return {"http://h/i": "digest"}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run a test on one kind of loop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=300)
@given(
    step=st.integers(0, 60),
    seconds=st.sampled_from([None, 0.0, 1e-6, 0.1, 30.0, 1e15]),
    is_busy=st.booleans(),
    files=st.booleans(),
    kept=st.sampled_from(["", "store", "cache"]),
)
def test_s1_an_admission_that_fails_anywhere_is_undone(
    loop: str, step: int, seconds: float | None, is_busy: bool, files: bool, kept: str
) -> None:
    store = kept == "store"

    async def main() -> None:
        bench = Bench(files=files, store=store, cache=kept == "cache")
        deployment = bench.deployment
        await deployment.start()
        body = b'{"text": "a", "image": "http://h/i"}' if files else b'{"text": "a"}'
        schedule = NO_SCHEDULE if seconds is None else SchedulePolicy(seconds)
        if is_busy:
            deployment.create(NewPrediction(body.replace(b'"a"', b'"b"')))
            await bench.settle()
        before = bench.taken()
        try:
            with failing_at(step):
                prediction = deployment.create(
                    NewPrediction(body, id="mine" if store else None, keep=True, schedule=schedule)
                )
        except Exception:  # noqa: BLE001 - the injected one, or the refusal of a request without time
            await bench.settle()
            assert bench.taken() == before
            assert deployment.predictions.look_up("mine", ANYONE) is None
            assert bench.durability is None or not bench.durability.runs
        else:
            await bench.settle()
            deployment.predictions.abandon(prediction)
            await bench.settle()
            assert bench.taken() == before
        for call in list(bench.worker.calls):
            if not call.is_over and not call.was_canceled:
                call.answer()
                await bench.settle()
        after = deployment.create(NewPrediction(body))
        await bench.settle()
        bench.worker.calls[-1].answer()
        await bench.settle()
        assert after.status == "succeeded"
        assert bench.taken() == (0, 0, 0, 0, 0)

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=200)
@given(step=st.integers(0, 90), count=st.integers(1, 4), is_busy=st.booleans())
def test_s1_rows_whose_admission_fails_anywhere_are_undone(loop: str, step: int, count: int, is_busy: bool) -> None:
    ended: list[object] = []
    ends = RowEnds(
        lambda row, *_: ended.append(row), lambda row, *_: ended.append(row), lambda row, *_: ended.append(row)
    )
    rows = [(number, b'{"text": "a"}') for number in range(count)]

    async def main() -> None:
        bench = Bench()
        deployment = bench.deployment
        await deployment.start()
        if is_busy:
            deployment.create(NewPrediction(b'{"text": "b"}'))
            await bench.settle()
        before = bench.taken()
        with contextlib.suppress(InjectedError), failing_at(step):
            begin_rows(deployment, rows, ends, queue=9)
        await bench.settle()
        for execution in list(deployment.executions.live):
            if isinstance(execution, RowExecution):
                execution.cancel()
        await bench.settle()
        assert bench.taken() == before
        assert len(ended) == len(set(ended)) <= count
        ended.clear()
        for call in list(bench.worker.calls):
            if not call.is_over and not call.was_canceled:
                call.answer()
                await bench.settle()
        assert bench.taken() == (0, 0, 0, 0, 0)
        begin_rows(deployment, rows, ends, queue=9)
        for _ in rows:
            await bench.settle()
            next(call for call in bench.worker.calls if not call.is_over).answer()
        await bench.settle()
        assert ended == list(range(count))
        assert bench.taken() == (0, 0, 0, 0, 0)

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=200)
@given(step=st.integers(1, 60), is_busy=st.booleans(), cache=st.booleans())
def test_s1_a_prediction_that_cannot_go_on_with_its_files_ends(
    loop: str, step: int, is_busy: bool, cache: bool
) -> None:
    go_on = Execution._on_ready

    def fail_on_ready(*arguments: Any) -> None:
        with failing_at(step):
            go_on(*arguments)

    async def main() -> None:
        bench = Bench(files=True, cache=cache)
        deployment = bench.deployment
        await deployment.start()
        if is_busy:
            deployment.create(NewPrediction(b'{"text": "b", "image": "http://h/i"}'))
            await bench.settle()
        before = bench.taken()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Execution, "_on_ready", fail_on_ready)
            prediction = deployment.create(NewPrediction(b'{"text": "a", "image": "http://h/i"}', keep=True))
            await bench.settle()
        if prediction.status == "failed":
            assert str(prediction.error).startswith(
                ("The prediction could not be begun: ", "The call could not be started: ")
            )
            assert bench.taken() == before
        elif not prediction.is_terminal:
            deployment.predictions.abandon(prediction)
            await bench.settle()
        assert prediction.is_terminal
        assert bench.taken() == before
        for call in list(bench.worker.calls):
            if not call.is_over and not call.was_canceled:
                call.answer()
                await bench.settle()
        assert bench.taken() == (0, 0, 0, 0, 0)

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_s1_a_durable_prediction_that_cannot_begin_fails(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(_scheduler: Scheduler, _execution: object) -> None:
        raise InjectedError("submit")

    async def main() -> None:
        bench = Bench(store=True)
        deployment = bench.deployment
        await deployment.start()
        assert bench.durability is not None
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "submit", submit)
            prediction = deployment.create(NewPrediction(b'{"text": "a"}', id="mine", keep=True))
            durable = bench.durability.run_of(prediction)
            assert durable is not None
            assert await durable.made is None
            await bench.settle()
        assert (prediction.status, prediction.error) == ("failed", "The prediction could not be begun: submit")
        assert bench.taken() == (0, 0, 0, 0, 0)
        assert not bench.durability.runs

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_s11_one_whose_time_is_up_while_it_waits_has_no_place(loop: str) -> None:
    async def main() -> None:
        bench = Bench()
        deployment = bench.deployment
        await deployment.start()
        deployment.create(NewPrediction(b'{"text": "a"}'))
        late = deployment.create(NewPrediction(b'{"text": "b"}', schedule=SchedulePolicy(0.001)))
        time.sleep(0.002)  # noqa: ASYNC251 - the loop is held up while the time of the second one ends
        bench.worker.calls[0].answer()
        assert deployment.predictions.place_of(late.id) == 0
        async with asyncio.timeout(40):
            await completion(late)
        assert (late.status, late.error_code) == ("failed", Code.TIMED_OUT)
        assert bench.taken() == (0, 0, 0, 0, 0)

    run(loop, main())
