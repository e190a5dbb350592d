"""Priorities in the service: what overtakes, what is refused, and what never reaches a worker."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.calls import CallInput, CallListener, WorkerObserver
from geartrain.domain.predictions.inference import NO_SCHEDULE, InferRequest, SchedulePolicy
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.domain.principal import ANYONE
from geartrain.service.models import inference
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits, VersionRecord
from geartrain.service.readers import completion
from geartrain.service.workers.pool import RestartPolicy
from tests.support.deployments import deploy
from tests.support.hand_worker import HandCall, HandWorker

HIGH: Final = SchedulePolicy(priority=1)
LOW: Final = SchedulePolicy(priority=2)
TWO: Final = Priorities((Level(), Level()), 2)


class Bench:
    """A model whose workers a test moves by hand. `batch`: how many predictions a call takes; 0 for no batches."""

    def __init__(
        self,
        *,
        priorities: Priorities = TWO,
        replicas: int = 1,
        slots: int = 1,
        batch: int = 0,
        queue: int = 100,
        restarts: RestartPolicy | None = None,
        make: Callable[..., HandWorker] = HandWorker,
    ) -> None:
        self.policy = BatchPolicy(max_size=batch, learn_delay=False) if batch else None
        self.workers: list[HandWorker] = []
        self.make = make

        def spawn(observer: WorkerObserver) -> HandWorker:
            self.workers.append(self.make(observer, policy=self.policy, slots=slots))
            return self.workers[-1]

        settings = DeploymentSettings(
            replicas=replicas, restarts=restarts, limits=Limits(queue=queue, priorities=priorities)
        )
        self.record = VersionRecord("m", "1")
        self.deployment = deploy(spawn, record=self.record, settings=settings)
        self.scheduler = self.deployment.scheduler

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, text: str, schedule: SchedulePolicy = NO_SCHEDULE, *, queue: int | None = None) -> Prediction:
        body = json.dumps({"text": text}).encode()
        return self.deployment.create(NewPrediction(body, schedule=schedule, queue=queue))

    def refused(self, schedule: SchedulePolicy, *, queue: int | None = None) -> GeartrainError:
        with pytest.raises(GeartrainError) as caught:
            self.ask("refused", schedule, queue=queue)
        return caught.value

    @property
    def calls(self) -> list[HandCall]:
        return [call for worker in self.workers for call in worker.calls]

    def answer_all(self) -> list[list[str]]:
        """Answer call after call; return what the calls were."""
        texts = []
        for call in self.workers[0].calls:  # which grows meanwhile
            texts.append(call.texts)
            if not call.is_over:
                call.answer()
        return texts


async def test_a_high_one_overtakes_those_who_wait() -> None:
    bench = await Bench().start()
    bench.ask("first", LOW)
    for text, schedule in [("l1", LOW), ("d1", NO_SCHEDULE), ("h1", HIGH), ("l2", LOW), ("h2", HIGH)]:
        bench.ask(text, schedule)
    assert bench.answer_all() == [["first"], ["h1"], ["h2"], ["l1"], ["d1"], ["l2"]]
    assert bench.scheduler.waiting == 0


async def test_a_batch_begins_with_the_high_ones_and_nothing_is_prefetched() -> None:
    bench = await Bench(batch=2).start()
    bench.ask("first", LOW)
    await asyncio.sleep(0)
    for text in ("l1", "l2", "l3", "l4"):
        bench.ask(text, LOW)
    await asyncio.sleep(0)
    assert len(bench.calls) == 1, "a call that lies ready could not be overtaken"
    bench.ask("h1", HIGH)
    assert bench.answer_all() == [["first"], ["h1", "l1"], ["l2", "l3"], ["l4"]]


async def test_without_a_priority_a_request_is_of_the_default_level() -> None:
    bench = await Bench(priorities=Priorities((Level(), Level(), Level()), 2)).start()
    bench.ask("first")
    bench.ask("l", SchedulePolicy(priority=3))
    bench.ask("d")
    bench.ask("h", HIGH)
    assert bench.answer_all() == [["first"], ["h"], ["d"], ["l"]]


async def test_the_priority_of_an_infer_request_counts() -> None:
    bench = await Bench().start()
    for text, schedule in [("first", LOW), ("l", LOW), ("h", HIGH)]:
        inference.create_from_json(
            bench.deployment, json.dumps({"text": text}).encode(), InferRequest((), schedule=schedule)
        )
    assert bench.answer_all() == [["first"], ["h"], ["l"]]


async def test_a_model_without_levels_passes_priorities_over() -> None:
    bench = await Bench(priorities=Priorities()).start()
    for text, priority in [("a", 2), ("b", 7), ("c", 1)]:
        bench.ask(text, SchedulePolicy(priority=priority))
    assert bench.answer_all() == [["a"], ["b"], ["c"]]


async def test_a_priority_out_of_range_is_refused() -> None:
    bench = await Bench().start()
    error = bench.refused(SchedulePolicy(priority=3))
    assert error.code is Code.INVALID_INPUT
    assert "'priority' is 3, out of range: this model takes 1, the highest, to 2" in error.message
    assert not bench.calls


async def test_a_full_level_refuses_and_the_others_do_not() -> None:
    bench = await Bench(priorities=Priorities((Level(), Level(max_queue=1)), 2)).start()
    bench.ask("first", LOW)
    low = bench.ask("l1", LOW)
    assert bench.refused(LOW).code is Code.AT_CAPACITY
    assert bench.refused(LOW, queue=50).code is Code.QUEUE_FULL
    assert bench.record.counts.faults["REJECTED"] == 2
    bench.ask("h1", HIGH)
    bench.ask("h2", HIGH)
    bench.deployment.predictions.cancel(low.id, ANYONE)
    bench.ask("l2", LOW)
    assert bench.answer_all() == [["first"], ["h1"], ["h2"], ["l2"]]


async def test_a_level_where_nobody_may_wait_takes_a_free_slot() -> None:
    bench = await Bench(priorities=Priorities((Level(), Level(max_queue=0)), 2)).start()
    bench.ask("l1", LOW)
    assert bench.refused(LOW).code is Code.AT_CAPACITY
    bench.calls[0].answer()
    bench.ask("l2", LOW)
    assert bench.calls[1].texts == ["l2"]


async def test_all_levels_share_the_room_of_the_queue() -> None:
    bench = await Bench(queue=2).start()
    for text in ("first", "l1", "l2"):
        bench.ask(text, LOW)
    assert bench.refused(HIGH).code is Code.AT_CAPACITY


async def test_who_is_refused_waits_for_those_of_its_own_level_and_above() -> None:
    bench = await Bench(priorities=Priorities((Level(max_queue=1), Level(max_queue=5)), 2)).start()
    bench.scheduler.pace.seconds = 10.0
    bench.ask("first")
    for _ in range(5):
        bench.ask("l", LOW)
    bench.ask("h", HIGH)
    assert bench.refused(HIGH).retry_after == 20
    assert bench.refused(LOW).retry_after == 70


@pytest.mark.parametrize("batch", [0, 4])
async def test_who_waits_longer_than_its_level_allows_is_refused_at_once(batch: int) -> None:
    bench = await Bench(priorities=Priorities((Level(timeout=0.02), Level()), 2), batch=batch).start()
    first = bench.ask("first", LOW)
    await asyncio.sleep(0)
    high, low = bench.ask("h", HIGH), bench.ask("l", LOW)
    async with asyncio.timeout(40):
        await completion(high)
    assert (high.status, high.error, high.error_code) == (
        "failed",
        "Request timeout expired",
        Code.QUEUE_TIMED_OUT,
    )
    assert (first.status, low.status, bench.scheduler.waiting) == ("processing", "starting", 1)
    assert bench.record.counts.faults["REJECTED"] == 1
    with pytest.raises(GeartrainError) as caught:
        inference.check_success(bench.deployment, high)
    assert caught.value.code is Code.QUEUE_TIMED_OUT
    assert bench.answer_all() == [["first"], ["l"]]


async def test_each_that_waits_too_long_is_refused_in_its_turn() -> None:
    levels = (Level(timeout=1.0), Level(timeout=0.2), Level(timeout=0.6))  # far apart, on a busy machine
    bench = await Bench(priorities=Priorities(levels, 3)).start()
    bench.ask("first")
    waiting = {level: bench.ask("w", SchedulePolicy(priority=level)) for level in (1, 2, 3)}
    ended: list[int] = []
    for level, prediction in waiting.items():
        prediction.log.listen_for_end(functools.partial(ended.append, level))
    async with asyncio.timeout(40):
        await asyncio.gather(*map(completion, waiting.values()))
    assert ended == [2, 3, 1]


async def test_who_may_continue_is_served_after_those_in_time() -> None:
    level = Level(timeout=0.01, on_timeout="continue")
    bench = await Bench(priorities=Priorities((level, Level()), 1)).start()
    bench.ask("first")
    bench.ask("late")
    bench.ask("low", LOW)
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.02
    while loop.time() < end:
        pass
    bench.ask("in time")
    await asyncio.sleep(0)
    assert bench.answer_all() == [["first"], ["in time"], ["late"], ["low"]]


async def test_the_time_of_the_request_counts_where_it_is_shorter() -> None:
    bench = await Bench(priorities=Priorities((Level(timeout=5.0, on_timeout="continue"),), 1)).start()
    bench.ask("first")
    late = bench.ask("late", SchedulePolicy(timeout=0.01, priority=1))
    async with asyncio.timeout(40):
        await completion(late)
    assert late.error_code is Code.TIMED_OUT
    assert bench.answer_all() == [["first"]]


async def test_those_whose_client_has_left_reach_no_worker() -> None:
    bench = await Bench().start()
    bench.ask("first")
    gone = [bench.ask("gone", schedule) for schedule in (HIGH, LOW)]
    bench.ask("here", LOW)
    for prediction in gone:
        bench.deployment.predictions.abandon(prediction)
    assert {prediction.status for prediction in gone} == {Status.CANCELED}
    assert bench.answer_all() == [["first"], ["here"]]


async def test_those_who_wait_are_refused_when_there_is_no_worker() -> None:
    bench = await Bench().start()
    bench.ask("first")
    waiting = [bench.ask("w", HIGH), bench.ask("w", LOW)]
    bench.workers[0].die()
    assert [prediction.error_code for prediction in waiting] == [Code.NOT_READY] * 2


async def test_levels_outlive_a_worker() -> None:
    bench = await Bench(restarts=RestartPolicy(first_delay=0)).start()
    bench.ask("first")
    predictions = [bench.ask("l", LOW), bench.ask("h", HIGH)]
    bench.workers[0].die()
    async with asyncio.timeout(40):
        while predictions[1].status != "processing":  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    assert predictions[0].status == "starting"
    bench.workers[1].calls[0].answer()
    assert predictions[0].status == "processing"
    bench.workers[1].calls[1].answer()


# a thousand requests of two priorities and random time limits


class Begin(NamedTuple):
    """The begin of a call: when, and of whom."""

    at: float
    names: list[str]


class BusyWorker(HandWorker):
    """Writes down when it begins what, and takes a random time for it."""

    diary: list[Begin]
    dice: random.Random
    longest: float  # seconds of a run

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Begin a call at once, and end it soon."""
        loop = asyncio.get_running_loop()
        self.diary.append(Begin(loop.time(), [json.loads(item.input)["text"] for item in call.items]))
        super().run(slot, call, listener)
        loop.call_later(self.dice.uniform(0, self.longest), self.end, self.calls[-1])

    @staticmethod
    def end(call: HandCall) -> None:
        """End a call as it was asked to."""
        if call.was_canceled:
            call.cancel()
        else:
            call.answer()


class Asked(NamedTuple):
    """A request: when it was admitted, as which of all, and what became of it."""

    prediction: Prediction
    is_high: bool
    at: float
    limit: float | None
    begins_before: int  # calls that had begun when it was admitted
    ends: list[int]  # how many calls had begun when it ended


@pytest.mark.parametrize(("replicas", "slots", "batch"), [(1, 1, 0), (2, 1, 0), (1, 3, 0), (1, 1, 4), (2, 1, 8)])
async def test_a_thousand_requests(replicas: int, slots: int, batch: int) -> None:
    dice = random.Random(f"{replicas} {slots} {batch}")  # noqa: S311 - of a test
    bench = Bench(replicas=replicas, slots=slots, batch=batch, queue=10_000, make=BusyWorker)
    diary: list[Begin] = []
    for worker in bench.workers:
        assert isinstance(worker, BusyWorker)
        worker.diary, worker.dice = diary, dice
        worker.longest = 0.003 * replicas * slots * max(batch, 1)
    await bench.start()
    loop = asyncio.get_running_loop()
    asked: dict[str, Asked] = {}

    def ask(name: str) -> None:
        limit = dice.choice([None, dice.uniform(0.0005, 0.3)])
        is_high = dice.random() < 0.3
        schedule = SchedulePolicy(limit, priority=1 if is_high else 2)
        at, begins = loop.time(), len(diary)
        prediction = bench.ask(name, schedule)
        ends: list[int] = []
        asked[name] = Asked(prediction, is_high, at, limit, begins, ends)
        if prediction.is_terminal:
            ends.append(len(diary))
        else:
            prediction.log.listen_for_end(lambda: ends.append(len(diary)))
        if dice.random() < 0.05:
            loop.call_later(dice.uniform(0, 0.1), bench.deployment.predictions.abandon, prediction)

    names = (str(number) for number in range(1000))
    for size in [200, *[dice.randint(1, 30) for _ in range(200)]]:
        for name in itertools.islice(names, size):
            ask(name)
        await asyncio.sleep(dice.uniform(0, 0.01))
    assert len(asked) == 1000
    async with asyncio.timeout(40):
        await asyncio.gather(*(completion(each.prediction) for each in asked.values()))
    check_thousand(diary, asked)
    assert bench.scheduler.waiting == 0


def check_thousand(diary: list[Begin], asked: dict[str, Asked]) -> None:
    """No high one waits behind a low one that had not begun, and nobody who has timed out runs afterwards."""
    call_of = {name: number for number, begin in enumerate(diary) for name in begin.names}
    assert len(call_of) == sum(len(begin.names) for begin in diary), "nobody runs twice"
    highs = [(name, each) for name, each in asked.items() if each.is_high]
    for name, low in asked.items():
        if low.is_high or name not in call_of:
            continue
        mine = call_of[name]
        for other, high in highs:
            waited = high.begins_before <= mine < call_of.get(other, high.ends[0])
            in_time = high.limit is None or diary[mine].at < high.at + high.limit
            assert not (waited and in_time), f"the low {name} has begun in {diary[mine]}, and {high} waited"
    for name, each in asked.items():
        began = name in call_of
        assert not began or call_of[name] < each.ends[0], "nobody begins after its end"
        assert began or each.prediction.status is not Status.SUCCEEDED
        assert each.limit is not None or each.prediction.error_code is not Code.TIMED_OUT
    ends = [(each.prediction.error_code, name in call_of) for name, each in asked.items()]
    assert ends.count((Code.TIMED_OUT, False)) > 50
    assert ends.count((None, True)) > 300
