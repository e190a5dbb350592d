"""When the loop stays awake: around the ends of runs that follow each other, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geartrain.bridge import vigil
from geartrain.bridge.vigil import Vigil


class Clock:
    """A loop and its clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.soon: list[Callable[[], None]] = []

    def perf_counter(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> Any:
        timer = (self.now + delay, callback, arguments)
        self.timers.append(timer)
        clock = self

        class Handle:
            def cancel(self) -> None:
                if timer in clock.timers:
                    clock.timers.remove(timer)

        return Handle()

    def move(self, seconds: float) -> list[bool]:
        """Let time pass, a tenth of a millisecond at a time; return for each whether the loop was awake."""
        awake = []
        for _ in range(round(seconds * 10_000)):
            self.now += 1e-4
            due = [timer for timer in self.timers if timer[0] <= self.now]
            self.timers = [timer for timer in self.timers if timer not in due]
            for _, callback, arguments in due:
                callback(*arguments)
            callbacks, self.soon = self.soon, []
            for each in callbacks:
                each()
            awake.append(bool(self.soon))
        return awake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vigil, "time", clock)
    return clock


def test_a_lone_run_is_slept_through(clock: Clock) -> None:
    watch: Vigil = Vigil(clock)  # type: ignore[arg-type]
    for _ in range(3):
        watch.begin()
        assert not any(clock.move(0.005))
        watch.end()
        assert not any(clock.move(1.0))


def test_runs_that_follow_each_other_find_the_loop_awake_at_their_end(clock: Clock) -> None:
    watch: Vigil = Vigil(clock)  # type: ignore[arg-type]
    for turn in range(4):
        watch.begin()
        awake = clock.move(0.005)
        assert awake[-1] == (turn > 0)
        assert not any(awake[:35])
        watch.end()
        assert clock.move(0.0003)[-1] == (turn > 0)
    assert not any(clock.move(1.0)[10:])


@pytest.mark.parametrize("took", [0.0002, 0.2])
def test_neither_short_nor_long_runs_are_watched(clock: Clock, took: float) -> None:
    watch: Vigil = Vigil(clock)  # type: ignore[arg-type]
    for _ in range(3):
        watch.begin()
        assert not any(clock.move(took))
        watch.end()


def _watch_dense_runs(clock: Clock) -> Vigil:
    """Two runs of 5 ms are over, and the third one has begun."""
    watch: Vigil = Vigil(clock)  # type: ignore[arg-type]
    for _ in range(2):
        watch.begin()
        clock.move(0.005)
        watch.end()
    watch.begin()
    return watch


def test_a_run_that_takes_longer_than_the_last_one_is_not_waited_for_for_ever(clock: Clock) -> None:
    _watch_dense_runs(clock)
    assert not any(clock.move(1.0)[60:])


def test_it_is_over_when_the_worker_is(clock: Clock) -> None:
    _watch_dense_runs(clock).close()
    assert not any(clock.move(0.01)[1:])
