"""Time that a free slot waits for a call to become larger. Callers pass the time, in seconds on any one clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Final

from geartrain.domain.predictions.batching import BatchPolicy

# statistics for `LearnedDelay`
_PARTS: Final = 16  # of the time of a call, in which arrivals are counted
_SEEN: Final = 0.9  # of that time, that has to be over
_SIZES: Final = 0.2  # of their mean, by which the rows of calls differ where the time of a row is learned
_LATEST: Final = 0.65  # of what a call takes beside its rows: a wait of all of that would save nothing
_MOST: Final = 0.85  # of the rows that were answered have to come back by then for a wait to begin ...
_FEW: Final = 0.7  # ... and fewer than these end it
_QUIET: Final = 0.25  # of the arrivals that even ones would bring: no more may come in the rest of a call
_CALLS: Final = 8  # that have to be seen before
_WEIGHT: Final = 1 / 16  # of the latest call, in averages that forget
_SLACK: Final = 0.5e-3  # seconds beyond the time after which clients have come back of late
_STRETCH: Final = 1.5  # of that time


class Gathering:
    """Decides for one free slot whether what waits is enough, and until when to wait for more: here it never waits."""

    def arrive(self, rows: int, now: float) -> None:
        """Note that so many rows have come."""

    def end_call(self, rows: int, waiting: int, *, took: float, now: float) -> None:
        """Note that a call of so many rows has ended after `took` seconds, and how many rows wait then."""

    def is_enough(self, rows: int, now: float) -> bool:  # noqa: ARG002 - of the subclasses
        """True if to wait for more than so many rows, of all that wait, would gain nothing."""
        return True

    def due(self, since: float) -> float:
        """Return the moment at which to wait no longer for what has come at `since`."""
        return since


class FixedDelay(Gathering):
    """Waits for the policy's `max_delay` at most.

    It waits no longer than until there is again as much as there was when the last call ended: clients that ask one
    thing after the other do not ask more at once than they did, so to wait on would gain nothing.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._at_last_end = 1  # rows that were on their way when a call ended
        self._ended_at = -inf

    def end_call(self, rows: int, waiting: int, *, took: float, now: float) -> None:  # noqa: ARG002 - of the base class
        """Note the end of a call: those who asked for it may soon ask again."""
        self._at_last_end = rows + waiting
        self._ended_at = now

    def is_enough(self, rows: int, now: float) -> bool:  # noqa: ARG002 - of the base class
        """True if there is as much as at the end of the last call."""
        return rows >= min(self._at_last_end, self._policy.max_size)

    def due(self, since: float) -> float:
        """When the delay of what has come at `since` is over."""
        return max(since, self._ended_at) + self._policy.max_delay


class _Runs:
    """The time of a call, and how much of it does not depend on its rows: a line through the latest calls."""

    __slots__ = ("_fixed", "_number", "_rows", "_seconds", "_squares", "_together", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0  # of a call
        self._fixed = 1.0  # part of it, until calls of several sizes have been seen
        # sums that forget
        self._number = self._rows = self._seconds = self._squares = self._together = 0.0

    def note(self, rows: int, took: float) -> None:
        """Note a call of so many rows that has taken `took` seconds."""
        keep = 1 - _WEIGHT
        self.seconds += (took - self.seconds) * (_WEIGHT if self.seconds else 1.0)
        self._number = self._number * keep + 1
        self._rows = self._rows * keep + rows
        self._seconds = self._seconds * keep + took
        self._squares = self._squares * keep + rows * rows
        self._together = self._together * keep + rows * took
        mean, seconds = self._rows / self._number, self._seconds / self._number
        spread = self._squares / self._number - mean * mean
        if spread >= (_SIZES * mean) ** 2:
            slope = (self._together / self._number - mean * seconds) / spread
            self._fixed = min(1.0, max(0.0, 1 - slope * mean / seconds)) if seconds else 1.0

    @property
    def fixed(self) -> float:
        """The seconds that one call less would save."""
        return self._fixed * self.seconds


class _Returns:
    """When rows come after the end of a call: averages over the latest calls."""

    __slots__ = ("_answered", "_arrivals", "_seen", "pays", "runs", "time")

    def __init__(self) -> None:
        self.runs = _Runs()
        self.time = 0.0  # seconds after which as many have come as were answered
        self.pays = False  # true if to wait for them pays at present
        # Rows, as sums that forget: those that were answered, and those that came in each part of the time of a call.
        self._answered = 0.0
        self._arrivals = [0.0] * _PARTS
        self._seen = 0  # calls in the sums, up to as many as count

    def expected(self, rows: int) -> int:
        """Return the number of rows that are likely to come back, of so many that have been answered."""
        back = sum(self._arrivals[: self._last_part()])
        return max(1, round(rows * min(1.0, back / self._answered)))

    def note(self, answered: int, arrivals: Sequence[int], after: float) -> None:
        """Note the rows that have come in each part of the time after a call; as many as answered `after` so long."""
        if self._seen < 1 / _WEIGHT:
            self._seen += 1
        self._answered += answered - self._answered * _WEIGHT
        self._arrivals = [sum_ * (1 - _WEIGHT) + rows for sum_, rows in zip(self._arrivals, arrivals, strict=True)]
        self.time += (after - self.time) * answered / self._answered  # the last of many counts for more
        last = self._last_part()
        back, rest = sum(self._arrivals[:last]), sum(self._arrivals[last:])
        is_burst = rest <= _QUIET * (back + rest) * (_PARTS - last) / _PARTS
        is_back = back >= (_FEW if self.pays else _MOST) * self._answered
        self.pays = self._seen >= _CALLS and last < _PARTS and self.time <= self.longest and is_burst and is_back

    def _last_part(self) -> int:
        """Return the number of parts of a call within which those come back who do."""
        run = self.runs.seconds
        return min(_PARTS, 1 + ceil(_PARTS * self.time / run)) if run else _PARTS

    @property
    def longest(self) -> float:
        """The seconds that a wait for them may take."""
        return _LATEST * self.runs.fixed


class LearnedDelay(Gathering):
    """Wait where clients come back together after each call and before the next one would be over, and nowhere else.

    Clients that ask again as soon as they are answered all come back after a call of several rows. A slot that begins
    with the first of them runs a small call while the others wait for it, and nearly halves the rate. A wait for them
    pays in rate and latency alike if it is shorter than a call.

    Such clients are known by the shape of what comes in the time of a call after the end of another one: a burst, and
    nothing behind it until the next end. Arrivals that do not depend on the answers are spread evenly, and no slot
    waits. Nor does one wait where calls are so short that clients take longer to come back.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._max_size = policy.max_size
        self._returns = _Returns()
        # The latest call.
        self._ended_at = -inf
        self._answered = 0
        self._others = 0  # rows that waited when it ended
        self._came = 0  # rows that have come since, within the time of a call
        self._arrivals = [0] * _PARTS  # the same by the part of that time
        self._came_back_after = 0.0  # seconds until the last of as many as were answered
        # current wait
        self._until = -inf
        self._wanted = 1

    def arrive(self, rows: int, now: float) -> None:
        """Count what comes in the time of a call after the latest one."""
        after = now - self._ended_at
        run = self._returns.runs.seconds
        if after >= run:
            return
        self._arrivals[int(_PARTS * after / run)] += rows
        if self._came < self._answered:
            self._came_back_after = after
        self._came += rows

    def end_call(self, rows: int, waiting: int, *, took: float, now: float) -> None:
        """Learn from the call before, and decide whether to wait for those who have been answered now."""
        rows = max(1, rows)  # tensors may have none, and a call without rows says nothing of the time that one takes
        returns = self._returns
        self._learn(now)
        returns.runs.note(rows, took)
        self._ended_at = now
        self._answered, self._others, self._came = rows, waiting, 0
        self._arrivals = [0] * _PARTS
        self._came_back_after = 0.0
        self._until = -inf
        if returns.pays:
            self._until = now + min(returns.longest, _STRETCH * returns.time + _SLACK)
            self._wanted = min(waiting + returns.expected(rows), self._max_size)

    def _learn(self, now: float) -> None:
        is_whole = now - self._ended_at >= _SEEN * self._returns.runs.seconds
        if is_whole and self._answered + self._others > 1:  # of one client there is nothing to learn
            after = self._came_back_after if self._came else self._returns.runs.seconds
            self._returns.note(self._answered, self._arrivals, after)

    def is_enough(self, rows: int, now: float) -> bool:
        """True if the expected rows have come, or none are expected."""
        return now >= self._until or rows >= self._wanted

    def due(self, since: float) -> float:
        """When the wait for those who have been answered is over."""
        return max(since, self._until)


def gathering_of(policy: BatchPolicy) -> Gathering:
    """Create the gathering of a policy."""
    if policy.max_delay > 0:
        return FixedDelay(policy)
    return LearnedDelay(policy) if policy.learn_delay and policy.max_size > 1 else Gathering()


def rows_of_call(policy: BatchPolicy, rows: int) -> int:
    """Return the rows of the call to cut from a group of so many: the largest size that it fills."""
    largest = policy.max_size
    if rows >= largest:
        return largest
    return max((size for size in policy.preferred_sizes if size <= rows), default=largest)
