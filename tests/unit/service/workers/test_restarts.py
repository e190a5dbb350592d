"""When a crashed worker is followed by another."""

from __future__ import annotations

from geartrain.service.workers.pool import RestartPolicy, Restarts


def test_by_default_never() -> None:
    restarts = Restarts(None)
    assert restarts.next_delay("crash", lived=1) is None
    assert (restarts.count, restarts.note) == (0, "")


def test_the_pauses_grow_to_a_limit_and_the_row_ends() -> None:
    restarts = Restarts(RestartPolicy(limit=4, first_delay=1.0, longest_delay=3.0))
    delays = [restarts.next_delay(str(number), lived=1) for number in range(5)]
    assert delays == [1.0, 2.0, 3.0, 3.0, None]
    assert (restarts.count, restarts.last_reason) == (4, "3")
    assert restarts.note == "; no further restart: the limit of restarts in a row is 4"


def test_a_worker_that_lived_long_begins_a_new_row() -> None:
    restarts = Restarts(RestartPolicy(limit=1, first_delay=1.0, good_for=60.0))
    assert restarts.next_delay("crash", lived=0) == 1.0
    assert restarts.next_delay("crash", lived=61) == 1.0
    assert restarts.next_delay("crash", lived=59) is None
