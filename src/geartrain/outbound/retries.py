"""When and how often a delivery that failed is tried again."""

from __future__ import annotations

import msgspec


class Retries(msgspec.Struct, frozen=True):
    """How long a delivery is tried: the pauses double from `first_pause` up to `longest_pause`, all in seconds.

    As observed of Cog (section 13), but for the jitter, which keeps a thousand deliveries from coming back together.
    """

    tries: int = 13
    first_pause: float = 0.2
    longest_pause: float = 102.4
    jitter: float = 0.5
    seconds: float = 450.0  # after which no new try begins
