"""True if and when a crashed worker is followed by another."""

from __future__ import annotations

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True):
    """Start again after a crash: at most `limit` times in a row, each after twice the wait. Times in seconds."""

    limit: int = 5
    first_delay: float = 0.5
    longest_delay: float = 30.0
    good_for: float = 600.0  # a worker that was ready for so long begins a new row


class Restarts:
    """The restarts of one model so far."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self._row = 0
        self.count = 0
        self.last_reason: str | None = None

    @property
    def note(self) -> str:
        """Addition to the reason of a crash without a restart; empty if restarts are off."""
        policy = self._policy
        return "" if policy is None else f"; no further restart: the limit of restarts in a row is {policy.limit}"

    @property
    def hint(self) -> str:
        """Advice for an operator about a crash without a restart."""
        if self._policy is None:
            return "start the server again; with --restart on-crash another worker follows by itself"
        return "start the server again, or load the model anew"

    def next_delay(self, reason: str, *, lived: float) -> float | None:
        """Note a crash; return the seconds to wait before the next start, or None if there shall be none.

        `lived`: seconds that the worker had been ready; 0 for one that died while it was set up, which is one more
        crash in a row however long that took.
        """
        policy = self._policy
        if policy is None:
            return None
        if lived > policy.good_for:
            self._row = 0
        if self._row >= policy.limit:
            return None
        delay = min(policy.longest_delay, policy.first_delay * 2**self._row)
        self._row += 1
        self.count += 1
        self.last_reason = reason
        return float(delay)
