"""Tests of the model beside this file: `pytest`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.testing import InvalidInputError, runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent
FLAT = {"area": 80, "rooms": 3, "district": "center", "balcony": True}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_rent_is_near_that_of_the_table(run: Run) -> None:
    assert run(**FLAT) == pytest.approx(80 * 14 + 60 + 3 * 15, rel=0.05)


def test_rows_of_several_requests_share_a_call(run: Run) -> None:
    center, west = run.batch([FLAT, {**FLAT, "district": "west"}])
    assert run.logs == "2 rows at once\n"
    assert center == run(**FLAT)
    assert west < 0.75 * center


@pytest.mark.parametrize(
    ("change", "place"), [({"district": "moon"}, "district"), ({"area": 5}, "area"), ({"rooms": "three"}, "rooms")]
)
def test_row_that_does_not_fit_is_refused(run: Run, change: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidInputError, match=place):
        run(**{**FLAT, **change})
