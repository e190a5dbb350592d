"""The options of `geartrain serve` for metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from geartrain.cli.declared import Option, unusable
from geartrain.cli.options import parse_duration, parse_size
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Buckets, check_bounds

METRICS: Final = "Metrics"


def _parser(read: Callable[[str], float]) -> Callable[[Any], tuple[float, ...]]:
    """Create the parser of buckets' bounds with commas between them."""

    def parse(text: Any) -> tuple[float, ...]:
        if isinstance(text, tuple):
            return text
        bounds = tuple(float(read(part.strip())) for part in text.split(","))
        try:
            check_bounds(bounds)
        except ValueError as error:
            raise unusable(str(error)) from None
        return bounds

    return parse


LatencyBuckets = Annotated[
    Any,
    Option(
        parser=_parser(parse_duration),
        metavar="TIMES",
        show_default=False,
        help="The upper bounds of the buckets of all histograms of times in /metrics, such as 10ms,100ms,1s,10s. By "
        "default there are 16, from 1ms to 5m.",
        rich_help_panel=METRICS,
    ),
]
SizeBuckets = Annotated[
    Any,
    Option(
        parser=_parser(parse_size),
        metavar="SIZES",
        show_default=False,
        help="The upper bounds of the buckets of all histograms of sizes in /metrics, such as 1KiB,1MiB,100MiB. By "
        "default there are 10, from 256 bytes to 64MiB.",
        rich_help_panel=METRICS,
    ),
]


def buckets(seconds: tuple[float, ...] | None, sizes: tuple[float, ...] | None) -> Buckets:
    """Return the buckets in the options; an absent option leaves the default."""
    return Buckets(seconds or DEFAULT_BUCKETS.seconds, sizes or DEFAULT_BUCKETS.bytes)
