"""The queue of requests that wait for a call, and which of them run next.

Callers pass the time, in seconds on any one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sized
from math import inf
from typing import Generic, Protocol, TypeVar

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.service.scheduling.gathering import gathering_of, rows_of_call

T = TypeVar("T", bound=Hashable)


class CallQueue(Protocol[T]):
    """Queue of waiting predictions. `take` returns those to run together on a free slot."""

    @property
    def rows(self) -> int:
        """The rows of all that wait."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]:
        """Yield what waits, in the order in which it would be taken."""

    def add(self, item: T, key: Hashable, rows: int, *, now: float, level: int = 0) -> bool:
        """Have an item wait. Only those with equal keys share a call. `level` is that of its priority, 0 the highest.

        Return whether `take` may give more than it would have before.
        """

    def remove(self, item: T) -> bool:
        """Let an item wait no longer; return whether it did."""

    def take(self, now: float) -> list[T]:
        """Remove the requests that are to run now, and return them; empty if there are none."""

    def take_full(self, *, only: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Return a call that nothing could be added to, if it is the next one: it need not wait for its worker.

        `only`: if this holds for the one that has waited longest.
        """

    def due(self) -> float | None:
        """When `take` will give something, if nothing comes before; None if nothing waits."""

    def end_call(self, rows: int, *, took: float, now: float) -> None:
        """Note that a call of so many rows has ended after `took` seconds."""

    def expire(self, now: float) -> list[T]:
        """Return those that have waited too long, each once; they no longer wait."""

    def next_expiry(self) -> float:
        """Return when `expire` is to be called next; infinity for not at all."""

    def size_of(self, level: int) -> int:
        """Return the number of waiting predictions in a level."""

    def ahead_of(self, level: int) -> int:
        """Return the number that would be served before one that enters this level now."""


class _OneLevel(Sized, Generic[T]):
    """Common part of queues without levels: waiting has no limit."""

    def expire(self, _now: float) -> list[T]:
        """Return an empty list: waiting has no limit."""
        return []

    def next_expiry(self) -> float:
        """Return infinity."""
        return inf

    def size_of(self, _level: int) -> int:
        """Return the number of waiting predictions."""
        return len(self)

    def ahead_of(self, _level: int) -> int:
        """Return the number of waiting predictions."""
        return len(self)


class FirstComeQueue(_OneLevel[T]):
    """First come, first served, each by itself: a `CallQueue` for calls of one item, of however many rows."""

    def __init__(self) -> None:
        self._items: dict[T, float] = {}  # when it came

    @property
    def rows(self) -> int:
        """Number of waiting predictions: each fills a call."""
        return len(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items))

    def add(self, item: T, _key: Hashable, _rows: int, *, now: float, level: int = 0) -> bool:  # noqa: ARG002
        """Have an item wait; there is always one more to take."""
        self._items[item] = now
        return True

    def remove(self, item: T) -> bool:
        """Let an item wait no longer; return whether it did."""
        return self._items.pop(item, None) is not None

    def take(self, _now: float) -> list[T]:
        """Return the one that has waited longest."""
        for item in self._items:
            del self._items[item]
            return [item]
        return []

    def take_full(self, *, only: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Return the one that has waited longest, if `only` holds for it."""
        for item in self._items:
            return self.take(0.0) if only(item) else []
        return []

    def due(self) -> float | None:
        """Arrival of the first one, None if empty: `take` never waits for more."""
        return next(iter(self._items.values()), None)

    def end_call(self, rows: int, *, took: float, now: float) -> None:
        """Nothing depends on it."""


class _Group(Generic[T]):
    """Those that can share a batch, in the order in which they came; each with its rows and when it came."""

    __slots__ = ("items", "key", "rows")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.items: dict[T, tuple[int, float]] = {}
        self.rows = 0

    @property
    def since(self) -> float:
        """When the oldest request came."""
        return next(iter(self.items.values()))[1]


class BatchQueue(_OneLevel[T]):
    """Gathers what can share a call: a `CallQueue` for batches.

    `take` gives the batch of the one that has waited longest, in the order of coming, and never more rows than the
    policy's `max_size`, except for one request that has more by itself. How long it waits for more: see `Gathering`.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._max_size = policy.max_size
        self._gathering = gathering_of(policy)
        self._groups: dict[Hashable, _Group[T]] = {}
        self._group_of: dict[T, _Group[T]] = {}
        self.rows = 0  # that wait, of all together

    def __len__(self) -> int:
        return len(self._group_of)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._group_of))

    def add(self, item: T, key: Hashable, rows: int, *, now: float, level: int = 0) -> bool:  # noqa: ARG002
        """Have an item wait. Only those with equal keys share a batch.

        Return whether `take` may give more than it would have before: with a delay, most of those who come change
        nothing.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
        group.items[item] = rows, now
        group.rows += rows
        self._group_of[item] = group
        self.rows += rows
        gathering = self._gathering
        gathering.arrive(rows, now)
        return gathering.is_enough(self.rows, now) or group.rows >= self._max_size

    def remove(self, item: T) -> bool:
        """Let an item wait no longer; return whether it did."""
        group = self._group_of.pop(item, None)
        if group is None:
            return False
        rows, _ = group.items.pop(item)
        group.rows -= rows
        self.rows -= rows
        if not group.items:
            del self._groups[group.key]
        return True

    def end_call(self, rows: int, *, took: float, now: float) -> None:
        """Note the end of a call: those who asked for it may soon ask again."""
        self._gathering.end_call(rows, self.rows, took=took, now=now)

    def take(self, now: float) -> list[T]:
        """Remove the requests that are to run now, and return them; empty if there are none."""
        group = self._next(now)
        return [] if group is None else self._cut(group)

    def take_full(self, *, only: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Return a batch that nothing could be added to, if it is the next one: it need not wait for its worker.

        `only`: if this holds for the one that has waited longest.
        """
        if self.rows < self._max_size:
            return []
        group = min(self._groups.values(), key=_since)
        return self._cut(group) if group.rows >= self._max_size and only(next(iter(group.items))) else []

    def due(self) -> float | None:
        """When `take` will give something, if nothing comes before; None if nothing waits."""
        if not self._groups:
            return None
        return self._gathering.due(min(map(_since, self._groups.values())))

    def _next(self, now: float) -> _Group[T] | None:
        groups = list(self._groups.values())
        gathering = self._gathering
        if not gathering.is_enough(self.rows, now):
            groups = [each for each in groups if each.rows >= self._max_size or gathering.due(each.since) <= now]
        if len(groups) > 1:
            return min(groups, key=_since)
        return groups[0] if groups else None

    def _cut(self, group: _Group[T]) -> list[T]:
        """Take a batch from a group: whole requests, in their order, up to the largest size that it fills."""
        limit = rows_of_call(self._policy, group.rows)
        if group.rows <= limit:
            return self._empty(group)
        taken: list[T] = []
        total = 0
        for item, (rows, _) in group.items.items():
            if taken and total + rows > limit:
                break
            taken.append(item)
            total += rows
        for item in taken:
            self.remove(item)
        return taken

    def _empty(self, group: _Group[T]) -> list[T]:
        """Take all of a group."""
        del self._groups[group.key]
        self.rows -= group.rows
        for item in group.items:
            del self._group_of[item]
        return list(group.items)


def _since(group: _Group[T]) -> float:
    return group.since
