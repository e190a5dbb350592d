"""Which of those that wait share the next batch: any mix of sizes, kinds, delays and cancels."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.service.scheduling.cutting import Size
from geartrain.service.scheduling.queue import BatchQueue, CallQueue, FirstComeQueue


def _queue(*rows: int, now: float = 0.0, **policy: Any) -> BatchQueue[int]:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(**policy))
    for index, size in enumerate(rows):
        queue.add(index, "key", Size(size), now=now)
    return queue


def test_whatever_waits_goes_at_once_up_to_the_largest_size() -> None:
    queue = _queue(1, 1, 1, 1, 1, max_size=3)
    assert queue.take(0.0) == [0, 1, 2]
    assert queue.take(0.0) == [3, 4]
    assert queue.take(0.0) == []
    assert queue.due() is None


def test_requests_are_kept_whole() -> None:
    queue = _queue(3, 2, 4, 1, max_size=5)
    assert [queue.take(0.0) for _ in range(3)] == [[0, 1], [2, 3], []]


def test_a_request_that_is_larger_than_a_batch_runs_by_itself() -> None:
    queue = _queue(2, 9, 2, max_size=4)
    assert [queue.take(0.0) for _ in range(3)] == [[0], [1], [2]]


def test_different_kinds_never_share_and_the_oldest_goes_first() -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy())
    for index, kind in enumerate("abacb"):
        queue.add(index, kind, Size(1), now=float(index))
    assert [queue.take(9.0) for _ in range(4)] == [[0, 2], [1, 4], [3], []]


@pytest.mark.parametrize(("waiting", "taken"), [(3, 3), (4, 4), (7, 4), (8, 8), (9, 8), (10, 10), (12, 10)])
def test_a_longer_queue_is_cut_at_a_preferred_size(waiting: int, taken: int) -> None:
    queue = _queue(*[1] * waiting, max_size=10, preferred_sizes=(4, 8))
    assert len(queue.take(0.0)) == taken


def test_who_has_left_is_not_taken() -> None:
    queue = _queue(1, 1, 1)
    assert queue.remove(1)
    assert not queue.remove(1)
    assert 1 not in list(queue)
    assert queue.take(0.0) == [0, 2]
    assert not queue.remove(0)
    assert len(queue) == 0


def test_a_delay_waits_for_as_many_as_there_were() -> None:
    queue = _queue(1, max_delay=1.0)
    assert queue.take(0.0) == [0], "nobody else was there before: there is nobody to wait for"
    queue.add(1, "key", Size(1), now=0.5)
    queue.end_call(3, took=0.1, now=0.5)  # of four that were on their way, three have their answers and may ask again
    assert queue.take(0.6) == []
    assert queue.due() == 1.5
    queue.add(2, "key", Size(1), now=0.7)
    queue.add(3, "key", Size(1), now=0.7)
    assert queue.take(0.7) == []
    queue.add(4, "key", Size(1), now=0.8)
    assert queue.take(0.8) == [1, 2, 3, 4]


def test_a_delay_is_that_of_a_free_worker_not_of_a_busy_one() -> None:
    queue = _queue(1, 1, now=5.0, max_delay=1.0)
    queue.end_call(20, took=0.1, now=8.0)
    assert queue.take(8.9) == []
    assert queue.due() == 9.0
    assert queue.take(9.0) == [0, 1]


def test_a_delay_ends_when_the_oldest_has_waited_long_enough() -> None:
    queue = _queue(1, 1, now=5.0, max_delay=1.0)
    queue.end_call(20, took=0.1, now=4.0)
    assert queue.take(5.9) == []
    assert queue.due() == 6.0
    assert queue.take(6.0) == [0, 1]


def test_a_full_batch_waits_for_nothing() -> None:
    queue = _queue(*[1] * 4, max_size=4, max_delay=1.0)
    queue.end_call(100, took=0.1, now=0.0)
    assert queue.take(0.0) == [0, 1, 2, 3]


def test_a_full_batch_of_one_kind_does_not_wait_for_another_kind() -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(max_size=2, max_delay=1.0, preferred_sizes=(8,)))
    queue.end_call(30, took=0.1, now=0.0)
    for index, kind in enumerate("abb"):
        queue.add(index, kind, Size(1), now=0.0)
    queue.remove(0)
    queue.add(3, "a", Size(1), now=0.0)
    assert queue.take(0.0) == [1, 2]


def test_first_come_is_first_served_each_by_itself() -> None:
    queue: FirstComeQueue[str] = FirstComeQueue()
    assert (queue.take(0.0), queue.take_full(), queue.due(), len(queue)) == ([], [], None, 0)
    for name, rows in (("a", 1), ("b", 0), ("c", 0), ("d", 7)):
        assert queue.add(name, "key", Size(rows), now=5.0)
    assert (len(queue), queue.rows, queue.due()) == (4, 4, 5.0)
    assert queue.remove("b")
    assert not queue.remove("b")
    assert queue.take(5.0) == ["a"]
    assert queue.take_full(only=lambda name: name != "c") == []
    assert queue.take_full() == ["c"]
    assert list(queue) == ["d"]


def test_several_are_the_next_ones_before_the_first_that_does_not_suit() -> None:
    queue: FirstComeQueue[str] = FirstComeQueue()
    for name in "abcde":
        queue.add(name, "key", Size(1), now=0.0)
    assert queue.take_several(2, only=lambda _: True) == ["a", "b"]
    assert queue.take_several(0, only=lambda _: True) == []
    assert queue.take_several(9, only=lambda name: name != "d") == ["c"]
    assert queue.take_several(9, only=lambda name: name != "d") == []
    queue.add("nested", "key", Size(1), now=0.0, is_ahead=True)
    assert queue.take_several(9, only=lambda _: True) == ["nested"]
    assert (list(queue), len(queue), queue.rows) == (["d", "e"], 2, 2)
    shared: BatchQueue[str] = BatchQueue(BatchPolicy(max_size=4))
    shared.add("a", "key", Size(1), now=0.0)
    assert shared.take_several(9, only=lambda _: True) == []


class _Model:
    """What the queue has to be like, kept in the plainest way."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Hashable, int]] = []

    def leave(self, index: int) -> None:
        self.waiting = [each for each in self.waiting if each[0] != index]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(0, 6)),
        st.tuples(st.just("leave"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.just("later"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("ended"), st.integers(0, 12), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(
    steps=_steps,
    max_size=st.integers(1, 8),
    preferred=st.lists(st.integers(1, 8), max_size=3),
    delay=st.sampled_from([0.0, 3.0]),
    first_come=st.booleans(),
)
def test_any_sequence(
    steps: list[tuple[str, Any, int]], max_size: int, preferred: list[int], *, delay: float, first_come: bool
) -> None:
    max_size = 1 if first_come else max_size
    sizes = tuple(sorted(set(preferred)))
    policy = BatchPolicy(max_size=max_size, max_delay=delay, learn_delay=False, preferred_sizes=sizes)
    queue: CallQueue[int] = BatchQueue(policy)
    if first_come:
        queue = FirstComeQueue()
    model = _Model()
    since: dict[int, float] = {}
    now, free_since, count = 0.0, -10.0, 0
    for step, value, rows in steps:
        if step == "add":
            before = queue.take(now) if delay else []
            if before:  # so that nothing can be run before it comes
                _check_taken(before, model, policy, since=since, now=now, free_since=free_since)
                continue
            if not queue.add(count, value, Size(rows), now=now):
                assert queue.take(now) == []
            model.waiting.append((count, value, rows))
            since[count] = now
            count += 1
        elif step == "leave":
            assert queue.remove(value) == (value in [index for index, _, _ in model.waiting])
            model.leave(value)
        elif step == "later":
            now += value
        elif step == "ended":
            queue.end_call(value, took=0.1, now=now)
            free_since = now
        else:
            _check_taken(queue.take(now), model, policy, since=since, now=now, free_since=free_since)
        assert list(queue) == [index for index, _, _ in model.waiting]
    while model.waiting:  # nobody is forgotten
        now += delay
        taken = queue.take(now)
        assert taken
        _check_taken(taken, model, policy, since=since, now=now, free_since=free_since)


def _check_taken(
    taken: list[int],
    model: _Model,
    policy: BatchPolicy,
    *,
    since: dict[int, float],
    now: float,
    free_since: float,
) -> None:
    there = {index: (kind, rows) for index, kind, rows in model.waiting}
    overdue = [index for index in there if now >= max(since[index], free_since) + policy.max_delay]
    if not taken:
        assert not overdue, "somebody waits, and need not"
        return
    kinds = {there[index][0] for index in taken}
    assert len(kinds) == 1
    same = [index for index in there if there[index][0] in kinds]
    assert taken == same[: len(taken)], "in their order, and nobody is passed over"
    total = sum(there[index][1] for index in taken)
    assert len(taken) == 1 or total <= policy.max_size
    if overdue:
        assert since[taken[0]] <= min(since[index] for index in overdue) or total >= policy.max_size
    for index in taken:
        model.leave(index)


def _queue_of(policy: BatchPolicy) -> CallQueue[tuple[int, int]]:
    return FirstComeQueue() if policy.max_size == 1 else BatchQueue(policy)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 9)), max_size=12), max_size=5),
    st.sampled_from(
        [
            BatchPolicy(max_size=6),
            BatchPolicy(max_size=6, learn_delay=True),
            BatchPolicy(max_size=6, max_delay=3.0),
            BatchPolicy(max_size=6, max_cost=20, sort=2),
            BatchPolicy(max_size=6, preferred_sizes=(3,)),
            BatchPolicy(max_size=1),
        ]
    ),
)
def test_those_that_come_together_wait_as_one_by_one(
    turns: list[list[tuple[str, int, int]]], policy: BatchPolicy
) -> None:
    one_by_one, together = _queue_of(policy), _queue_of(policy)
    for turn, arrivals in enumerate(turns):
        now = float(turn)
        entries = [((turn, at), key, Size(rows, float(cost))) for at, (key, rows, cost) in enumerate(arrivals)]
        changes = [one_by_one.add(item, key, size, now=now) for item, key, size in entries]
        may_run = together.add_all(entries, now=now)
        assert may_run or not any(changes)
        assert (list(together), together.rows, together.due()) == (list(one_by_one), one_by_one.rows, one_by_one.due())
        taken = one_by_one.take(now)
        assert together.take(now) == taken
        for queue in (one_by_one, together):
            queue.end_call(len(taken), took=0.5, now=now + 0.5)
    while one_by_one:
        assert together.take(99.0) == one_by_one.take(99.0)
    assert not together
