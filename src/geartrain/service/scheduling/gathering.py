"""Time that a free slot waits for a call to become larger. Callers pass the time, in seconds on any one clock."""

from __future__ import annotations

from math import inf
from typing import Final

from geartrain.domain.predictions.batching import BatchPolicy

# statistics for `LearnedDelay`
_WINDOW: Final = 0.5  # of the time of a call: who comes back later is not waited for
_SOON: Final = 0.35  # of that time: as long a wait still pays, on average
_MOST: Final = 0.85  # of the rows that were answered have to come back within the window for a wait to begin ...
_FEW: Final = 0.7  # ... and fewer than these end it; of arrivals that know nothing of each other it is half at most
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


class _Returns:
    """Averages of how many answered clients come back soon, and how soon."""

    __slots__ = ("_answered", "_came_back", "_seen", "pays", "run", "time")

    def __init__(self) -> None:
        self.run = 0.0  # seconds that a call takes
        self.time = 0.0  # seconds after which those who come back have done so
        self.pays = False  # true if to wait for them pays at present
        # Rows, as sums that forget: those that were answered, and those of them that came back within the window.
        self._answered = self._came_back = 0.0
        self._seen = 0  # calls in the sums, up to as many as count

    @property
    def window(self) -> float:
        """Seconds after a call in which a return counts."""
        return _WINDOW * self.run

    def expected(self, rows: int) -> int:
        """Return the number of rows that are likely to come back, of so many that have been answered."""
        return max(1, round(rows * self._came_back / self._answered))

    def note_run(self, took: float) -> None:
        """Note what a call has taken."""
        self.run += (took - self.run) * (_WEIGHT if self.run else 1.0)

    def note(self, answered: int, came: int, after: float) -> None:
        """Note how many of the rows of a call have come back within the window, the last of them after so long."""
        if self._seen < 1 / _WEIGHT:
            self._seen += 1
        self._answered += answered - self._answered * _WEIGHT
        self._came_back += came - self._came_back * _WEIGHT
        if came:
            self.time += (after - self.time) / self._seen
        share = self._came_back / self._answered
        is_soon = self.time <= _SOON * self.run
        self.pays = is_soon and self._seen >= _CALLS and share >= (_FEW if self.pays else _MOST)


class LearnedDelay(Gathering):
    """Wait where clients come back together soon after each call, and nowhere else.

    Clients that ask again as soon as they are answered all come back shortly after a call of several rows. A slot that
    begins with the first of them runs a small call while the others wait for it, and nearly halves the rate. A wait for
    them pays in rate and latency alike if it is clearly shorter than a call.

    So the share of the answered rows that comes back within half a call is watched. It is nearly 1 for such clients. Of
    arrivals that do not depend on the answers it is one half at most, which is what comes in half a call at full load,
    and no slot waits. Nor does one wait where calls are so short that clients take longer to come back.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._max_size = policy.max_size
        self._returns = _Returns()
        # The latest call.
        self._ended_at = -inf
        self._answered = 0
        self._others = 0  # rows that waited when it ended
        self._came = 0  # rows that have come within the window since
        self._last_came_at = -inf
        # current wait
        self._until = -inf
        self._wanted = 1

    def arrive(self, rows: int, now: float) -> None:
        """Count what comes back."""
        if self._came < self._answered and now - self._ended_at <= self._returns.window:
            self._came += rows
            self._last_came_at = now

    def end_call(self, rows: int, waiting: int, *, took: float, now: float) -> None:
        """Learn from the call before, and decide whether to wait for those who have been answered now."""
        returns = self._returns
        self._learn(now)
        returns.note_run(took)
        self._ended_at = now
        self._answered, self._others, self._came = rows, waiting, 0
        self._until = -inf
        if returns.pays:
            self._until = now + min(returns.window, _STRETCH * returns.time + _SLACK)
            self._wanted = min(waiting + returns.expected(rows), self._max_size)

    def _learn(self, now: float) -> None:
        answered, came = self._answered, min(self._came, self._answered)
        is_whole = came == answered or now - self._ended_at > self._returns.window
        if is_whole and answered + self._others > 1:  # of one client there is nothing to learn
            self._returns.note(answered, came, self._last_came_at - self._ended_at)

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
