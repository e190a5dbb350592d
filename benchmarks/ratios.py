"""What rounds of two servers say: whose turn it is, the ratio of each round, and the table of all of them.

Nothing here starts a process or looks at a clock.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Literal

Side = Literal["old", "new"]

HEAD = ("measure", "unit", "OLD", "NEW", "NEW/OLD (of s, µs and MiB: OLD/NEW)", "lowest and highest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something that is measured in each round, once for each side.

    `kind` decides what its ratio counts for: a rate is part of the geometric mean; `--fail-below` looks at rates and at
    costs; details are there to explain the others. Of a rate, more is better; of costs and details, less.
    """

    name: str
    unit: str
    kind: Literal["rate", "cost", "detail"]


@dataclasses.dataclass(frozen=True)
class Series:
    """What was measured of one quantity: a value of each side for each round, all of them above 0."""

    quantity: Quantity
    old: list[float] = dataclasses.field(default_factory=list)
    new: list[float] = dataclasses.field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times better NEW was in each round: above 1 is better, also of what should be small."""
        pairs = zip(self.old, self.new, strict=True)
        if self.quantity.kind == "rate":
            return [new / old for old, new in pairs]
        return [old / new for old, new in pairs]

    @property
    def ratio(self) -> float:
        """The median of the ratios of the rounds."""
        return statistics.median(self.ratios)


def order(number: int) -> tuple[Side, Side]:
    """Who is first and who is second in a round, counted from 0: OLD, NEW, NEW, OLD, OLD, NEW and so on.

    So neither side always has the cache, the heat or the neighbour that the other one leaves behind.
    """
    return ("new", "old") if number % 2 else ("old", "new")


def mean_of_rates(measured: Sequence[Series]) -> float | None:
    """The geometric mean of the ratios of the rates; None without a rate."""
    rates = [series.ratio for series in measured if series.quantity.kind == "rate"]
    return statistics.geometric_mean(rates) if rates else None


def rows(measured: Sequence[Series]) -> list[list[str]]:
    """The lines of the table under HEAD: one for each quantity, and one for the mean of the rates."""
    lines = [
        [
            series.quantity.name,
            series.quantity.unit,
            _number(statistics.median(series.old)),
            _number(statistics.median(series.new)),
            f"{series.ratio:.3f} ×",
            f"{min(series.ratios):.3f} to {max(series.ratios):.3f}",
        ]
        for series in measured
    ]
    mean = mean_of_rates(measured)
    return lines if mean is None else [*lines, ["geometric mean of the rates", "", "", "", f"{mean:.3f} ×", ""]]


def _number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004 - four digits or so are read, whatever the size
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"  # noqa: PLR2004 - as above


def shortfalls(measured: Sequence[Series], least: float) -> list[str]:
    """Why NEW is worse than `least` allows, a sentence for each reason; empty if it is not.

    It is if the mean of the rates is below `least`, or if a rate or a cost was below it in every round: a single round
    below it is usually the machine.
    """
    mean = mean_of_rates(measured)
    found = (
        [] if mean is None or mean >= least else [f"The geometric mean of the rates is {mean:.3f}, below {least:g}."]
    )
    always = [
        (series.quantity.name, max(series.ratios))
        for series in measured
        if series.quantity.kind != "detail" and max(series.ratios) < least
    ]
    return found + [f"{name} was below {least:g} in every round, {best:.3f} at best." for name, best in always]


def as_json(measured: Sequence[Series]) -> dict[str, Any]:
    """Everything that was measured, as plain data."""
    quantities = [
        {
            **dataclasses.asdict(series.quantity),
            "old": series.old,
            "new": series.new,
            "ratios": series.ratios,
            "ratio": series.ratio,
        }
        for series in measured
    ]
    return {"quantities": quantities, "geometric_mean_of_rates": mean_of_rates(measured)}
