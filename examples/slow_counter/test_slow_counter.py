"""Tests of the model beside this file: `pytest examples/slow_counter`."""

from pathlib import Path

import pytest

from geartrain import Client
from geartrain.testing import InvalidInputError, call, runner, serve

MODEL = Path(__file__).parent


def test_counts() -> None:
    assert call(MODEL, up_to=3, pause=0) == [1, 2, 3]


def test_stops_where_it_is_canceled() -> None:
    with runner(MODEL) as run:
        numbers = run.stream(up_to=100, pause=0)
        assert [next(numbers), next(numbers)] == [1, 2]
        numbers.cancel()
        assert run.logs.endswith("canceled at 2\n")


def test_has_to_count_to_one_at_least() -> None:
    with pytest.raises(InvalidInputError, match="0 is less than the minimum of 1"):
        call(MODEL, up_to=0)


def test_is_served() -> None:
    with serve(MODEL) as server, Client(server.url) as client:
        assert list(client.stream(up_to=2, pause=0)) == [1, 2]
