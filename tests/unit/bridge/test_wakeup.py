"""When the parent waits awake: around the ends of calls that follow each other, on the spot, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geartrain.bridge import wakeup
from geartrain.bridge.wakeup import Adaptive, AdaptiveOneByOne, Blocking, WakeupMode, effective_mode, new_policy
from geartrain.domain.predictions.calls import Failed, ItemEnd, Succeeded


def ends(took: float | None) -> list[ItemEnd]:
    """Return how a call of one item ended that took so many seconds in the model; None: it failed."""
    return [ItemEnd(0, Failed("no") if took is None else Succeeded(b"1", took))]


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
    monkeypatch.setattr(wakeup, "time", clock)
    return clock


def adaptive(clock: Clock) -> Adaptive:
    return AdaptiveOneByOne(clock)  # type: ignore[arg-type]


def test_a_single_call_is_slept_through(clock: Clock) -> None:
    policy = adaptive(clock)
    for _ in range(3):
        policy.before_send(alone=True)
        assert not any(clock.move(0.005))
        policy.on_end(ends(0.005))
        assert not any(clock.move(1.0))


def test_calls_that_follow_each_other_find_the_loop_awake_at_their_end(clock: Clock) -> None:
    policy = adaptive(clock)
    for turn in range(4):
        policy.before_send(alone=False)
        awake = clock.move(0.005)
        assert awake[-1] == (turn > 0)
        assert not any(awake[:35])
        policy.on_end(ends(0.005))
        assert clock.move(0.0003)[-1] == (turn > 0)
    assert not any(clock.move(1.0)[10:])


@pytest.mark.parametrize("took", [0.0002, 0.2])
def test_the_loop_sleeps_through_short_and_through_long_calls(clock: Clock, took: float) -> None:
    policy = adaptive(clock)
    for _ in range(3):
        policy.before_send(alone=False)
        assert not any(clock.move(took))
        policy.on_end(ends(took))


def test_the_loop_sleeps_through_calls_that_were_only_heard_of_late(clock: Clock) -> None:
    policy = adaptive(clock)
    for _ in range(3):
        policy.before_send(alone=False)
        assert not any(clock.move(0.005))
        policy.on_end(ends(0.0001))


def _after_dense_calls(clock: Clock) -> Adaptive:
    """Return a policy after two calls of 5 ms, in the third one."""
    policy = adaptive(clock)
    for _ in range(2):
        policy.before_send(alone=False)
        clock.move(0.005)
        policy.on_end(ends(0.005))
    policy.before_send(alone=False)
    return policy


def test_the_loop_sleeps_for_a_while_where_others_take_the_processor(clock: Clock) -> None:
    policy = _after_dense_calls(clock)
    for _ in range(3):
        assert any(clock.move(0.0001)[0] for _ in range(300))
        clock.now += 0.003
        assert not any(clock.move(0.001))
        policy.on_end(ends(0.005))
        policy.before_send(alone=False)
    for _ in range(20):
        assert not any(clock.move(0.005))
        policy.on_end(ends(0.005))
        policy.before_send(alone=False)
    clock.move(1.0)
    policy.on_end(ends(0.005))
    for awake in (False, True):
        policy.before_send(alone=False)
        assert any(clock.move(0.005)) == awake
        policy.on_end(ends(0.005))


def test_a_call_that_takes_longer_than_the_last_one_is_awaited_for_a_moment_only(clock: Clock) -> None:
    _after_dense_calls(clock)
    assert not any(clock.move(1.0)[60:])


def test_nobody_stays_awake_for_a_worker_that_is_gone(clock: Clock) -> None:
    _after_dense_calls(clock).close()
    assert not any(clock.move(0.01)[1:])


def test_several_calls_at_a_time_are_not_foreseen(clock: Clock) -> None:
    policy = new_policy("adaptive", clock, one_by_one=False)  # type: ignore[arg-type]
    for _ in range(4):
        policy.before_send(alone=False)
        assert not any(clock.move(0.005))
        policy.on_end(ends(0.005))


def _polls(policy: Adaptive | Blocking, clock: Clock, *, comes_after: int) -> int:
    """How often a policy asks for what comes, each time after a tenth of a millisecond."""
    count = 0

    def poll() -> bool:
        nonlocal count
        count += 1
        clock.now += 1e-4
        return count >= comes_after

    policy.wait(poll)
    return count


def test_a_short_call_of_a_single_client_is_awaited_on_the_spot_for_a_moment(clock: Clock) -> None:
    policy = adaptive(clock)
    policy.before_send(alone=True)
    assert _polls(policy, clock, comes_after=1) == 0, "nothing is known of its calls yet"
    policy.on_end(ends(0.0001))
    policy.before_send(alone=True)
    assert _polls(policy, clock, comes_after=2) == 2
    policy.on_end(ends(0.0001))
    policy.before_send(alone=True)
    assert _polls(policy, clock, comes_after=1000) in {5, 6}
    policy.on_end(ends(0.01))
    policy.before_send(alone=True)
    assert _polls(policy, clock, comes_after=1) == 0, "the last one was long"


def test_a_call_that_calls_other_models_is_awaited_on_the_spot_by_its_own_time(clock: Clock) -> None:
    policy = adaptive(clock)

    def call_that_calls(*, own: float) -> None:
        """Run a call that takes so many seconds after it has called a model for half a millisecond."""
        policy.before_send(alone=True)
        clock.now += 0.0005
        policy.resume()
        clock.now += own
        policy.on_end(ends(0.0005 + own))

    def polls(*, calls: int) -> int:
        """Return how often a call is asked for that calls a model again and again, and then does not end."""
        count = 0

        def poll() -> bool:
            nonlocal count
            count += 1
            clock.now += 1e-4
            if count <= calls:
                policy.resume()
            return False

        policy.before_send(alone=True)
        policy.wait(poll)
        return count

    call_that_calls(own=0.0001)
    assert polls(calls=1) in {6, 7}, "for a moment after its answer"
    assert not clock.timers, "its end is not foreseen"
    call_that_calls(own=0.0001)
    assert polls(calls=1000) in {15, 16}, "others wait meanwhile"
    call_that_calls(own=0.001)
    policy.before_send(alone=True)
    assert _polls(policy, clock, comes_after=1) == 0, "the last one was long"


def test_a_call_beside_others_is_not_awaited_on_the_spot(clock: Clock) -> None:
    policy = adaptive(clock)
    policy.before_send(alone=False)
    policy.on_end(ends(0.0001))
    policy.before_send(alone=False)
    assert _polls(policy, clock, comes_after=1) == 0


def test_nothing_is_awaited_on_the_spot_for_a_while_where_others_take_the_processor(clock: Clock) -> None:
    policy = adaptive(clock)

    def polls(*, lost: float) -> int:
        """Return how often a short call is asked for whose first question takes so many seconds."""
        count = 0

        def poll() -> bool:
            nonlocal count
            count += 1
            clock.now += lost
            return True

        policy.before_send(alone=True)
        policy.wait(poll)
        policy.on_end(ends(0.0001))
        return count

    assert [polls(lost=0.0), polls(lost=0.0), polls(lost=0.0008)] == [0, 1, 1]
    assert [polls(lost=0.003) for _ in range(5)] == [1, 1, 1, 1, 0], "it came back late again and again"
    clock.now += 2
    assert [polls(lost=0.003 * (number % 20 == 0)) for number in range(200)] == [1] * 200, (
        "once in a while is no matter"
    )


def test_blocking_never_waits_awake(clock: Clock) -> None:
    policy = Blocking()
    for _ in range(4):
        policy.resume()
        policy.before_send(alone=True)
        assert _polls(policy, clock, comes_after=1) == 0
        assert not any(clock.move(0.005))
        policy.on_end(ends(0.0001))
    policy.close()
    assert not clock.timers


@pytest.mark.parametrize(
    ("mode", "cores", "effective"),
    [
        ("adaptive", 2.0, "adaptive"),
        ("adaptive", 1.5, "adaptive"),
        ("adaptive", 1.0, "blocking"),
        ("adaptive", 0.5, "blocking"),
        ("blocking", 8.0, "blocking"),
    ],
)
def test_nobody_waits_awake_on_one_core_or_less(mode: WakeupMode, cores: float, effective: WakeupMode) -> None:
    assert effective_mode(mode, cores=lambda: cores) == effective


def test_each_mode_has_its_policy(clock: Clock) -> None:
    assert isinstance(new_policy("adaptive", clock, one_by_one=True), AdaptiveOneByOne)  # type: ignore[arg-type]
    assert isinstance(new_policy("blocking", clock, one_by_one=True), Blocking)  # type: ignore[arg-type]
