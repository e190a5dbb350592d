"""Figures as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from geartrain.bench.results import LevelResult

COLUMNS: Final = (
    *("requests", "failed", "a second", "mean", "p50", "p90", "p99", "max"),
    *("queue, mean", "run, mean", "rows a call", "client"),
    *("first token p50", "first token p99", "per token p50", "tokens/s"),
)
"""Columns of a row that `cells` makes."""

UNKNOWN: Final = "-"
"""Stands for a figure that is not known."""
_LARGE: Final = 1000  # from here on there are no decimals


def duration(seconds: float) -> str:
    """Return a time, such as `4.21 ms`."""
    if seconds >= _LARGE:
        return f"{seconds:.0f} s"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def rate(value: float) -> str:
    """Format a rate per second."""
    return f"{value:.0f}" if value >= _LARGE else f"{value:.4g}"


def level_name(level: LevelResult) -> str:
    """Return the name of a level, such as `8 at once`."""
    unit = "at once" if level.kind == "concurrency" else "/s"
    return f"{level.value:g} {unit}{', interrupted' if level.is_partial else ''}"


def cells(level: LevelResult) -> Iterator[str]:
    """Yield the figures of a level, one for each of `COLUMNS`."""
    latency, server = level.latency, level.server
    yield from (str(level.sent), str(level.failed), rate(level.rate))
    for seconds in (latency.mean, latency.p50, latency.p90, latency.p99, latency.max):
        yield duration(seconds) if level.good else UNKNOWN
    for each in (server.queue, server.run):
        yield UNKNOWN if each is None else duration(each.mean)
    yield UNKNOWN if server.batch is None else f"{server.batch.mean:.1f}"
    yield f"{level.client_cpu:.0%}"
    streams = level.streams
    if streams is None:
        yield from (UNKNOWN,) * 4
        return
    yield from (duration(streams.first.p50), duration(streams.first.p99))
    yield duration(streams.per_token.p50) if streams.per_token.max else UNKNOWN
    yield rate(streams.token_rate)
