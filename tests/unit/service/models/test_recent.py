"""Finished predictions are kept for a while, and never too many of them."""

from __future__ import annotations

from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.record import PredictionRecord
from geartrain.service.models.recent import MAX_BYTES, MAX_RECENT, RecentPredictions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(name: str, size: int = 2) -> Prediction:
    prediction = Prediction(PredictionRecord(name, 1.0, 1.0), b"{}", 1.0)
    prediction.start(1.0)
    prediction.succeed(b"x" * size, at=2.0)
    return prediction


def test_a_prediction_is_kept_for_its_time() -> None:
    clock = Clock()
    recent = RecentPredictions(5.0, clock=clock)
    prediction = make("a")
    recent.add(prediction)
    clock.now += 4.9
    assert recent.find("a") is prediction
    clock.now += 0.2
    assert recent.find("a") is None


def test_the_oldest_goes_when_there_are_too_many() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    for number in range(MAX_RECENT + 1):
        recent.add(make(str(number)))
    assert recent.find("0") is None
    assert recent.find("1") is not None


def test_the_oldest_goes_when_they_are_too_large() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    recent.add(make("a", MAX_BYTES // 2))
    recent.add(make("b", MAX_BYTES // 2))
    assert recent.find("a") is None
    assert recent.find("b") is not None


def test_the_latest_of_an_id_counts() -> None:
    recent = RecentPredictions(5.0, clock=Clock())
    first, second = make("a"), make("a")
    recent.add(first)
    recent.add(second)
    assert recent.find("a") is second


def test_zero_seconds_keep_nothing() -> None:
    recent = RecentPredictions(0.0, clock=Clock())
    recent.add(make("a"))
    assert recent.find("a") is None
