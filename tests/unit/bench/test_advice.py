"""What figures are said to mean, and when a search ends."""

from __future__ import annotations

import pytest

from geartrain.bench.advice import advise
from geartrain.bench.results import Fault, LevelResult
from geartrain.bench.server_figures import ServerFigures
from geartrain.bench.sweep import has_levelled_off
from tests.unit.bench.results import distribution, failing, level, report

FLAT = (level(1, 100), level(2, 101), level(4, 102))
BUSY = Fault("HTTP 409", 50, "busy")


def said(*levels: LevelResult, slots: int = 1, silence: str = "") -> str:
    return "\n".join(advise(report(*levels, slots=slots, silence=silence)))


def test_throughput_that_stops_rising() -> None:
    text = said(*FLAT)
    assert text.startswith("Throughput stops rising at a concurrency of 1: 100 a second, 99% of them within 20 ms.")
    assert "The model's concurrency is 1" in text
    assert "docs/batching.md" in text


def test_reason_is_what_bounds_it() -> None:
    assert "concurrency is 4: more requests only wait" in said(level(4, 100), *FLAT[1:], slots=4)
    assert "calls had 7.5 rows on average" in said(
        *[level(each, 100, server=ServerFigures(batch=distribution(7.5))) for each in (1, 2)]
    )
    assert "the client itself has no processor time left" in said(level(1, 100, client_cpu=0.9), level(2, 100))
    assert "The processors, or what the model itself waits for" in said(*FLAT, slots=8)


def test_throughput_that_still_rises() -> None:
    text = said(level(1, 100), level(8, 700))
    assert "still rises at a concurrency of 8: 700 a second. Measure on with --concurrency 8,16,32." in text


def test_one_level_says_nothing_of_the_throughput() -> None:
    assert said(level(1, 100)) == ""
    assert said() == ""


def test_failures_come_first() -> None:
    text = said(failing(1, 100, BUSY), level(2, 100))
    assert text.startswith("50 of 2050 requests failed")
    assert "`geartrain serve --queue`" in text
    assert "--queue" not in said(failing(1, 100, Fault("failed", 1, "no")))


def test_queue_client_and_silence_are_told() -> None:
    waiting = level(10, 100, server=ServerFigures(queue=distribution(0.08)))
    assert "At 10 at once a request waits in the server's queue for 80% of its time." in said(waiting)
    assert "The client used 90% of a processor at 1 at once" in said(level(1, 100, client_cpu=0.9))
    assert "no figures of the server itself: GET /metrics is answered with 401." in said(
        level(1, 100), silence="GET /metrics is answered with 401"
    )


def test_arrivals_that_are_too_many() -> None:
    assert "Of 200 requests a second 100 succeeded" in said(level(200, 100, kind="rate", unsent=1000))
    assert said(level(100, 100, kind="rate")) == ""


@pytest.mark.parametrize(
    ("levels", "ends"),
    [
        ((), False),
        ((level(1, 100),), False),
        ((level(1, 100), level(2, 104)), False),  # once may be chance
        (FLAT, True),
        ((level(1, 100), level(2, 90), level(4, 110)), False),
        ((level(1, 100), failing(2, 100, BUSY)), False),
        ((level(1, 100), failing(2, 100, Fault("HTTP 409", 200, "busy"))), True),
    ],
)
def test_search_ends_where_nothing_is_to_be_gained(levels: tuple[LevelResult, ...], ends: bool) -> None:
    assert has_levelled_off(list(levels)) is ends
