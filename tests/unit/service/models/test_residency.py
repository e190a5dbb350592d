"""Models that are loaded by requests, and rest without work or for want of memory. No process, and no clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import VersionState
from geartrain.service.models import information
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.models.repository import Step
from geartrain.service.models.residency import ResidencyPolicy
from geartrain.service.models.waking import ModelAsleepError, Waking, when_loaded
from geartrain.service.readers import completion
from geartrain.service.scheduling.context import Clocks
from tests.support.deployments import FakeRepository, deploy
from tests.support.fakes import FakeWorker

NEVER = 10_000.0  # seconds


class Runner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.setups = 0
        self.go = asyncio.Event()
        self.go.set()
        self.fails = False

    async def setup(self, _say: Any) -> None:
        self.setups += 1
        await self.go.wait()
        if self.fails:
            raise RuntimeError("no memory")

    async def run(self) -> int:
        await self.gate.wait()
        return self.setups


class House:
    """Models by name, and a catalogue of them, with a clock that the test turns."""

    def __init__(self, *names: str, policy: ResidencyPolicy) -> None:
        self.runners = {name: Runner() for name in names}
        self.steps: list[Step] = []
        self.now = 1000.0
        self.repository = FakeRepository(**{name: self._maker(name) for name in names})
        self.catalogue = Catalogue(self.repository, residency=policy, tell=self.steps.append)
        self.residency = self.catalogue.residency
        self.set_by = 0.0  # seconds by which the clock was set forward
        self.residency._clock = lambda: self.now
        self.residency._steady = lambda: self.now - self.set_by
        self.residency._ahead = 0.0
        self.repository.memory = self._memory  # type: ignore[method-assign]
        self.residency._measure = self._memory
        self.sizes: dict[str, int] = dict.fromkeys(names, 0)

    def _maker(self, name: str) -> Callable[[VersionRecord], Deployment]:
        return lambda record: deploy(
            lambda observer: FakeWorker(self.runners[name], observer), record=record, clocks=Clocks(lambda: self.now)
        )

    def _memory(self, name: str) -> int:
        return self.sizes[name] if self.state(name) is VersionState.READY else 0

    async def begin(self) -> None:
        self.catalogue.spawn(() if self.catalogue._policy.on_demand else None)
        self.catalogue.reconciler.begin()
        for name in self.runners:
            await self.loaded(name)

    async def loaded(self, name: str) -> None:
        loads = self.catalogue.entry(name).loading.tasks
        if loads:
            await asyncio.wait_for(asyncio.wait(loads), 40)

    def state(self, name: str) -> VersionState:
        return self.catalogue.entry(name).versions["1"].state

    def resting(self) -> list[str]:
        return [name for name in self.runners if self.state(name) is VersionState.RESTING]

    async def ask(self, name: str) -> bytes | None:
        """Ask as the transports do."""
        prediction = await when_loaded(lambda: self.catalogue.find(name).create(NewPrediction()), 10)
        await completion(prediction)
        return None if prediction.output is None else bytes(prediction.output)

    async def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        await self.residency.look()


@pytest.fixture
async def houses() -> AsyncIterator[Callable[..., House]]:
    made: list[House] = []

    def make(*names: str, **policy: Any) -> House:
        waiting = policy.pop("waiting", 100)
        made.append(House(*names, policy=ResidencyPolicy(**policy, waiting=waiting)))
        return made[-1]

    yield make
    for house in made:
        for runner in house.runners.values():
            runner.gate.set()
            runner.go.set()
        await house.residency.stop()
        await house.catalogue.reconciler.stop()
        assert not house.catalogue.reconciler.alive


Make = Callable[..., House]


def waking_of(house: House, name: str) -> Waking:
    waking = house.catalogue.entry(name).waking
    assert waking is not None
    return waking


async def test_a_request_loads_a_model_and_what_comes_meanwhile_waits(houses: Make) -> None:
    house = houses("a", "b", on_demand=True)
    await house.begin()
    assert house.resting() == ["a", "b"]
    assert house.catalogue.readiness.is_ready
    assert information.is_ready(house.catalogue, "a")
    house.runners["a"].go.clear()
    asking = [asyncio.ensure_future(house.ask("a")) for _ in range(2)]
    await until(lambda: waking_of(house, "a").waiting == 2 and house.runners["a"].setups == 1)
    assert house.state("a") is VersionState.WAKING
    assert house.catalogue.readiness.is_ready, "a model that wakes does not make the server unready"
    house.runners["a"].go.set()
    answers = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 40)
    assert b"1" in answers
    assert house.runners["a"].setups == 1
    assert house.resting() == ["b"]


async def test_so_many_may_wait_and_so_long(houses: Make) -> None:
    house = houses("a", on_demand=True, waiting=1)
    await house.begin()
    house.runners["a"].go.clear()
    asking = asyncio.ensure_future(house.ask("a"))
    await until(lambda: waking_of(house, "a").waiting == 1)
    asleep = asleep_of(house, "a")
    assert await code_of(asleep.wait()) is Code.QUEUE_FULL
    waking_of(house, "a")._limit = 2
    assert await code_of(asleep.wait(0.0)) is Code.TIMED_OUT
    house.runners["a"].go.set()
    assert await asking == b"1"


async def test_a_load_that_fails_is_told_to_who_waits(houses: Make) -> None:
    house = houses("a", on_demand=True)
    await house.begin()
    house.runners["a"].fails = True
    with pytest.raises(GeartrainError, match="setup\\(\\) failed: RuntimeError: no memory") as caught:
        await house.ask("a")
    assert caught.value.code is Code.NOT_READY
    assert house.state("a") is VersionState.FAILED
    assert not house.catalogue.readiness.is_ready


async def test_a_model_without_work_rests_and_comes_back(houses: Make) -> None:
    house = houses("a", idle=60.0)
    await house.begin()
    await house.look()
    await house.look(59)
    assert house.resting() == []
    await house.ask("a")
    await house.look(59)
    assert house.resting() == []
    await house.look(2)
    assert house.resting() == ["a"]
    assert house.steps[-1] == Step("unloaded", "a", "1", reason="no work for 61 s")
    assert information.statistics(house.catalogue, "a")[0].inference_count == 1
    assert await house.ask("a") == b"2"
    assert information.statistics(house.catalogue, "a")[0].inference_count == 2


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_clock_that_is_set_lets_a_model_rest_neither_at_once_nor_hours_later(houses: Make, jump: float) -> None:
    house = houses("a", idle=60.0)
    house.now = 10_000.0
    await house.begin()
    await house.ask("a")
    await house.look(1)
    house.now, house.set_by = house.now + jump, jump
    await house.look(1)
    assert house.resting() == []
    await house.look(58)
    assert house.resting() == []
    await house.look(3)
    assert house.resting() == ["a"]


async def test_work_keeps_a_model(houses: Make) -> None:
    house = houses("a", idle=60.0)
    await house.begin()
    house.runners["a"].gate.clear()
    asking = asyncio.ensure_future(house.ask("a"))
    await until(lambda: bool(house.catalogue.entry("a").predictions.live))
    await house.look(100)
    await house.look(100)
    assert house.resting() == []
    house.runners["a"].gate.set()
    await asking
    await house.look(59)
    assert house.resting() == [], "it has had work until now"
    await house.look(2)
    assert house.resting() == ["a"]


async def test_what_was_unloaded_by_a_request_is_not_loaded_by_one(houses: Make) -> None:
    house = houses("a", "b", on_demand=True)
    await house.begin()
    await house.catalogue.unload("a")
    with pytest.raises(GeartrainError) as caught:
        house.catalogue.find("a")
    assert not isinstance(caught.value, ModelAsleepError)
    await house.catalogue.load("b")
    assert house.state("b") is VersionState.READY


async def test_the_least_recently_used_makes_room(houses: Make) -> None:
    house = houses("a", "b", "c", on_demand=True, max_memory=250)
    house.sizes.update(a=100, b=100, c=100)
    await house.begin()
    for name in ("a", "b"):
        house.now += 1
        await house.ask(name)
        await house.look()
    house.now += 1
    await house.ask("a")
    await house.look()
    assert house.resting() == ["c"]
    house.now += 1
    await house.ask("c")  # its size is not known yet: 200 are in use, so it is loaded
    await house.look()
    assert house.resting() == ["b"]
    house.now += 1
    await house.ask("b")  # its size is known
    assert house.resting() == ["a"]


async def test_a_model_that_works_is_not_unloaded_for_another(houses: Make) -> None:
    house = houses("a", "b", on_demand=True, max_memory=150, idle=NEVER)
    house.sizes.update(a=100, b=100)
    await house.begin()
    await house.ask("b")
    await house.look()
    await house.ask("a")
    await house.look(1)
    assert house.resting() == ["b"]
    house.runners["a"].gate.clear()
    working = asyncio.ensure_future(house.ask("a"))
    await until(lambda: bool(house.catalogue.entry("a").predictions.live))
    asking = asyncio.ensure_future(house.ask("b"))
    await until(lambda: waking_of(house, "b").waiting == 1)
    await house.look(1)
    assert (house.state("a"), house.state("b")) == (VersionState.READY, VersionState.RESTING)
    house.runners["a"].gate.set()
    await working
    assert await asyncio.wait_for(asking, 40) == b"2"
    assert house.resting() == ["a"]


async def test_a_model_that_is_too_large_by_itself_stays(houses: Make, caplog: pytest.LogCaptureFixture) -> None:
    house = houses("a", max_memory=50)
    house.sizes["a"] = 100
    await house.begin()
    await house.look(1)
    await house.look(1)
    assert house.resting() == []
    assert caplog.text.count("the model 'a' alone uses") == 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)


def asleep_of(house: House, name: str) -> ModelAsleepError:
    with pytest.raises(ModelAsleepError) as caught:
        house.catalogue.find(name)
    return caught.value


async def code_of(waiting: Any) -> Code:
    with pytest.raises(GeartrainError) as caught:
        await waiting
    return caught.value.code
