"""Limits by rate: what a client may do as often as it needs, but not in mass.

Each kind of frame that costs the client little and the server more has a bucket of tokens. It fills with time, and with
the work that is done for the client: an answer, or a frame of its body. So a client that pings with every call is free
to do so, and one that only pings is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from geartrain.transport.http2.faults import ConnectionFaultError
from geartrain.transport.http2.interface import ErrorCode


class Flood(IntEnum):
    """Counted events."""

    RESETS = 0  # streams that the client resets, or that it makes the server reset
    SETTINGS = 1
    PINGS = 2
    EMPTY = 3  # DATA and CONTINUATION that carry nothing
    WINDOWS = 4  # WINDOW_UPDATE
    IGNORED = 5  # without a meaning here: PRIORITY, unknown frames, GOAWAY again


class Rate(msgspec.Struct, frozen=True):
    """Allowed rate of events.

    Attributes:
        second: tokens that come with a second.
        burst: tokens that a bucket holds.
        work: tokens that come with an answer, or with a frame of its body.
    """

    second: float
    burst: float
    work: float = 0


RATES: Final[Mapping[Flood, Rate]] = {
    Flood.RESETS: Rate(second=200, burst=4096, work=0.1),
    Flood.SETTINGS: Rate(second=20, burst=100),
    Flood.PINGS: Rate(second=200, burst=4096, work=2),
    Flood.EMPTY: Rate(second=100, burst=1000),
    Flood.WINDOWS: Rate(second=10_000, burst=20_000, work=4),
    Flood.IGNORED: Rate(second=1000, burst=5000, work=4),
}


class Bucket:
    """Tokens of one kind."""

    __slots__ = ("_at", "_rate", "_tokens", "_work")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._tokens = 0.0
        self._at = float("-inf")  # when tokens were added last; never, so that the bucket is full at first
        self._work = 0

    def take(self, now: float, work: int) -> bool:
        """Take a token; return whether there was one. `work`: all that has been done so far."""
        rate = self._rate
        tokens = self._tokens + (now - self._at) * rate.second + (work - self._work) * rate.work
        self._at = now
        self._work = work
        self._tokens = min(rate.burst, tokens) - 1
        return self._tokens >= 0


class FloodGuard:
    """The buckets of a connection."""

    __slots__ = ("_buckets", "now", "work")

    def __init__(self, rates: Mapping[Flood, Rate] = RATES) -> None:
        self._buckets = [Bucket(rates[kind]) for kind in Flood]
        self.now = 0.0  # seconds, as the driver has given them last
        self.work = 0  # answers, and frames of their bodies

    def count(self, kind: Flood) -> None:
        """Count one; raise `ConnectionFaultError` if there are too many."""
        if not self._buckets[kind].take(self.now, self.work):
            text = f"The client exceeds a limit by rate: {kind.name.lower()}."
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text)
