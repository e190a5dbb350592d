"""Charts as inline SVG: lines over levels, and bars of parts. Their colours are classes of the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 70
_RIGHT: Final = 90  # for the names of lines, which stand at their ends
_TOP: Final = 20
_BOTTOM: Final = 44
_APART: Final = 14  # between the names of two lines
_MARKS: Final = ("circle", "square", "triangle", "diamond")  # so that colours are not needed to tell lines apart
_DECADES: Final = 1.2  # of values: from so many on, a scale of decades


class Series(NamedTuple):
    """A line or a kind of bar; None where a level has no value."""

    name: str
    values: tuple[float | None, ...]


class Chart(NamedTuple):
    """A chart. `below` names the levels, `label` writes a value of the scale."""

    id: str
    title: str
    description: str
    below: str
    levels: tuple[str, ...]
    series: tuple[Series, ...]
    label: Callable[[float], str]


class _Scale:
    """From values to heights."""

    def __init__(self, values: Sequence[float], *, may_be_decades: bool) -> None:
        top, bottom = max(values, default=1.0) or 1.0, min([each for each in values if each > 0], default=1.0)
        self.is_decades = may_be_decades and math.log10(top / bottom) > _DECADES
        if self.is_decades:
            self.ticks = _decades(bottom, top)
        else:
            self.ticks = _round_steps(top)
        self._low, self._high = self.ticks[0], self.ticks[-1]

    def y(self, value: float) -> float:
        if self.is_decades:
            part = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        else:
            part = value / self._high
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)


def line_chart(chart: Chart) -> str:
    """Return a chart with a line for each series."""
    scale = _Scale([each for series in chart.series for each in series.values if each is not None], may_be_decades=True)
    xs = _places(len(chart.levels))
    parts = [*_frame(chart, scale, xs)]
    ends: list[tuple[float, int, str]] = []
    for number, series in enumerate(chart.series):
        points = [(x, scale.y(value)) for x, value in zip(xs, series.values, strict=True) if value is not None]
        if not points:
            continue
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
        parts += [_mark(number, x, y) for x, y in points]
        ends.append((points[-1][1], number, series.name))
    parts += _names(ends, xs[-1] + 12)
    return _svg(chart, parts)


def stacked_bars(chart: Chart) -> str:
    """Return a chart with a bar for each level, in which the series lie on top of each other."""
    totals = [sum(series.values[place] or 0.0 for series in chart.series) for place in range(len(chart.levels))]
    scale = _Scale(totals, may_be_decades=False)
    xs = _places(len(chart.levels))
    width = round(min(48.0, 0.6 * (_WIDTH - _LEFT - _RIGHT) / len(xs)), 1)
    parts = [*_frame(chart, scale, xs)]
    ends: list[tuple[float, int, str]] = []
    for place, x in enumerate(xs):
        below = 0.0
        for number, series in enumerate(chart.series):
            value = series.values[place] or 0.0
            low, high = scale.y(below), scale.y(below + value)
            parts.append(
                f'<rect class="bar c{number}" x="{x - width / 2:.1f}" y="{high}"'
                f' width="{width}" height="{low - high:.1f}"/>'
            )
            if place == len(xs) - 1:
                ends.append(((low + high) / 2, number, series.name))
            below += value
    parts += _names(ends, xs[-1] + width / 2 + 8)
    return _svg(chart, parts)


def _svg(chart: Chart, parts: Sequence[str]) -> str:
    title, description = f"{chart.id}-title", f"{chart.id}-description"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{title} {description}">'
        f'<title id="{title}">{escape(chart.title)}</title><desc id="{description}">{escape(chart.description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _frame(chart: Chart, scale: _Scale, xs: Sequence[float]) -> Iterator[str]:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(chart.label(tick))}</text>'
    for x, level in zip(xs, chart.levels, strict=True):
        yield f'<text class="tick" x="{x}" y="{floor + 18}" text-anchor="middle">{escape(level)}</text>'
    if scale.is_decades:
        yield f'<text class="axis" x="{_LEFT + 4}" y="{_TOP - 4}">logarithmic</text>'
    middle = (_LEFT + right) / 2
    yield f'<text class="axis" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(chart.below)}</text>'


def _names(ends: list[tuple[float, int, str]], x: float) -> Iterator[str]:
    """Yield the names of series beside their ends, moved apart where they would cover each other."""
    free = float(_HEIGHT - _BOTTOM)
    for y, number, name in sorted(ends, reverse=True):
        free = min(free, y)
        yield f'<text class="name n{number}" x="{x:.1f}" y="{free + 4:.1f}">{escape(name)}</text>'
        free -= _APART


def _mark(number: int, x: float, y: float) -> str:
    match _MARKS[number % len(_MARKS)]:
        case "circle":
            return f'<circle class="mark c{number}" cx="{x}" cy="{y}" r="4"/>'
        case "square":
            return f'<rect class="mark c{number}" x="{x - 3.5}" y="{y - 3.5:.1f}" width="7" height="7"/>'
        case "triangle":
            return f'<path class="mark c{number}" d="M{x},{y - 5:.1f}l5,9h-10z"/>'
    return f'<path class="mark c{number}" d="M{x},{y - 5:.1f}l5,5l-5,5l-5,-5z"/>'


def _places(count: int) -> list[float]:
    """Return the places of the levels: evenly spread."""
    width = (_WIDTH - _LEFT - _RIGHT) / count
    return [round(_LEFT + width * (place + 0.5), 1) for place in range(count)]


def _decades(bottom: float, top: float) -> list[float]:
    first, last = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
    return [10.0**power for power in range(first, last + 1)]


def _round_steps(top: float) -> list[float]:
    """Return steps from 0 to at least `top`, of 1, 2 or 5 times a power of ten."""
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(step * number, 12) for number in range(math.ceil(top / step - 1e-9) + 1)]
