"""Calls by cost: how many requests share one, how they are sorted, and how long that makes anybody wait."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.priorities import Level
from geartrain.service.scheduling.cutting import Size, sorted_calls
from geartrain.service.scheduling.queue import BatchQueue, CallQueue, LevelledQueue


def policy(max_cost: float = 0.0, **settings: object) -> BatchPolicy:
    given_settings: dict[str, object] = {"max_size": 64, "cost": "text", "learn_delay": False, **settings}
    return BatchPolicy(max_cost=max_cost, **given_settings)  # type: ignore[arg-type]


def queue_of(costs: Sequence[float], of: BatchPolicy) -> BatchQueue[int]:
    queue: BatchQueue[int] = BatchQueue(of)
    for index, cost in enumerate(costs):
        queue.add(index, "key", Size(1, cost), now=0.0)
    return queue


def calls(queue: CallQueue[int]) -> list[list[int]]:
    found = []
    while call := queue.take(1.0):
        found.append(call)
    return found


def test_a_call_costs_at_most_so_much_and_a_costlier_request_runs_alone() -> None:
    assert calls(queue_of([4, 4, 4, 50, 1, 1, 10], policy(10))) == [[0, 1], [2], [3], [4, 5], [6]]


def test_rows_count_as_well() -> None:
    assert calls(queue_of([1] * 5, policy(100, max_size=2))) == [[0, 1], [2, 3], [4]]


def test_padded_calls_cost_as_much_as_their_longest_request_each() -> None:
    assert calls(queue_of([1, 1, 1, 5, 1, 10], policy(10, padded=True))) == [[0, 1, 2], [3, 4], [5]]


def test_levels_of_priority_keep_their_order() -> None:
    queue: LevelledQueue[int] = LevelledQueue(policy(10, sort=2), [Level(), Level()])
    for index, (cost, level) in enumerate([(4, 1), (4, 1), (4, 0), (9, 0)]):
        queue.add(index, "key", Size(1, cost), now=0.0, level=level)
    assert calls(queue) == [[2], [3], [0, 1]]
    queue.add(0, "key", Size(1, 4), now=0.0)
    assert not queue.take_full()


def test_a_full_call_need_not_wait() -> None:
    queue: BatchQueue[int] = BatchQueue(policy(10, max_delay=5.0))
    queue.end_call(5, took=0.1, now=0.0)
    assert not queue.add(0, "key", Size(1, 4), now=0.0)
    assert queue.take(0.1) == []
    assert queue.add(1, "key", Size(1, 6), now=0.2)
    assert queue.take_full() == [0, 1]
    assert queue.take_full() == []


def test_similar_costs_go_together_in_two_calls() -> None:
    costs = [1, 9, 1, 9, 1, 9, 1, 9]
    assert calls(queue_of(costs, policy(20, sort=2))) == [[0, 2, 4, 6, 1], [3, 5], [7]]
    for window in (2, 4):  # the first call is filled up from outside of its window
        assert calls(queue_of(costs, policy(20, sort=window, padded=True))) == [[0, 2, 4, 6], [1, 3], [5, 7]]


def test_a_sorted_call_is_filled_up_with_what_has_come_since() -> None:
    queue = queue_of([1, 9, 1, 9], policy(20, sort=2, padded=True))
    assert queue.take(1.0) == [0, 2]
    queue.add(4, "key", Size(1, 10), now=1.0)  # it would make the call of the 9s longer
    queue.add(5, "key", Size(1, 8), now=1.0)
    queue.remove(3)
    assert queue.take(1.0) == [1, 5]
    assert queue.take(1.0) == [4]
    assert len(queue) == 0


def test_requests_of_other_models_go_before_what_was_sorted() -> None:
    queue = queue_of([1, 9, 1, 9], policy(20, sort=2, padded=True))
    queue.take(1.0)
    queue.add(4, "key", Size(1, 2), now=1.0, is_ahead=True)
    assert queue.take(1.0) == [4, 1]
    assert queue.take(1.0) == [3]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(2, 6),
    st.booleans(),
    st.integers(1, 16),
)
def test_sorting_loses_nobody_and_delays_nobody_beyond_its_calls(
    costs: list[int], window: int, padded: bool, max_size: int
) -> None:
    """With clients that keep coming: each runs before all that came when its window had begun."""
    of = policy(20, sort=window, padded=padded, max_size=max_size)
    queue = queue_of(costs, of)
    made: list[list[int]] = []
    for number in range(1000, 1000 + len(costs)):
        made.append(queue.take(1.0))
        queue.add(number, "key", Size(1, 1 + number % 30), now=1.0)
    made += calls(queue)
    order = [item for call in made for item in call]
    assert Counter(order) == Counter([*range(len(costs)), *range(1000, 1000 + len(costs))])
    sizes = dict(enumerate(costs)) | {number: 1 + number % 30 for number in range(1000, 1000 + len(costs))}
    at = {item: place for place, call in enumerate(made) for item in call}
    for call in made:
        if len(call) > 1:
            assert len(call) <= max_size
            longest = max(sizes[item] for item in call)
            assert (longest * len(call) if padded else sum(sizes[item] for item in call)) <= 20
    first_come = calls(queue_of(costs, policy(20, padded=padded, max_size=max_size)))
    for place, call in enumerate(first_come):
        for item in call:
            overtaken = [each for each in at if each > item and at[each] < at[item]]
            behind = {at[each] for each in overtaken}
            assert len(behind) <= 2 * window, place


def test_windows_are_the_calls_that_would_come_anyway() -> None:
    waiting = [(index, Size(1, cost)) for index, cost in enumerate([5, 1, 5, 1, 5, 1, 9, 9])]
    first, second = sorted_calls(waiting, policy(9, sort=2))
    assert [[item for item, _ in call] for call in (first, second)] == [[1, 3, 0], [2]]


LONG_TAIL = random.Random(7)  # noqa: S311 - lengths
LENGTHS = [int(min(512, max(8, LONG_TAIL.lognormvariate(3.7, 0.9)))) for _ in range(4000)]


def seconds(queue: BatchQueue[int], clients: int = 64) -> float:
    """The time of a model that pays for padding, with clients that ask again at once."""
    lengths, now, done = iter(LENGTHS), 0.0, 0
    size: dict[int, int] = {}
    for number in range(clients):
        size[number] = next(lengths)
        queue.add(number, "key", Size(1, size[number]), now=now)
    number = clients
    while call := queue.take(now):
        now += 2e-3 + 1e-5 * len(call) * max(size[item] for item in call)
        done += len(call)
        for _ in call:
            if (length := next(lengths, None)) is not None:
                size[number] = length
                queue.add(number, "key", Size(1, length), now=now)
                number += 1
    assert done == len(LENGTHS)
    return now


def test_cost_and_order_pay_where_lengths_differ() -> None:
    by_rows = seconds(BatchQueue(policy(cost="", max_size=32)))
    by_cost = seconds(BatchQueue(policy(2048, padded=True)))
    in_order = seconds(BatchQueue(policy(2048, padded=True, sort=2)))
    in_long_order = seconds(BatchQueue(policy(2048, padded=True, sort=8)))
    assert by_rows > 1.4 * by_cost
    assert all(before > 1.1 * after for before, after in pairwise([by_cost, in_order, in_long_order]))


@pytest.mark.parametrize("sort", [0, 2])
def test_nobody_starves_beside_requests_that_always_fit_better(sort: int) -> None:
    queue: BatchQueue[int] = BatchQueue(policy(20, sort=sort, padded=True))
    queue.add(0, "key", Size(1, 19), now=0.0)
    for number in range(1, 30):
        queue.add(number, "key", Size(1, 1), now=0.0)
    assert queue.take(1.0)[0] == 0
