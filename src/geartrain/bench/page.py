"""The report as one HTML page, which loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files
from typing import Final

from geartrain.bench.charts import Chart, Series, line_chart, stacked_bars
from geartrain.bench.results import LevelResult, Report
from geartrain.bench.texts import COLUMNS, cells, duration, level_name

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_TIMES: Final = (
    "Times are those of a client, from the moment a request was due to the end of its answer; queue and run are the "
    "server's own."
)
_BELOW: Final = {"concurrency": "requests at once", "rate": "arrivals a second"}


def to_html(report: Report) -> bytes:
    """Return the page."""
    style = files("geartrain.bench").joinpath("report.css").read_text(encoding="utf-8")
    title = escape(f"{report.model}: a benchmark")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body><main>",
        f"<h1>{title}</h1>",
        *_facts(report),
        *_advice(report),
        *_charts(report),
        "<h2>Figures</h2>",
        *_table(report),
        *_faults(report),
        "</main>",
        f"<footer>geartrain {escape(report.geartrain)}. {_TIMES}</footer></body></html>\n",
    ]
    return "".join(parts).encode()


def _facts(report: Report) -> Iterator[str]:
    facts = {
        "Server": report.url,
        "Protocol": report.protocol,
        "Inputs": f"{report.inputs}, sent in turn" if report.inputs > 1 else "one",
        "Each level": _length(report),
        "Calls at once": str(report.slots) if report.slots else "not known",
        "Measured": report.began,
        "Client": report.machine,
    }
    yield "<dl>"
    for name, value in facts.items():
        yield f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
    yield "</dl>"


def _length(report: Report) -> str:
    limits = [f"{report.seconds:g} s"] if report.seconds else []
    limits += [f"{report.requests} requests"] if report.requests else []
    return f"{' or '.join(limits)}, after {report.warmup:g} s that do not count"


def _advice(report: Report) -> Iterator[str]:
    if report.advice:
        yield '<section class="advice" aria-label="What the figures say">'
        for sentence in report.advice:
            yield f"<p>{escape(sentence)}</p>"
        yield "</section>"


def _charts(report: Report) -> Iterator[str]:
    for kind in ("concurrency", "rate"):
        levels = [level for level in report.levels if level.kind == kind and level.good]
        if levels:
            yield '<div class="charts">'
            for chart, draw in _drawn(levels, kind):
                yield f"<figure><figcaption>{escape(chart.title)}</figcaption>{draw(chart)}</figure>"
            yield "</div>"


def _drawn(levels: list[LevelResult], kind: str) -> Iterator[tuple[Chart, Callable[[Chart], str]]]:
    names = tuple(f"{level.value:g}" for level in levels)
    below = _BELOW[kind]
    best = max(levels, key=lambda level: level.rate)
    rates = Series("succeeded", tuple(level.rate for level in levels))
    told = f"At most {best.rate:.4g} a second, with {best.value:g} {below}. The table below has all figures."
    yield Chart(f"{kind}-rate", "Predictions a second", told, below, names, (rates,), _number), line_chart
    percentiles = tuple(
        Series(name, tuple(getattr(level.latency, name) for level in levels)) for name in ("p50", "p90", "p99", "max")
    )
    yield from _drawn_streams(levels, kind)
    first, last = levels[0], levels[-1]
    told = (
        f"The median is {duration(first.latency.p50)} with {first.value:g} {below} and {duration(last.latency.p50)} "
        f"with {last.value:g}. The table below has all figures."
    )
    yield Chart(f"{kind}-latency", "Time of a request", told, below, names, percentiles, _duration), line_chart
    if all(level.server.queue and level.server.run for level in levels):
        parts = tuple(
            Series(name, tuple(_parts(level)[place] for level in levels))
            for place, name in enumerate(("in the model", "in the queue", "the rest"))
        )
        told = "The mean time of a request, by where it went: in the model, in the server's queue, and all the rest."
        yield Chart(f"{kind}-parts", "Where the time goes", told, below, names, parts, _duration), stacked_bars
    if any(level.server.batch for level in levels):
        rows = Series("rows", tuple(level.server.batch.mean if level.server.batch else None for level in levels))
        told = "How many rows a call of the model had on average."
        yield Chart(f"{kind}-rows", "Rows a call", told, below, names, (rows,), _number), line_chart


def _drawn_streams(levels: list[LevelResult], kind: str) -> Iterator[tuple[Chart, Callable[[Chart], str]]]:
    """Give the charts of streams, if all levels have them."""
    streams = [level.streams for level in levels if level.streams is not None]
    if len(streams) < len(levels):
        return
    names = tuple(f"{level.value:g}" for level in levels)
    below = _BELOW[kind]
    firsts = tuple(
        Series(name, tuple(getattr(each.first, name) for each in streams)) for name in ("p50", "p90", "p99", "max")
    )
    told = (
        f"The median is {duration(streams[0].first.p50)} with {levels[0].value:g} {below} and "
        f"{duration(streams[-1].first.p50)} with {levels[-1].value:g}."
    )
    yield Chart(f"{kind}-first", "Time to the first token", told, below, names, firsts, _duration), line_chart
    each_token = tuple(
        Series(name, tuple(getattr(each.per_token, name) for each in streams)) for name in ("p50", "p90", "p99")
    )
    told = "The time from token to token of a stream, after its first one."
    yield Chart(f"{kind}-per-token", "Time per token", told, below, names, each_token, _duration), line_chart
    unit = "tokens" if all(each.are_counted for each in streams) else "pieces, which stand for tokens"
    told = f"At most {max(each.token_rate for each in streams):.4g} {unit} a second, of all streams together."
    rates = (Series("tokens", tuple(each.token_rate for each in streams)),)
    yield Chart(f"{kind}-tokens", "Tokens a second", told, below, names, rates, _number), line_chart


def _parts(level: LevelResult) -> tuple[float, float, float]:
    run = level.server.run.mean if level.server.run else 0.0
    queue = level.server.queue.mean if level.server.queue else 0.0
    return run, queue, max(0.0, level.latency.mean - run - queue)


def _table(report: Report) -> Iterator[str]:
    yield '<div class="scrolls" tabindex="0" role="region" aria-label="Figures of each level"><table>'
    yield "<caption>One line for each level</caption><thead><tr>"
    for name in ("level", *COLUMNS):
        yield f'<th scope="col">{name}</th>'
    yield "</tr></thead><tbody>"
    for level in report.levels:
        yield f'<tr><th scope="row">{level_name(level)}</th>'
        for place, text in enumerate(cells(level)):
            bad = ' class="bad"' if place == 1 and level.failed else ""
            yield f"<td{bad}>{escape(text)}</td>"
        yield "</tr>"
    yield "</tbody></table></div>"


def _faults(report: Report) -> Iterator[str]:
    if not report.failed:
        return
    yield "<h2>Requests that failed</h2>"
    yield '<div class="scrolls" tabindex="0" role="region" aria-label="Requests that failed"><table>'
    yield '<thead><tr><th scope="col">level</th><th scope="col" class="text">what</th><th scope="col">times</th>'
    yield '<th scope="col" class="text">an example</th></tr></thead><tbody>'
    for level in report.levels:
        for fault in level.faults:
            yield f'<tr><th scope="row">{level_name(level)}</th><td class="text">{escape(fault.kind)}</td>'
            yield f'<td>{fault.count}</td><td class="text">{escape(fault.example)}</td></tr>'
    yield "</tbody></table></div>"


def _number(value: float) -> str:
    return f"{value:g}"


def _duration(seconds: float) -> str:
    return duration(seconds) if seconds else "0"
