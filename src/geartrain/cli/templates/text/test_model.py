"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

import pytest

from geartrain import Client
from geartrain.testing import InvalidInputError, call, runner, serve

MODEL = Path(__file__).parent


def test_greets() -> None:
    assert call(MODEL, name="Ada") == "Hello, Ada!"


def test_greets_several_times() -> None:
    with runner(MODEL) as run:  # setup() runs once
        assert run(name="Ada", times=2) == "Hello, Ada! Hello, Ada!"
        assert run.logs == "greeting Ada\n"


def test_empty_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="is shorter than 1 character"):
        call(MODEL, name="")


def test_over_http() -> None:
    with serve(MODEL) as server, Client(server.url) as client:  # a real server, on a free port
        assert client.predict(name="Ada") == "Hello, Ada!"
