"""True if other processes want the processor that this one would wait awake on.

Who waits awake there loses the processor to them, for longer than the wait could save. Moments and times are in
seconds, on any one clock.
"""

from __future__ import annotations

from typing import Final

LATE: Final = 500e-6  # a wait that takes so much more than it should have has lost the processor
_MANY: Final = 3  # losses
_MADE_UP: Final = 0.1  # of a loss, by a wait without one
_REST: Final = 1.0


class Contention:
    """Counts the waits that lost the processor: several of them close together, and none should follow for a second."""

    __slots__ = ("_losses", "_rests_until")

    def __init__(self) -> None:
        self._losses = 0.0
        self._rests_until = 0.0

    def is_felt(self, now: float) -> bool:
        """True if it is better to sleep."""
        return now <= self._rests_until

    def note(self, now: float, *, is_loss: bool) -> None:
        """Note that a wait is over, and whether it lost the processor."""
        if not is_loss:
            if self._losses > 0:
                self._losses -= _MADE_UP
            return
        self._losses += 1
        if self._losses >= _MANY:
            self._losses = 0.0
            self._rests_until = now + _REST
