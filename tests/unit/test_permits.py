"""The right to use a slot."""

from __future__ import annotations

import pytest

from geartrain.service.permits import PermitError, PermitPool, PermitState


def test_each_slot_is_given_once_and_then_there_is_none() -> None:
    pool = PermitPool(2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    assert {first.slot, second.slot} == {0, 1}
    assert pool.acquire() is None
    assert pool.idle == 0


def test_the_slot_idle_longest_comes_first() -> None:
    pool = PermitPool(2)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    pool.release(second)
    pool.release(first)
    assert pool.acquire() is second


def test_a_permit_comes_back_once() -> None:
    pool = PermitPool(1)
    permit = pool.acquire()
    assert permit is not None
    pool.release(permit)
    with pytest.raises(PermitError, match="idle"):
        pool.release(permit)


@pytest.mark.parametrize("in_use", [True, False])
def test_a_poisoned_slot_is_never_given_again(in_use: bool) -> None:
    pool = PermitPool(1)
    permit = pool.acquire()
    assert permit is not None
    if not in_use:
        pool.release(permit)
    pool.poison(permit)
    assert permit.state is PermitState.POISONED
    assert pool.acquire() is None
    assert (pool.size, pool.idle) == (1, 0)
    with pytest.raises(PermitError, match="poisoned"):
        pool.release(permit)
