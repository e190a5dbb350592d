"""Spans of time, and sizes, as people write them."""

from __future__ import annotations

import re
from typing import Final

_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(ms|[smh]?)", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}
_BYTES: Final = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?((?:[kmgt]i?)?)b?", re.IGNORECASE | re.ASCII)


def read_seconds(text: str) -> float:
    """Return a number of seconds, 0 or more; raises ValueError for anything else."""
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


def read_duration(text: str) -> float:
    """Return a span of time as seconds: `90`, `500ms`, `90s`, `5m`, `1h`; raises ValueError for anything else."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError
    return float(match[1]) * _UNITS[match[2].lower()]


def read_any_duration(value: object) -> float:
    """Return a value of a YAML file as seconds: a number of them, or a text with a unit; raises ValueError."""
    if isinstance(value, str):
        return read_duration(value)
    return read_seconds("" if isinstance(value, bool) else str(value))


def read_size(text: str) -> int:
    """Read a number of bytes: `104857600`, `50MB` (powers of 1000), `100MiB` (powers of 1024), or 0.

    Raises `ValueError` with a sentence for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(match[2].lower()) if match else None
    number = float(match[1]) if match and factor else None
    size = int(number * factor) if number is not None and factor else 0
    if number is None or (size < 1 and number > 0):
        raise ValueError(f"{text!r} is no size; write bytes, or a unit such as 50MB or 100MiB")
    return size
