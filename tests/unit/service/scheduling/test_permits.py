"""The right to use a slot."""

from __future__ import annotations

from typing import cast

import pytest

from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.scheduler import PermitError, PermitPool, SharedPermits

WORKER = cast("WorkerPort", object())  # nothing is asked of it


def test_each_slot_is_given_once_and_then_there_is_none() -> None:
    pool = PermitPool.of(WORKER, 2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    assert {first.slot, second.slot} == {0, 1}
    assert pool.acquire() is None
    assert pool.idle == 0


def test_the_slot_idle_longest_comes_first() -> None:
    pool = PermitPool.of(WORKER, 2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    pool.release(second)
    pool.release(first)
    assert pool.acquire() is second


def test_a_permit_comes_back_once() -> None:
    pool = PermitPool.of(WORKER, 1)
    permit = pool.acquire()
    assert permit is not None
    pool.release(permit)
    with pytest.raises(PermitError, match="idle"):
        pool.release(permit)


def test_the_least_busy_worker_comes_first_and_equals_take_turns() -> None:
    small, large = PermitPool.of(WORKER, 1), PermitPool.of(WORKER, 4)
    shared = SharedPermits([small, large])
    assert (shared.size, shared.idle) == (5, 5)
    given = [shared.acquire() for _ in range(6)]
    pools = [permit.pool for permit in given if permit is not None]
    # A quarter of the large one in use is less than all of the small one.
    assert pools == [small, large, large, large, large]
    assert given[-1] is None
    for permit in given[:-1]:
        assert permit is not None
        shared.release(permit)
    again = [shared.acquire(), shared.acquire()]
    assert [permit.pool for permit in again if permit is not None] == [small, large]


def test_equal_workers_take_turns() -> None:
    one, two = PermitPool.of(WORKER, 2), PermitPool.of(WORKER, 2)
    shared = SharedPermits([one, two])
    turns = []
    for _ in range(4):
        permit = shared.acquire()
        assert permit is not None
        turns.append(permit.pool)
        shared.release(permit)
    assert turns == [one, two, one, two]


def test_without_a_worker_there_is_no_permit() -> None:
    assert SharedPermits([]).acquire() is None
    assert SharedPermits([PermitPool()]).acquire() is None
