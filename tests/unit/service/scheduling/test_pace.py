"""When a client that was refused should come again."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.calls import Canceled, ItemEnd, WorkerObserver
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits
from geartrain.service.scheduling.call import LONGEST_WAIT, Pace
from geartrain.service.scheduling.context import Clocks
from tests.support.deployments import deploy
from tests.support.hand_worker import HandCall, HandWorker


def test_the_average_forgets() -> None:
    pace = Pace()
    pace.note(8.0)
    assert pace.seconds == 8.0
    pace.note(16.0)
    assert pace.seconds == 9.0
    for _ in range(100):
        pace.note(2.0)
    assert pace.seconds == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "ahead", "slots", "wait"),
    [(0.0, 5, 1, 1), (0.01, 5, 1, 1), (2.0, 0, 1, 2), (2.0, 3, 1, 8), (2.0, 3, 4, 2), (2.5, 3, 4, 3), (2.0, 3, 0, 8)],
)
def test_the_wait_is_the_time_of_those_ahead(seconds: float, ahead: int, slots: int, wait: int) -> None:
    pace = Pace()
    pace.note(seconds)
    assert pace.retry_after(ahead, slots) == wait


def test_nobody_is_sent_away_for_days() -> None:
    pace = Pace()
    pace.note(100_000.0)
    assert pace.retry_after(100, 1) == LONGEST_WAIT


class Bench:
    """A model whose runs take as long as the test says."""

    def __init__(self, *, batch: int = 0, slots: int = 1, queue: int = 0) -> None:
        self.now = 1000.0  # on a clock that cannot be set
        self.wall = 5000.0
        policy = BatchPolicy(max_size=batch, learn_delay=False) if batch else None
        self.worker: HandWorker

        def spawn(observer: WorkerObserver) -> HandWorker:
            self.worker = HandWorker(observer, policy=policy, slots=slots)
            return self.worker

        settings = DeploymentSettings(limits=Limits(queue=queue))
        self.deployment = deploy(spawn, settings=settings, clocks=Clocks(lambda: self.wall, lambda: self.now))

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, **fields: object) -> None:
        self.deployment.create(NewPrediction(b'{"text": "a"}', **fields))  # type: ignore[arg-type]

    def refused(self, **fields: object) -> tuple[Code, int]:
        with pytest.raises(GeartrainError) as caught:
            self.ask(**fields)
        return caught.value.code, caught.value.retry_after

    def end(self, call: HandCall, after: float) -> None:
        self.now += after
        call.answer()


async def test_who_finds_no_slot_is_told_when() -> None:
    bench = await Bench().start()
    bench.ask()
    assert bench.refused() == (Code.AT_CAPACITY, 1)
    bench.end(bench.worker.calls[0], after=10.0)
    bench.ask(id="x")
    assert bench.refused() == (Code.AT_CAPACITY, 10)
    assert bench.refused(id="x") == (Code.CONFLICT, 10)


@pytest.mark.parametrize("jump", [100_000.0, -4000.0], ids=["forward", "back"])
async def test_clock_that_is_set_while_a_slot_is_in_use_changes_nothing(jump: float) -> None:
    bench = await Bench().start()
    bench.ask()
    bench.wall += jump
    bench.end(bench.worker.calls[0], after=10.0)
    assert bench.deployment.scheduler.pace.seconds == bench.deployment.scheduler.pace.longest == 10.0
    bench.ask()
    assert bench.refused() == (Code.AT_CAPACITY, 10)
    permits = bench.deployment.workers.permits
    assert permits.size - permits.idle == 1
    bench.end(bench.worker.calls[1], after=10.0)
    assert permits.idle == permits.size


async def test_who_finds_the_queue_full_is_told_when() -> None:
    bench = await Bench(slots=2).start()
    bench.ask()
    bench.end(bench.worker.calls[0], after=10.0)
    for _ in range(5):
        bench.ask(queue=3)
    assert bench.deployment.scheduler.waiting == 3
    assert bench.refused(queue=3) == (Code.QUEUE_FULL, 20), "four of ten seconds, two at a time"


async def test_the_time_of_a_batch_is_shared() -> None:
    bench = await Bench(batch=8, queue=3).start()
    bench.ask()
    bench.deployment.scheduler.serve()
    for _ in range(3):
        bench.ask()
    bench.end(bench.worker.calls[0], after=3.0)
    assert len(bench.worker.calls[1].input.items) == 3
    bench.end(bench.worker.calls[1], after=9.0)
    assert bench.deployment.scheduler.pace.seconds == 3.0


@pytest.mark.parametrize("jump", [100_000.0, -4000.0], ids=["forward", "back"])
@pytest.mark.parametrize("way", ["fails", "canceled", "canceled in a batch"])
async def test_clock_that_is_set_changes_no_time_of_a_run_without_success(way: str, jump: float) -> None:
    is_batch = way == "canceled in a batch"
    bench = await Bench(batch=2 if is_batch else 0, queue=2).start()
    prediction = bench.deployment.create(NewPrediction(b'{"text": "a"}', id="a", queue=2))
    if is_batch:
        bench.ask(queue=2)
    [call] = bench.worker.calls
    bench.wall += jump
    bench.now += 2.5
    if way == "fails":
        call.answer(bad=[0])
    else:
        bench.deployment.predictions.cancel("a", ANYONE)
    if way == "canceled":
        call.end([ItemEnd(0, Canceled())])
    assert prediction.is_terminal
    assert prediction.predict_time == 2.5
