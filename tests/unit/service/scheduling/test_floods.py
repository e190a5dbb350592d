"""A run that gives more than a log holds before the one who has created its prediction can read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.calls import CallInput, CallListener, ItemEnd, ItemEvent, Succeeded, WorkerObserver
from geartrain.domain.predictions.events import (
    DEFAULT_CAPACITY,
    MAX_PRINTED,
    Completed,
    Event,
    EventsDroppedError,
    Log,
    Output,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.readers import EventReader, LaggedError
from tests.support.deployments import deploy
from tests.support.hand_worker import HandWorker

STREAM = Signature((InputField("text", TypeSpec("string")),), OutputSpec(TypeSpec("string"), mode="iterator"))
FLOOD = 20 * DEFAULT_CAPACITY
LIMIT = 1_000_000  # bytes of output

_texts = itertools.count()


class FloodingWorker(HandWorker):
    """Gives all that it has before `run` returns: the server awaits the call of a single client on the spot."""

    def __init__(self, observer: WorkerObserver) -> None:
        super().__init__(observer, signature=STREAM)
        self.events: Sequence[Event] = ()
        self.is_ended = True

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Flood the listener."""
        super().run(slot, call, listener)
        for event in self.events:
            assert isinstance(event, Output | Log)
            listener.on_event(ItemEvent(0, event))
        if self.is_ended:
            self.end()

    def end(self) -> None:
        """End the run well."""
        current = self._current(0)
        assert current is not None
        current.open.clear()
        current.end([ItemEnd(0, Succeeded(None, 0.1))])


async def _served(cache: CacheSettings | None = None) -> tuple[Deployment, FloodingWorker]:
    """Start a model whose next call is taken for that of a single client."""
    workers: list[FloodingWorker] = []

    def spawn(observer: WorkerObserver) -> FloodingWorker:
        workers.append(FloodingWorker(observer))
        return workers[0]

    limits = Limits(queue=0, max_output_size=LIMIT)
    deployment = deploy(spawn, settings=DeploymentSettings(limits=limits, cache=cache))
    await deployment.start()
    for _ in range(3):
        _create(deployment)
    return deployment, workers[0]


def _create(deployment: Deployment) -> Prediction:
    return deployment.create(NewPrediction(input=b'{"text":"%d"}' % next(_texts)))


@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("cache", [None, CacheSettings()], ids=["alone", "shared"])
async def test_the_creator_reads_all_that_came_before_it_could_join(
    cache: CacheSettings | None, *, is_ended: bool
) -> None:
    deployment, worker = await _served(cache)
    worker.events, worker.is_ended = [Output(b"1", index) for index in range(FLOOD)], is_ended
    prediction = _create(deployment)
    reader = EventReader(prediction, backlog=2 * FLOOD)
    await asyncio.sleep(0)
    assert prediction.log.next_index - prediction.log.first_index <= DEFAULT_CAPACITY  # what is kept has its bound
    assert prediction.log.memory < 3 * DEFAULT_CAPACITY * 100
    with pytest.raises(EventsDroppedError):
        EventReader(prediction, 0)
    if not is_ended:
        worker.end()
    events = await reader.batch()
    assert [event for event in events if isinstance(event, Output)] == worker.events
    if type(events[-1]) is not Completed:
        events = await reader.batch()
    assert type(events[-1]) is Completed


async def test_long_prints_before_the_creator_joins_are_its_own_and_not_kept() -> None:
    deployment, worker = await _served()
    worker.events = [Log("stdout", f"{number:2}" * (MAX_PRINTED // 32)) for number in range(40)]
    prediction = _create(deployment)
    reader = EventReader(prediction)
    await asyncio.sleep(0)
    assert prediction.log.memory <= 1.1 * MAX_PRINTED
    events = await reader.batch()
    assert [event for event in events if isinstance(event, Log)] == worker.events


@pytest.mark.parametrize("is_ended", [True, False])
async def test_a_run_that_was_stopped_before_its_creator_joins_tells_why(*, is_ended: bool) -> None:
    deployment, worker = await _served()
    worker.events, worker.is_ended = [Output(b'"%b"' % (b"a" * LIMIT), 0)], is_ended
    prediction = _create(deployment)
    reader = EventReader(prediction)
    if not is_ended:
        worker.end()
    events = await reader.batch()
    assert type(events[-1]) is Completed
    assert prediction.status is Status.FAILED
    assert "--max-output-size" in (prediction.error or "")


async def test_a_reader_that_joins_too_late_is_told_by_its_first_batch() -> None:
    deployment, worker = await _served()
    worker.events = [Output(b"1", index) for index in range(FLOOD)]
    prediction = _create(deployment)
    await asyncio.sleep(0)
    with pytest.raises(LaggedError):
        await EventReader(prediction).batch()
