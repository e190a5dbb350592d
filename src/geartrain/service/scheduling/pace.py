"""Pace of recent answers, from which `Retry-After` of a refusal is calculated."""

from __future__ import annotations

from math import ceil
from typing import Final

LONGEST_WAIT: Final = 3600  # seconds that a client is told to wait, at most
_WEIGHT: Final = 0.125  # of the latest prediction, in an average that forgets
_FADING: Final = 0.98  # share of the longest time that each prediction leaves


class Pace:
    """The recent time of a prediction in a slot, in seconds: a moving average over calls.

    Of a call with several predictions each counts for its part. `longest` is the longest of late, which fades.
    """

    __slots__ = ("longest", "seconds")

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0  # until the first has ended

    def note(self, seconds: float) -> None:
        """Note that a prediction has taken so many seconds of a slot."""
        recent = self.seconds
        self.seconds = recent + (seconds - recent) * _WEIGHT if recent else seconds
        self.longest *= _FADING
        if seconds > self.longest:  # noqa: PLR1730 - `max` takes several times as long
            self.longest = seconds

    def retry_after(self, ahead: int, slots: int) -> int:
        """Return in how many seconds there is likely to be a slot for one that has so many predictions before it.

        It is at least 1, and at most `LONGEST_WAIT`.
        """
        return min(max(1, ceil(self.seconds * (ahead + 1) / max(1, slots))), LONGEST_WAIT)
