"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

import pytest

from geartrain.testing import call, runner

MODEL = Path(__file__).parent


def test_line_without_a_training() -> None:
    assert call(MODEL, x=2) == 2.0


def test_training_makes_weights_that_the_model_takes() -> None:
    with runner(MODEL, mode="train") as train:
        weights = train(data=MODEL / "points.csv").weights
        assert train.metrics == {"points": 3}
    with runner(MODEL, weights=str(weights)) as run:
        assert run(x=10) == pytest.approx(21)
