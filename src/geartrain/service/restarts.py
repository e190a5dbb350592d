"""Whether and when a crashed worker is followed by another."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True):
    """Start again after a crash: at most `limit` times in a row, each after twice the wait. Times in seconds."""

    limit: int = 5
    first_delay: float = 0.5
    longest_delay: float = 30.0
    good_for: float = 600.0  # a worker that has lived so long begins a new row


class Restarts:
    """The restarts of one model so far."""

    def __init__(self, policy: RestartPolicy | None, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._row = 0
        self._latest = float("-inf")
        self.count = 0
        self.last_reason: str | None = None

    def next_delay(self, reason: str) -> float | None:
        """Note a crash; return how long to wait before the next start, or None if there shall be none."""
        policy = self._policy
        if policy is None:
            return None
        now = self._clock()
        if now - self._latest > policy.good_for:
            self._row = 0
        if self._row >= policy.limit:
            return None
        delay = min(policy.longest_delay, policy.first_delay * 2**self._row)
        self._row += 1
        self._latest = now
        self.count += 1
        self.last_reason = reason
        return float(delay)
