"""The next call of a sync model lies ready in its worker, and nobody is worse off for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from geartrain.domain.predictions.calls import FileRef, ItemEnd, Succeeded, WorkerObserver
from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits, VersionRecord
from geartrain.service.scheduling.context import Clocks
from geartrain.service.workers.pool import RestartPolicy
from tests.support.deployments import deploy
from tests.support.hand_worker import HandCall, HandWorker

if TYPE_CHECKING:
    import pytest

LEVELS = Priorities((Level(), Level()))


class Bench:
    """A model that takes one prediction at a time, with workers that a test moves by hand."""

    def __init__(
        self,
        *,
        replicas: int = 1,
        restarts: RestartPolicy | None = None,
        priorities: Priorities = Priorities(),  # noqa: B008 - frozen
    ) -> None:
        self.workers: list[HandWorker] = []
        self.record = VersionRecord("m", "1")
        limits = Limits(queue=100, priorities=priorities)
        settings = DeploymentSettings(replicas=replicas, restarts=restarts, limits=limits)
        # By this clock no run takes long: behind those that do nothing is prefetched.
        self.deployment = deploy(self._spawn, record=self.record, settings=settings, clocks=Clocks(steady=lambda: 1.0))

    def _spawn(self, observer: WorkerObserver) -> HandWorker:
        self.workers.append(HandWorker(observer))
        return self.workers[-1]

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, text: str, schedule: SchedulePolicy = SchedulePolicy()) -> Prediction:  # noqa: B008 - frozen
        return self.deployment.create(NewPrediction(b'{"text": "%b"}' % text.encode(), schedule=schedule))

    def begun(self, worker: int = 0) -> list[tuple[str, bool]]:
        """What a worker has been given: the text of each call, and whether it was prefetched."""
        return [(call.texts[0], call.input.prefetch) for call in self.workers[worker].calls]

    def call(self, text: str) -> HandCall:
        """The call of that text."""
        return next(call for worker in self.workers for call in worker.calls if call.texts == [text])

    def cancel(self, prediction: Prediction) -> None:
        assert self.deployment.predictions.cancel(prediction.id, ANYONE)


async def until_ready(bench: Bench, workers: int) -> None:
    async with asyncio.timeout(40):
        while len(bench.workers) < workers or not bench.deployment.workers.permits.size:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_one_call_waits_in_the_worker_and_the_others_in_the_queue() -> None:
    bench = await Bench().start()
    predictions = [bench.ask(text) for text in "abc"]
    assert bench.begun() == [("a", False), ("b", True)]
    assert [each.status for each in predictions] == ["processing", "starting", "starting"]
    assert bench.deployment.scheduler.waiting == 2
    bench.call("a").answer()
    assert bench.begun() == [("a", False), ("b", True), ("c", True)]
    assert [each.status for each in predictions] == ["succeeded", "processing", "starting"]
    bench.call("b").answer()
    bench.call("c").answer()
    assert [each.output for each in predictions] == [b'"A"', b'"B"', b'"C"']
    assert (bench.deployment.scheduler.waiting, bench.deployment.workers.permits.idle) == (0, 1)


async def test_a_canceled_one_is_withdrawn_and_the_next_one_follows_it() -> None:
    bench = await Bench().start()
    a, b, c = (bench.ask(text) for text in "abc")
    bench.cancel(b)
    assert (b.status, b.started_at, bench.call("b").was_canceled) == ("canceled", None, True)
    bench.call("a").answer()
    assert (a.status, c.status) == ("succeeded", "starting")
    bench.call("b").cancel()
    assert (b.status, c.status) == ("canceled", "processing")
    bench.call("c").answer()
    assert (c.status, bench.deployment.workers.permits.idle) == ("succeeded", 1)


async def test_a_withdrawn_call_is_none_that_has_run() -> None:
    bench = await Bench().start()
    _, b = bench.ask("a"), bench.ask("b")
    bench.cancel(b)
    bench.call("a").answer()
    bench.call("b").cancel()
    assert bench.record.counts.runs == 1


async def test_one_whose_time_is_nearly_up_waits_in_the_queue() -> None:
    bench = await Bench().start()
    bench.ask("a")
    bench.ask("hurried", SchedulePolicy(0.5))
    assert bench.begun() == [("a", False)]
    bench.call("a").answer()
    assert bench.begun() == [("a", False), ("hurried", False)]


async def test_what_lay_in_a_worker_that_died_is_the_first_to_run_again() -> None:
    bench = await Bench(restarts=RestartPolicy(first_delay=0)).start()
    a, b, c = (bench.ask(text) for text in "abc")
    bench.workers[0].die()
    assert (a.status, b.status, c.status) == ("failed", "starting", "starting")
    await until_ready(bench, 2)
    async with asyncio.timeout(40):
        while not bench.workers[1].calls:  # noqa: ASYNC110 - the queue is looked at in the next turn
            await asyncio.sleep(0)
    assert bench.begun(1) == [("b", False), ("c", True)]


async def test_with_replicas_the_one_that_has_been_busy_longest_is_next() -> None:
    bench = await Bench(replicas=2).start()
    for text in "abcde":
        bench.ask(text)
    assert bench.begun(0) == [("a", False), ("c", True)]
    assert bench.begun(1) == [("b", False), ("d", True)]
    bench.call("b").answer()
    assert bench.begun(1)[2:] == [("e", True)]


async def test_with_replicas_nobody_waits_behind_a_run_who_could_have_the_next_free_worker() -> None:
    bench = await Bench(replicas=2).start()
    for text in "abc":
        bench.ask(text)
    assert [bench.begun(0), bench.begun(1)] == [[("a", False)], [("b", False)]]
    bench.call("b").answer()
    assert bench.begun(1) == [("b", False), ("c", False)]


async def test_behind_runs_that_take_long_nothing_waits() -> None:
    bench = await Bench(replicas=2).start()
    bench.deployment.scheduler.pace.note(0.5)
    for text in "abc":
        bench.ask(text)
    assert [bench.begun(0), bench.begun(1)] == [[("a", False)], [("b", False)]]
    bench.call("b").answer()
    assert bench.begun(1) == [("b", False), ("c", False)]


async def test_with_levels_nothing_is_prefetched_that_a_higher_one_might_overtake() -> None:
    bench = await Bench(priorities=LEVELS).start()
    bench.ask("a")
    bench.ask("low", SchedulePolicy(priority=2))
    bench.ask("high", SchedulePolicy(priority=1))
    assert bench.begun() == [("a", False)]
    bench.call("a").answer()
    assert bench.begun() == [("a", False), ("high", False)]


async def test_a_worker_that_wants_none_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandWorker, "may_prefetch", False)
    bench = await Bench().start()
    bench.ask("a")
    bench.ask("b")
    assert bench.begun() == [("a", False)]


async def test_a_call_that_is_being_canceled_is_followed_by_none() -> None:
    bench = await Bench().start()
    a = bench.ask("a")
    bench.cancel(a)
    bench.ask("b")
    assert bench.begun() == [("a", False)]
    bench.call("a").cancel()
    assert bench.begun() == [("a", False), ("b", False)]


async def test_files_of_an_output_hold_no_slot_that_the_next_call_has_taken() -> None:
    bench = await Bench().start()
    a, b = bench.ask("a"), bench.ask("b")
    first = bench.call("a")
    first.open.clear()
    first.end([ItemEnd(0, Succeeded(b'"file"', 0.1), (FileRef("file", "/nowhere", "text/plain"),))])
    assert (a.is_terminal, b.status) == (False, "processing")
    bench.call("b").answer()
    assert (b.status, bench.deployment.workers.permits.idle) == ("succeeded", 1)
