"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

from geartrain.testing import call, runner

MODEL = Path(__file__).parent


def test_says_every_word() -> None:
    assert call(MODEL, prompt="one two", pause=0) == ["one ", "two "]


def test_can_be_canceled() -> None:
    with runner(MODEL) as run:
        words = run.stream(prompt="one two three", pause=0)
        assert next(words) == "one "
        words.cancel()
        assert list(words) == []
        assert run.logs == "done\n"
