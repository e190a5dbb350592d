"""The account of a run over a data set."""

from __future__ import annotations

import time

import pytest

from geartrain.cli.batch_view import Account, bound_of, summary
from geartrain.dataset.results import Result, Tally, Waits


def tally_of(waits: Waits, *, seconds: float = 10.0) -> Tally:
    tally = Tally(total=1)
    tally.add([Result(0, {}, b"1", "", 0.5)])
    tally.began = time.monotonic() - seconds
    tally.waits = waits
    return tally


@pytest.mark.parametrize(
    ("waits", "busy", "bound"),
    [
        (Waits(running=9), 0.95, "model"),
        (Waits(reading=8, running=1), 0.95, "model"),
        (Waits(reading=8, running=1), 0.3, "reading"),
        (Waits(reading=8, running=1), None, "reading"),
        (Waits(writing=6, reading=3), 0.3, "output"),
        (Waits(reading=2, running=1), 0.3, "geartrain"),
        (Waits(reading=1, running=8), 0.3, "geartrain"),
        (Waits(reading=1, running=8), None, "server"),
    ],
)
def test_a_run_is_bounded_by_what_rows_wait_for_most(waits: Waits, busy: float | None, bound: str) -> None:
    tally = tally_of(waits)
    assert bound_of(tally, busy) == bound
    lines = [line for line in summary(Account(tally, {}, busy=busy), to="-") if line.startswith("bounded by ")]
    assert len(lines) == 1
    assert ("the workers were busy" in lines[0]) == (busy is not None)
