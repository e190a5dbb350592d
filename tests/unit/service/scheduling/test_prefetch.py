"""The next call of a sync model lies ready in its worker, and nobody is worse off for it."""

from __future__ import annotations

import asyncio

import pytest

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.calls import FileRef, ItemEnd, Succeeded, WorkerObserver
from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits, VersionRecord
from geartrain.service.scheduling.call import Lookahead
from geartrain.service.scheduling.context import Clocks
from geartrain.service.workers.pool import RestartPolicy
from tests.support.deployments import deploy
from tests.support.hand_worker import HandCall, HandWorker

LEVELS = Priorities((Level(), Level()))


class Bench:
    """A model that takes one prediction at a time, with workers that a test moves by hand."""

    def __init__(
        self,
        *,
        replicas: int = 1,
        restarts: RestartPolicy | None = None,
        priorities: Priorities = Priorities(),  # noqa: B008 - frozen
        max_size: int = 1,
    ) -> None:
        self._policy = BatchPolicy(max_size=max_size) if max_size > 1 else None
        self.workers: list[HandWorker] = []
        self.record = VersionRecord("m", "1")
        limits = Limits(queue=100, priorities=priorities)
        settings = DeploymentSettings(replicas=replicas, restarts=restarts, limits=limits)
        # By this clock no run takes long: behind those that do nothing is prefetched.
        self.deployment = deploy(self._spawn, record=self.record, settings=settings, clocks=Clocks(steady=lambda: 1.0))

    def _spawn(self, observer: WorkerObserver) -> HandWorker:
        self.workers.append(HandWorker(observer, policy=self._policy))
        return self.workers[-1]

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, text: str, schedule: SchedulePolicy = SchedulePolicy()) -> Prediction:  # noqa: B008 - frozen
        return self.deployment.create(NewPrediction(b'{"text": "%b"}' % text.encode(), schedule=schedule))

    def learn(self, seconds: float) -> None:
        """Run one prediction that takes so long."""
        prediction = self.ask("warm")
        self.call("warm").answer(took=seconds)
        assert prediction.status == "succeeded"
        for worker in self.workers:
            worker.calls.clear()

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


# several calls


def ahead(bench: Bench) -> int:
    """The number of calls that lie behind the one that runs."""
    return sum(prefetch for _, prefetch in bench.begun()) - sum(call.is_over for call in bench.workers[0].calls)


async def test_behind_short_runs_lie_as_many_as_take_half_a_millisecond() -> None:
    bench = await Bench().start()
    bench.learn(100e-6)
    predictions = [bench.ask(text) for text in "abcdefghijkl"]
    assert bench.begun() == [("a", False), *((text, True) for text in "bcdef")]
    assert bench.deployment.scheduler.waiting == 11
    for text in "abc":
        bench.call(text).answer(took=100e-6)
    assert [text for text, _ in bench.begun()] == list("abcdefghi")
    for text in "defghijkl":
        bench.call(text).answer(took=100e-6)
    assert [each.output for each in predictions] == [b'"%b"' % text.encode() for text in "ABCDEFGHIJKL"]
    assert (bench.deployment.scheduler.waiting, bench.deployment.workers.permits.idle) == (0, 1)


async def test_a_heavy_one_holds_up_those_behind_it_until_it_is_the_first_to_lie_there() -> None:
    bench = await Bench().start()
    bench.learn(100e-6)
    heavy = "x" * 60_000
    texts = ["a", "b", heavy, "d", "e"]
    predictions = [bench.ask(text) for text in texts]
    assert bench.begun() == [("a", False), ("b", True)]
    bench.call("a").answer(took=100e-6)
    assert bench.begun()[2:] == [(heavy, True), ("d", True), ("e", True)]
    for text in texts[1:]:
        bench.call(text).answer(took=100e-6)
    assert [each.status for each in predictions] == ["succeeded"] * 5
    assert (bench.deployment.scheduler.waiting, bench.deployment.workers.permits.idle) == (0, 1)


async def test_behind_a_run_that_was_long_lies_one_again() -> None:
    bench = await Bench().start()
    bench.learn(100e-6)
    for text in "abcdefghijkl":
        bench.ask(text)
    assert ahead(bench) == 5
    bench.call("a").answer(took=0.01)
    for text in "bcd":
        bench.call(text).answer(took=0.01)
        assert [text for text, _ in bench.begun()] == list("abcdef")
    for text, following in zip("efg", "ghi", strict=True):
        bench.call(text).answer(took=0.01)
        assert bench.begun()[-1] == (following, True)
        assert ahead(bench) == 1


async def test_canceled_ones_among_several_are_withdrawn_and_the_others_run_in_their_order() -> None:
    bench = await Bench().start()
    bench.learn(100e-6)
    predictions = [bench.ask(text) for text in "abcde"]
    bench.cancel(predictions[1])
    bench.cancel(predictions[3])
    assert [bench.call(text).was_withdrawn for text in "abcde"] == [False, True, False, True, False]
    for text in "abcde":
        call = bench.call(text)
        call.cancel() if call.was_withdrawn else call.answer(took=100e-6)
    assert [each.status for each in predictions] == ["succeeded", "canceled", "succeeded", "canceled", "succeeded"]
    assert bench.record.counts.runs == 4
    assert (bench.deployment.scheduler.waiting, bench.deployment.workers.permits.idle) == (0, 1)


async def test_several_that_lay_in_a_worker_that_died_run_again_in_their_order_before_all_others() -> None:
    bench = await Bench(restarts=RestartPolicy(first_delay=0)).start()
    bench.learn(100e-6)
    predictions = [bench.ask(text) for text in "abcdefgh"]
    bench.cancel(predictions[2])
    assert ahead(bench) == 5
    bench.workers[0].die()
    assert [each.status for each in predictions] == ["failed", "starting", "canceled", *["starting"] * 5]
    await until_ready(bench, 2)
    for text in "bdefgh":
        async with asyncio.timeout(40):
            while not any(call.texts == [text] for call in bench.workers[1].calls):  # noqa: ASYNC110 - the next turn
                await asyncio.sleep(0)
        bench.call(text).answer(took=100e-6)
    assert [text for text, _ in bench.begun(1)] == list("bdefgh")
    assert (bench.deployment.scheduler.waiting, bench.deployment.workers.permits.idle) == (0, 1)


@pytest.mark.parametrize(("size", "number"), [(13_000, 5), (14_000, 1), (131_000, 1), (132_000, 0)])
async def test_several_are_small_enough_for_the_socket_together(size: int, number: int) -> None:
    """64 KiB of them, or a single one of 128 KiB at most."""
    bench = await Bench().start()
    bench.learn(100e-6)
    bench.ask("a")
    for _ in range(8):
        bench.ask("x" * size)
    assert ahead(bench) == number


async def test_with_replicas_short_runs_lie_one_behind_each() -> None:
    bench = await Bench(replicas=2).start()
    bench.learn(100e-6)
    for text in "abcdefgh":
        bench.ask(text)
    assert [ahead(bench), len(bench.workers[1].calls)] == [1, 2]


async def test_of_batches_lies_one_behind_the_run() -> None:
    bench = await Bench(max_size=2).start()
    bench.deployment.scheduler.lookahead.note(100e-6)
    for text in "abcdefgh":
        bench.ask(text)
    await asyncio.sleep(0)
    assert [call.texts for call in bench.workers[0].calls] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("seconds", [1e-6, 10e-6, 20e-6, 90e-6, 240e-6, 260e-6, 1e-3, 0.1])
def test_no_more_lie_ahead_than_run_within_half_a_millisecond(seconds: float) -> None:
    lookahead = Lookahead()
    assert lookahead.depth == 1
    for _ in range(100):
        lookahead.note(seconds)
    assert lookahead.depth == max(1, min(32, int(0.5e-3 / seconds + 1e-6)))


def test_one_long_run_in_ten_leaves_little_ahead_of_the_next_one() -> None:
    """What lay ahead of a long run by the clock of a simulation: it has been learned after one."""
    lookahead = Lookahead()
    after_long: list[int] = []
    for number in range(200):
        took = 5e-3 if number % 10 == 9 else 30e-6
        lookahead.note(took)
        if took > 1e-3:
            after_long.append(lookahead.depth)
    assert set(after_long) == {1}
