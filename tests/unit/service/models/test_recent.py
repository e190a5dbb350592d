"""Finished predictions are kept for a while, and never too many of them."""

from __future__ import annotations

import asyncio
import weakref

from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.service.models.predictions import MAX_BYTES, MAX_RECENT, RecentPredictions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched(bytearray):
    """An output that weak references can be made of."""


def make(name: str, size: int = 2) -> Prediction:
    prediction = Prediction(PredictionRecord(name, 1.0, 1.0), b"{}", 1.0)
    prediction.start(1.0)
    prediction.succeed(b"x" * size, at=2.0)
    return prediction


async def test_a_prediction_is_kept_for_its_time() -> None:
    clock = Clock()
    recent = RecentPredictions(5.0, clock=clock)
    prediction = make("a")
    recent.add(prediction)
    clock.now += 4.9
    assert recent.find("a") is prediction
    clock.now += 0.2
    assert recent.find("a") is None


async def test_the_oldest_goes_when_there_are_too_many() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    for number in range(MAX_RECENT + 1):
        recent.add(make(str(number)))
    assert recent.find("0") is None
    assert recent.find("1") is not None


async def test_the_oldest_goes_when_they_are_too_large() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    recent.add(make("a", MAX_BYTES // 2))
    recent.add(make("b", MAX_BYTES // 2))
    assert recent.find("a") is None
    assert recent.find("b") is not None


async def test_the_latest_of_an_id_counts() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    first, second = make("a"), make("a")
    recent.add(first)
    recent.add(second)
    assert recent.find("a") is second


async def test_zero_seconds_keep_nothing() -> None:
    recent = RecentPredictions(0.0, clock=Clock())
    recent.add(make("a"))
    assert recent.find("a") is None


async def test_s4_the_timer_lets_go_of_what_is_past_its_time() -> None:
    recent = RecentPredictions(0.05)
    prediction, output = make("a"), Watched(b"x")
    gone = asyncio.Event()
    weakref.finalize(output, gone.set)
    prediction.chunks.append(output)
    recent.add(prediction)
    del prediction, output
    async with asyncio.timeout(10):
        await gone.wait()


async def test_s4_all_that_is_kept_is_counted_at_its_end() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    for number in range(20):
        prediction = Prediction(PredictionRecord(str(number), 1.0, 1.0), b"{}", 1.0)
        prediction.start(1.0)
        prediction.add_log("stdout", "x" * (MAX_BYTES // 16))
        recent.add(prediction)  # before it has ended, as servers do
        prediction.add_output(b"x" * (MAX_BYTES // 16))
        prediction.add_metric("text", "x" * 1000, "replace")
        prediction.succeed(None, at=2.0)
    kept = [number for number in range(20) if recent.find(str(number)) is not None]
    assert kept == list(range(20 - len(kept), 20))
    assert 4 <= len(kept) <= 8


async def test_s4_error_of_a_failed_run_is_counted() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    for number in range(20):
        prediction = Prediction(PredictionRecord(str(number), 1.0, 1.0), b"{}", 1.0)
        prediction.start(1.0)
        prediction.fail("x" * (MAX_BYTES // 8), at=2.0)
        recent.add(prediction)
    assert [number for number in range(20) if recent.find(str(number)) is not None] == list(range(13, 20))


async def test_s4_the_latest_is_kept_whatever_its_size_is() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    recent.add(make("small"))
    recent.add(make("large", MAX_BYTES + 1))
    assert recent.find("small") is None
    assert recent.find("large") is not None
