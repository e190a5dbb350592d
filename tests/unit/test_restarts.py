"""When a crashed worker is followed by another."""

from __future__ import annotations

from geartrain.service.restarts import RestartPolicy, Restarts


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_by_default_never() -> None:
    restarts = Restarts(None, Clock())
    assert restarts.next_delay("crash") is None
    assert restarts.count == 0


def test_the_pauses_grow_to_a_limit_and_the_row_ends() -> None:
    restarts = Restarts(RestartPolicy(limit=4, first_delay=1.0, longest_delay=3.0), Clock())
    assert [restarts.next_delay(str(number)) for number in range(5)] == [1.0, 2.0, 3.0, 3.0, None]
    assert (restarts.count, restarts.last_reason) == (4, "3")


def test_a_worker_that_lived_long_begins_a_new_row() -> None:
    clock = Clock()
    restarts = Restarts(RestartPolicy(limit=1, first_delay=1.0, good_for=60.0), clock)
    assert restarts.next_delay("crash") == 1.0
    clock.now += 61.0
    assert restarts.next_delay("crash") == 1.0
    clock.now += 59.0
    assert restarts.next_delay("crash") is None
