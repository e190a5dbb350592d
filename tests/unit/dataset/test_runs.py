"""The number of rows that may be on their way at once."""

from __future__ import annotations

import pytest

from geartrain.dataset.runs import Window


class Clock:
    """A clock that is set."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("rows", "seconds", "wanted"),
    [(10, 10.0, 512), (512, 30.0, 512), (600, 10.0, 1800), (9000, 100.0, 2700), (20_000, 1.0, 4096), (7, 0.0, 4096)],
)
def test_as_many_rows_are_sorted_as_run_in_half_a_minute(rows: int, seconds: float, wanted: int) -> None:
    clock = Clock()
    window = Window(512, 4096, clock=clock)
    assert window.rows == 512
    window.begin()
    assert window.rows == 512
    window.end(rows)
    clock.now += seconds
    window.begin()  # later rows do not begin it anew
    assert window.rows == wanted


def test_more_workers_than_that_have_their_rows() -> None:
    window = Window(8192, 4096, clock=Clock())
    window.begin()
    window.end(1)
    assert window.rows == 8192
