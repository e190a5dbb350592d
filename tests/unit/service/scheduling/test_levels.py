"""A queue with priority levels: who is next, who is late, and who is refused."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.service.scheduling.cutting import Size
from geartrain.service.scheduling.queue import LevelledQueue

PLAIN = (Level(), Level(), Level())


def queue_of(*levels: Level, max_size: int = 1, **policy: Any) -> LevelledQueue[str]:
    return LevelledQueue(BatchPolicy(max_size=max_size, **policy), levels)


def add(queue: LevelledQueue[str], names: str, *, level: int, now: float = 0.0, key: str = "key") -> None:
    for name in names:
        queue.add(name, key, Size(1), now=now, level=level)


def drain(queue: LevelledQueue[str], now: float) -> list[str]:
    """What is taken until nothing is given, each call as one word."""
    taken = []
    while batch := queue.take(now):
        taken.append("".join(batch))
    return taken


def test_higher_levels_are_served_first_and_equals_in_their_order() -> None:
    queue = queue_of(*PLAIN)
    add(queue, "xy", level=2)
    add(queue, "mn", level=1)
    add(queue, "ab", level=0)
    assert queue.take(1.0) == ["a"]
    add(queue, "c", level=0)
    assert drain(queue, 1.0) == ["b", "c", "m", "n", "x", "y"]
    assert (len(queue), queue.rows, queue.due()) == (0, 0, None)


def test_it_lists_those_that_wait_in_the_order_of_their_turns() -> None:
    queue = queue_of(Level(timeout=1.0, on_timeout="continue"), Level(), Level())
    add(queue, "xy", level=2)
    add(queue, "ab", level=0)
    add(queue, "mn", level=1)
    assert queue.expire(2.0) == []
    add(queue, "c", level=0, now=2.0)
    assert list(queue) == list("cabmnxy") == drain(queue, 2.0)


def test_a_call_is_filled_up_from_lower_levels() -> None:
    queue = queue_of(*PLAIN, max_size=3)
    add(queue, "xyz", level=2)
    add(queue, "a", level=0)
    add(queue, "m", level=1)
    assert drain(queue, 1.0) == ["amx", "yz"]


def test_another_kind_is_not_in_the_call_of_a_high_one() -> None:
    queue = queue_of(*PLAIN, max_size=3)
    add(queue, "xyz", level=2, key="one")
    add(queue, "a", level=0, key="other", now=1.0)
    add(queue, "b", level=0, key="one", now=2.0)
    assert drain(queue, 3.0) == ["a", "bxy", "z"]


def test_who_has_left_is_not_taken() -> None:
    queue = queue_of(*PLAIN)
    add(queue, "ab", level=0)
    add(queue, "x", level=2)
    assert queue.remove("a")
    assert not queue.remove("a")
    assert (queue.size_of(0), queue.size_of(2), queue.ahead_of(0), queue.ahead_of(2)) == (1, 1, 1, 2)
    assert list(queue) == ["b", "x"]
    assert drain(queue, 0.0) == ["b", "x"]


def test_who_waits_too_long_is_refused_and_never_taken() -> None:
    queue = queue_of(Level(timeout=2.0), Level())
    add(queue, "a", level=0, now=0.0)
    add(queue, "b", level=0, now=1.0)
    add(queue, "x", level=1, now=0.0)
    assert queue.next_expiry() == 2.0
    assert queue.expire(1.9) == []
    assert queue.take(2.0) == ["b"]
    assert queue.expire(2.0) == ["a"]
    assert queue.expire(2.0) == []
    assert queue.next_expiry() == inf
    assert drain(queue, 100.0) == ["x"]


def test_who_is_late_and_may_continue_is_behind_its_level_and_before_the_next() -> None:
    """Triton: until all others of the same or a higher level that have not reached their timeouts are processed."""
    queue = queue_of(Level(timeout=2.0, on_timeout="continue"), Level(timeout=5.0, on_timeout="continue"), Level())
    add(queue, "ab", level=0, now=0.0)
    add(queue, "m", level=1, now=0.0)
    add(queue, "c", level=0, now=1.0)
    add(queue, "x", level=2, now=0.0)
    add(queue, "n", level=1, now=1.0)
    assert queue.take(2.0) == ["c"]
    add(queue, "d", level=0, now=2.0)
    assert queue.expire(5.0) == []
    add(queue, "e", level=0, now=5.0)
    assert drain(queue, 5.5) == ["e", "a", "b", "d", "n", "m", "x"]


def test_a_late_one_is_passed_by_those_who_come_in_time() -> None:
    queue = queue_of(Level(timeout=1.0, on_timeout="continue"))
    add(queue, "a", level=0)
    order = []
    for step, name in enumerate("bcd", start=1):
        add(queue, name, level=0, now=float(step))
        order += queue.take(float(step))
    assert order == ["b", "c", "d"]
    assert drain(queue, 3.0) == ["a"]


def test_an_item_that_comes_back_has_its_time_anew() -> None:
    queue = queue_of(Level(timeout=2.0))
    add(queue, "a", level=0, now=0.0)
    assert queue.take(1.0) == ["a"]
    add(queue, "a", level=0, now=1.5)
    assert queue.expire(2.0) == []
    assert queue.next_expiry() == 3.5
    assert queue.expire(3.5) == ["a"]


def test_deadlines_of_those_who_have_gone_are_cleared_away() -> None:
    queue = queue_of(Level(timeout=1000.0))
    for number in range(1000):
        queue.add(f"{number}", "key", Size(1), now=float(number) / 10)
        assert queue.take(float(number) / 10) == [f"{number}"]
    assert len(queue._deadlines) < 200


def test_a_free_slot_waits_for_the_first_and_nobody_begins_before_it() -> None:
    queue = queue_of(*PLAIN, max_size=8, max_delay=1.0)
    queue.end_call(20, took=0.1, now=0.0)
    add(queue, "xyz", level=2, now=0.0, key="one")
    add(queue, "a", level=0, now=0.5, key="other")
    assert queue.take(1.0) == [], "the low ones have waited long enough, and a high one is there"
    assert queue.due() == 1.5
    assert queue.take(1.5) == ["a"]
    assert queue.take(1.5) == ["x", "y", "z"]


def test_a_longer_queue_is_cut_at_a_preferred_size() -> None:
    queue = queue_of(*PLAIN, max_size=8, preferred_sizes=(4,))
    add(queue, "uvwxyz", level=2)
    add(queue, "a", level=0)
    assert drain(queue, 0.0) == ["auvw", "xyz"]


def test_nothing_lies_ready_for_a_busy_worker() -> None:
    queue = queue_of(*PLAIN, max_size=2)
    add(queue, "xyz", level=2)
    assert queue.take_full() == []


@pytest.mark.parametrize(("priority", "level"), [(0, 1), (1, 0), (2, 1), (3, 2)])
def test_a_priority_names_a_level(priority: int, level: int) -> None:
    assert Priorities(PLAIN, 2).level_of(priority) == level


def test_a_priority_that_is_not_there_is_refused() -> None:
    with pytest.raises(GeartrainError) as caught:
        Priorities(PLAIN, 2).level_of(4)
    assert caught.value.code is Code.INVALID_INPUT
    expected = "parameter 'priority' is 4, out of range: this model takes 1, the highest, to 3, or 0 for its default, 2"
    assert caught.value.message == expected


# any sequence, against the plainest way to say what has to happen


class Waiting(NamedTuple):
    name: int
    key: str
    rows: int
    level: int
    since: float


class Model:
    """A list that is sorted at each look."""

    def __init__(self, levels: tuple[Level, ...], policy: BatchPolicy) -> None:
        self.levels = levels
        self.policy = policy
        self.waiting: list[Waiting] = []

    def is_late(self, each: Waiting, now: float) -> bool:
        timeout = self.levels[each.level].timeout
        return timeout is not None and now >= each.since + timeout

    def expire(self, now: float) -> set[int]:
        refused = {
            each.name
            for each in self.waiting
            if self.is_late(each, now) and self.levels[each.level].on_timeout == "reject"
        }
        self.leave(refused)
        return refused

    def leave(self, names: set[int]) -> None:
        self.waiting = [each for each in self.waiting if each.name not in names]

    def order(self, now: float) -> list[Waiting]:
        return sorted(self.waiting, key=lambda each: (each.level, self.is_late(each, now), each.since))

    def check(self, taken: list[int], now: float, free_since: float) -> None:
        """A call is what the order says, as much of one kind as fits; and there is one unless it may wait."""
        order = self.order(now)
        if not taken:
            if order:
                first = [each for each in order if self.rank(each, now) == self.rank(order[0], now)]
                oldest = min(each.since for each in first)
                assert now < max(oldest, free_since) + self.policy.max_delay, "somebody waits, and need not"
            return
        chosen = next(each for each in order if each.name == taken[0])
        assert self.rank(chosen, now) == self.rank(order[0], now), "somebody of a lower level has overtaken"
        if not self.policy.max_delay:
            assert chosen is order[0]
        same = [each for each in order if each.key == chosen.key]
        assert taken == [each.name for each in same[: len(taken)]], "in their order, and nobody is passed over"
        total = sum(each.rows for each in same[: len(taken)])
        limit = self.policy.max_size
        assert len(taken) == 1 or total <= limit
        if len(taken) < len(same) and not self.policy.preferred_sizes and limit > 1:
            assert total + same[len(taken)].rows > limit, "there was place for one more"
        self.leave(set(taken))

    def rank(self, each: Waiting, now: float) -> tuple[int, bool]:
        return each.level, self.is_late(each, now)


_levels = st.lists(
    st.builds(Level, timeout=st.sampled_from([None, 2.0, 7.0]), on_timeout=st.sampled_from(["reject", "continue"])),
    min_size=1,
    max_size=4,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 40), st.just(0), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("later"), st.integers(1, 4), st.just(0), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("ended"), st.integers(0, 12), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=400)
@given(
    steps=_steps,
    levels=_levels,
    max_size=st.integers(1, 6),
    preferred=st.lists(st.integers(1, 6), max_size=2),
    delay=st.sampled_from([0.0, 3.0]),
)
def test_any_sequence(
    steps: list[tuple[str, Any, int, int]], levels: list[Level], max_size: int, *, preferred: list[int], delay: float
) -> None:
    sizes = tuple(sorted(set(preferred)))
    policy = BatchPolicy(max_size=max_size, max_delay=delay, learn_delay=False, preferred_sizes=sizes)
    queue: LevelledQueue[int] = LevelledQueue(policy, levels)
    model = Model(tuple(levels), policy)
    now, free_since, count = 0.0, -10.0, 0
    refused: set[int] = set()
    for step, value, rows, level in steps:
        now += 1 / 1024  # so that no two come at the same moment, and sums are exact
        refused |= model.expire(now)
        if step == "add":
            queue.add(count, value, Size(rows), now=now, level=level % len(levels))
            model.waiting.append(Waiting(count, value, rows, level % len(levels), now))
            count += 1
        elif step == "leave":
            queue.expire(now)
            refused.clear()
            assert queue.remove(value) == (value in [each.name for each in model.waiting])
            model.leave({value})
        elif step == "later":
            now += value
        elif step == "ended":
            queue.end_call(value, took=0.1, now=now)
            free_since = now
        elif step == "expire":
            assert set(queue.expire(now)) == refused
            refused.clear()
        else:
            model.check(queue.take(now), now, free_since)
        if not refused:
            assert queue.rows == sum(each.rows for each in model.waiting)
    while True:  # nobody is forgotten, and nobody waits for ever once nobody else comes
        now += delay
        model.expire(now)
        if not model.waiting:
            break
        taken = queue.take(now)
        assert taken
        model.check(taken, now, free_since)
    assert queue.take(now) == []
    assert len(queue) == 0
