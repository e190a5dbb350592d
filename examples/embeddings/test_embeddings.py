"""Tests of the model beside this file: `pytest`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from geartrain.testing import InvalidInputError, runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_like_meanings_have_like_vectors(run: Run) -> None:
    dog, puppy, stocks = run.batch([{"text": text} for text in ("A dog runs", "A puppy is running", "Stocks fell")])
    assert np.linalg.norm(dog) == pytest.approx(1)
    assert dog @ puppy > 0.7
    assert abs(dog @ stocks) < 0.2
    assert run.logs == "3 at once\n"


def test_batch_gives_what_single_requests_give(run: Run) -> None:
    texts = ("short", "a longer text, beside which the short one is padded")
    for text, vector in zip(texts, run.batch([{"text": text} for text in texts]), strict=True):
        assert run(text=text) == pytest.approx(vector, abs=1e-5)


def test_empty_text_is_refused(run: Run) -> None:
    with pytest.raises(InvalidInputError, match="text"):
        run(text="")
