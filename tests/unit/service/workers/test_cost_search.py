"""The search for the limit of a call's cost, with a worker in the test's process and a clock that its runs move."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from geartrain.authoring.decorators import batched
from geartrain.authoring.inputs import Input
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.predictions.events import LogSource
from geartrain.service.scheduling.context import no_folder
from geartrain.service.workers.cost_search import CostSearch
from geartrain.service.workers.warmup import Examples, WarmUp, WarmUpError
from tests.support.fakes import FakeWorker


class Observer:
    """Of a worker: what it hears is of no interest here."""

    def on_setup_log(self, _source: LogSource, _data: str) -> None: ...

    def on_loaded(self, _info: WorkerInfo) -> None: ...

    def on_own_metrics(self, _reports: Any) -> None: ...

    def on_model_call(self, _call: Any) -> None: ...

    def on_lost(self, _reason: str) -> None: ...


class Timed:
    """A model of texts and numbers. Its calls take the seconds of `seconds(costs)`; `calls` has the costs of each."""

    def __init__(self, seconds: Callable[[list[int]], float]) -> None:
        self.now = 0.0
        self.calls: list[list[int]] = []
        self.seconds = seconds

    def count(self, costs: list[int]) -> None:
        self.calls.append(costs)
        self.now += self.seconds(costs)


class Texts(Timed):
    @batched(max_size=16, cost="text + 4 * steps", max_cost="auto")
    async def run(
        self,
        text: list[str] = Input(max_length=100),  # noqa: B008
        steps: list[int] = Input(default=1, le=3),  # noqa: B008
    ) -> list[str]:
        self.count([len(each) + 4 * number for each, number in zip(text, steps, strict=True)])
        return text


class Padded(Timed):
    @batched(max_size=32, pad_to=(1, 8, 32), cost="text", max_cost="auto")
    async def run(self, text: list[str] = Input(max_length=10)) -> list[str]:  # noqa: B008
        self.count([len(each) for each in text])
        return text


def warm_up(*, shown: bytes = b'{"text":"12345678"}') -> WarmUp:
    return WarmUp(
        examples=Examples(shown=(shown,)), input_files=lambda _: pytest.fail("no files"), new_folder=no_folder
    )


def search(runner: Timed, **settings: Any) -> CostSearch:
    return CostSearch(warm_up(), labels={"model": "m"}, clock=lambda: runner.now, **settings)


async def limit(costs: CostSearch, runner: Timed, *, slots: int = 1, ends_at: float | None = None) -> float:
    """The limit that a search finds for a worker of the model."""
    observer = Observer()
    worker = FakeWorker(runner, observer, slots=slots)
    info = await worker.start()
    found = await asyncio.wait_for(costs.settle(worker, info, observer, ends_at=ends_at), 40)
    assert found.batching is not None
    assert found.batching.policy.auto_cost
    return found.batching.policy.max_cost


def sums(runner: Timed) -> list[int]:
    """What the calls cost, each once."""
    return list(dict.fromkeys(map(sum, runner.calls)))


async def test_inputs_grow_as_far_as_the_signature_allows() -> None:
    """First together, then each by itself: `steps` is no longer doubled when it would be above 3."""
    runner = Texts(lambda _: 0.1)
    assert await limit(search(runner), runner) == 16 * (64 + 8)
    assert sums(runner) == [12, 24, 48, 96, 192, 16 * (16 + 8), 16 * (32 + 8), 16 * (64 + 8)]


async def test_the_rate_decides() -> None:
    """Calls above 48 take longer in proportion: two of them are tried."""
    runner = Texts(lambda costs: max(0.1, sum(costs) / 480))
    assert await limit(search(runner), runner) == 48
    assert sums(runner) == [12, 24, 48, 96, 192]


async def test_a_small_gain_at_each_step_adds_up() -> None:
    runner = Texts(lambda costs: sum(costs) ** 0.95 / 1000)  # 3.5 % more in a second at each doubling
    assert await limit(search(runner), runner) == 16 * (32 + 8)
    assert sums(runner)[-1] == 16 * (64 + 8)


@pytest.mark.parametrize(
    ("single", "run_timeout", "most"),
    [(0.4, None, 1.0), (3.0, None, 6.0), (0.4, 2.0, 0.5), (0.4, 100.0, 1.0)],
)
async def test_time_decides(single: float, run_timeout: float | None, most: float) -> None:
    runner = Texts(lambda costs: single * (sum(costs) / 12) ** 0.7)
    costs = search(runner, run_timeout=run_timeout)
    held = [12 * 2**power for power in range(5) if single * 2 ** (0.7 * power) <= most]
    assert await limit(costs, runner) == held[-1]
    assert sums(runner) == [*held, 2 * held[-1]]


async def test_the_first_run_of_a_size_may_compile_something() -> None:
    seen: set[int] = set()

    def seconds(costs: list[int]) -> float:
        is_new = len(costs) not in seen
        seen.add(len(costs))
        return 2.0 if is_new else 0.1

    runner = Texts(seconds)
    assert await limit(search(runner), runner) == 16 * (64 + 8)


async def test_no_memory_for_a_call_keeps_the_one_before() -> None:
    def seconds(costs: list[int]) -> float:
        if sum(costs) > 100:
            raise MemoryError
        return 0.1

    runner = Texts(seconds)
    assert await limit(search(runner), runner) == 96
    assert sums(runner) == [12, 24, 48, 96, 192]


async def test_calls_that_are_filled_up_grow_by_these_sizes() -> None:
    """Two requests would cost what eight do, and look like a loss."""
    runner = Padded(lambda costs: {1: 0.01, 8: 0.06, 32: 0.2}[len(costs)])
    assert await limit(search(runner), runner) == 32 * 8
    assert sums(runner) == [8, 64, 256]


async def test_all_slots_are_busy() -> None:
    runner = Texts(lambda costs: max(0.1, sum(costs) / 480))
    assert await limit(search(runner), runner, slots=3) == 48
    assert runner.calls[:3] == [[12]] * 3


async def test_the_setup_limit_leaves_no_time(caplog: pytest.LogCaptureFixture) -> None:
    runner = Texts(lambda _: 0.1)
    assert await limit(search(runner), runner, ends_at=0.0) == 0
    assert runner.calls == []
    assert "the time for the search is over" in vars(caplog.records[-1])["reason"]


async def test_a_call_that_does_not_end_is_canceled(caplog: pytest.LogCaptureFixture) -> None:
    canceled: list[int] = []

    class Stuck(Texts):
        @batched(max_size=16, cost="text", max_cost="auto")
        async def run(self, text: list[str]) -> list[str]:  # type: ignore[override]
            if len(text) > 2:
                try:
                    await asyncio.Event().wait()
                finally:
                    canceled.append(len(text))
            self.count([len(each) for each in text])
            return text

    runner = Stuck(lambda _: 0.1)
    loop = asyncio.get_running_loop()
    with caplog.at_level(logging.INFO):
        assert await limit(search(runner), runner, ends_at=loop.time() + 1.0) == 16
    assert canceled == [4]
    assert "a call that costs 32 takes more than" in vars(caplog.records[-1])["stop"]


async def test_one_worker_searches_for_all() -> None:
    first, second = Texts(lambda _: 0.1), Texts(lambda _: 0.1)
    costs = search(first)
    found = await asyncio.gather(limit(costs, first), limit(costs, second))
    assert found[0] == found[1] > 0
    assert second.calls == []
    assert await limit(costs, second) == found[0]
    assert second.calls == []


async def test_a_worker_that_dies_is_no_measure() -> None:
    runner = Texts(lambda _: 0.1)
    observer = Observer()
    worker = FakeWorker(runner, observer)
    info = await worker.start()
    costs = search(runner)

    def die(_costs: list[int]) -> float:
        worker.die("signal 9")
        return 0.1

    runner.seconds = die
    with pytest.raises(WarmUpError, match="a call of 1 requests that cost 12 could not be run: Worker crashed"):
        await asyncio.wait_for(costs.settle(worker, info, observer, ends_at=None), 40)


async def test_other_models_are_left_alone() -> None:
    class Plain(Timed):
        @batched(cost="text", max_cost=9)
        async def run(self, text: list[str]) -> list[str]:
            self.count([])
            return text

    runner = Plain(lambda _: 0.1)
    observer = Observer()
    worker = FakeWorker(runner, observer)
    info = await worker.start()
    assert await search(runner).settle(worker, info, observer, ends_at=None) is info
    assert runner.calls == []
