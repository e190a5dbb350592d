"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

import pytest

from geartrain import ItemError
from geartrain.testing import call, runner

MODEL = Path(__file__).parent


def test_counts() -> None:
    assert call(MODEL, text="two words") == {"words": 2, "letters": 8}


def test_requests_share_a_call() -> None:
    with runner(MODEL) as run:
        first, empty, last = run.batch([{"text": "a"}, {"text": " "}, {"text": "b c"}])
        assert (first["words"], last["words"]) == (1, 2)
        assert str(empty) == "the text has no words"
        assert run.logs.startswith("a batch of 3\n")


def test_empty_text_is_refused() -> None:
    with pytest.raises(ItemError):
        call(MODEL, text="")
