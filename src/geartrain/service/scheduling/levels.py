"""A queue with priority levels. The time is given by the caller, in seconds on any one clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import inf
from typing import Final, Generic

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.priorities import Level
from geartrain.service.scheduling.gathering import gathering_of, rows_of_call
from geartrain.service.scheduling.queue import T

_STALE: Final = 64  # deadlines of those that wait no longer, before they are cleared away


class _Entry(Generic[T]):
    """One that waits."""

    __slots__ = ("group", "level", "line", "rows", "since")

    def __init__(self, group: _Group[T], level: int, *, rows: int, since: float) -> None:
        self.group = group
        self.level = level
        self.rows = rows
        self.since = since
        self.line = _line(level, is_late=False)


def _line(level: int, *, is_late: bool) -> int:
    """Return the place of a line: those who are late stand behind their level, and before the next one."""
    return 2 * level + is_late


class _Group(Generic[T]):
    """Those that can share a call, in lines; within one they stand in the order in which they joined it."""

    __slots__ = ("key", "lines", "rows", "size")

    def __init__(self, key: Hashable, levels: int) -> None:
        self.key = key
        self.lines: list[dict[T, _Entry[T]]] = [{} for _ in range(2 * levels)]
        self.rows = 0
        self.size = 0

    def first(self) -> _Entry[T]:
        """Return the one whose turn is next. A group is never empty."""
        return next(entry for line in self.lines for entry in line.values())

    def put(self, item: T, entry: _Entry[T]) -> None:
        """Add one at the end of its line."""
        self.lines[entry.line][item] = entry
        self.rows += entry.rows
        self.size += 1

    def drop(self, item: T, entry: _Entry[T]) -> None:
        """Take one out."""
        del self.lines[entry.line][item]
        self.rows -= entry.rows
        self.size -= 1


class LevelledQueue(Generic[T]):
    """Queue for any size of calls that serves higher levels first.

    No prediction of a lower level begins before one of a higher level. A call whose first one is of a high level is
    filled up with those of lower levels that can share it. Within a level the order is that of coming. A prediction
    that is late by the policy of its level is no longer returned by `take` but by `expire`, or goes behind the others
    of its level.

    `Gathering` decides the time that a free slot waits for more, counted from the first in the order.
    """

    def __init__(self, policy: BatchPolicy, levels: Sequence[Level]) -> None:
        self._policy = policy
        self._max_size = policy.max_size
        self._gathering = gathering_of(policy)
        self._levels = levels
        self._groups: dict[Hashable, _Group[T]] = {}
        self._entries: dict[T, _Entry[T]] = {}
        self._sizes = [0] * len(levels)
        self._deadlines: list[tuple[float, int, T, _Entry[T]]] = []  # a heap
        self._number = 0  # of deadlines, so that equal ones are told apart
        self._expired: list[T] = []
        self.rows = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        entries = self._entries
        return iter(sorted(entries, key=lambda item: entries[item].line))

    def size_of(self, level: int) -> int:
        """Return the number of waiting predictions in a level."""
        return self._sizes[level]

    def ahead_of(self, level: int) -> int:
        """Return the number that would be served before one that enters this level now."""
        return sum(self._sizes[: level + 1])

    def add(self, item: T, key: Hashable, rows: int, *, now: float, level: int = 0) -> bool:
        """Have an item wait in a level. Only those with equal keys share a call.

        Return whether `take` may give more than it would have before.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key, len(self._levels))
        entry = self._entries[item] = _Entry(group, level, rows=rows, since=now)
        group.put(item, entry)
        self._sizes[level] += 1
        self.rows += rows
        timeout = self._levels[level].timeout
        if timeout is not None:
            self._number += 1
            heapq.heappush(self._deadlines, (now + timeout, self._number, item, entry))
        gathering = self._gathering
        gathering.arrive(rows, now)
        return gathering.is_enough(self.rows, now) or group.rows >= self._max_size

    def remove(self, item: T) -> bool:
        """Let an item wait no longer; return whether it did."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return False
        group = entry.group
        group.drop(item, entry)
        self._sizes[entry.level] -= 1
        self.rows -= entry.rows
        if not group.size:
            del self._groups[group.key]
        return True

    def end_call(self, rows: int, *, took: float, now: float) -> None:
        """Note the end of a call: those who asked for it may soon ask again."""
        self._gathering.end_call(rows, self.rows, took=took, now=now)

    def expire(self, now: float) -> list[T]:
        """Return those that have waited too long, each once; they no longer wait."""
        self._sort_late(now)
        expired, self._expired = self._expired, []
        return expired

    def next_expiry(self) -> float:
        """Return when `expire` is to be called next; infinity for not at all."""
        deadlines = self._deadlines
        while deadlines and self._entries.get(deadlines[0][2]) is not deadlines[0][3]:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else inf

    def take(self, now: float) -> list[T]:
        """Remove the requests that are to run now, and return them; empty if there are none."""
        self._sort_late(now)
        group = self._next(now)
        taken = [] if group is None else _call_of(group, rows_of_call(self._policy, group.rows))
        for item in taken:
            self.remove(item)
        return taken

    def take_full(self, *, only: Callable[[T], bool] = lambda _: True) -> list[T]:  # noqa: ARG002 - of the protocol
        """Return nothing: what lies ready for a busy worker could not be overtaken any more."""
        return []

    def due(self) -> float | None:
        """When `take` will give something, if nothing comes before; None if nothing waits."""
        if not self._groups:
            return None
        since = min(first.since for first in _foremost(self._groups.values()).values())
        return self._gathering.due(since)

    def _sort_late(self, now: float) -> None:
        """Take out those that have waited too long, or put them behind the others of their level."""
        deadlines = self._deadlines
        if len(deadlines) > 2 * len(self._entries) + _STALE:
            deadlines[:] = [each for each in deadlines if self._entries.get(each[2]) is each[3]]
            heapq.heapify(deadlines)
        while deadlines and deadlines[0][0] <= now:
            _, _, item, entry = heapq.heappop(deadlines)
            if self._entries.get(item) is not entry:
                continue
            if self._levels[entry.level].on_timeout == "reject":
                self.remove(item)
                self._expired.append(item)
            else:
                entry.group.drop(item, entry)
                entry.line = _line(entry.level, is_late=True)
                entry.group.put(item, entry)

    def _next(self, now: float) -> _Group[T] | None:
        firsts = _foremost(self._groups.values())
        gathering = self._gathering
        if not gathering.is_enough(self.rows, now):
            firsts = {
                group: first
                for group, first in firsts.items()
                if group.rows >= self._max_size or gathering.due(first.since) <= now
            }
        return min(firsts, key=lambda group: firsts[group].since, default=None)


def _foremost(groups: Iterable[_Group[T]]) -> dict[_Group[T], _Entry[T]]:
    """Return the groups whose first one stands in the foremost line, each with that one."""
    firsts = {group: group.first() for group in groups}
    line = min((first.line for first in firsts.values()), default=0)
    return {group: first for group, first in firsts.items() if first.line == line}


def _call_of(group: _Group[T], limit: int) -> list[T]:
    """Return those of a group that share the next call: whole requests, in their order, up to so many rows."""
    taken: list[T] = []
    total = 0
    for item, entry in _in_order(group):
        if taken and (limit == 1 or total + entry.rows > limit):
            break
        taken.append(item)
        total += entry.rows
    return taken


def _in_order(group: _Group[T]) -> Iterator[tuple[T, _Entry[T]]]:
    for line in group.lines:
        yield from line.items()
