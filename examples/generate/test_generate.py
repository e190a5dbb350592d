"""Tests of the model beside this file: `pytest`."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.testing import InvalidInputError, runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_continues_the_text(run: Run) -> None:
    pieces = run(prompt="The north wind", max_tokens=12)
    assert "".join(pieces).startswith(" and the sun disputed which of them was the stronger.")
    assert len(pieces) > 5
    assert run.metrics["generated_tokens"] == 12
    assert run.metrics["time_to_first_token"] > 0


def test_seed_decides_what_is_drawn(run: Run) -> None:
    first, second = (run(prompt="Along", temperature=2, seed=7, max_tokens=20) for _ in range(2))
    assert first == second != run(prompt="Along", temperature=2, seed=8, max_tokens=20)


def test_cancel_stops_the_model(run: Run) -> None:
    slow = run.instance.model.register_forward_hook(lambda *_: time.sleep(0.01))  # as a large model is
    pieces = run.stream(prompt="The north", max_tokens=150)
    assert next(pieces)
    pieces.cancel()
    slow.remove()
    assert run.metrics["generated_tokens"] < 75


def test_prompt_that_is_too_long_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="this model takes fewer than 256"):
        run(prompt="sun " * 300)
    with pytest.raises(InvalidInputError, match="prompt"):
        run(prompt="")
