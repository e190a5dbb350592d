"""Display of a run over a data set: a bar at a terminal, lines of JSON in a pipe, and a summary."""

from __future__ import annotations

import dataclasses
import html
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from geartrain.cli.activity import Activity
from geartrain.cli.failure import complain
from geartrain.dataset.results import Result, Tally

if TYPE_CHECKING:
    from geartrain.server import Progress as Step

_OFTEN: Final = 0.25  # seconds between two views of the bar
_LINES: Final = 10.0  # seconds between two lines in a pipe
_WIDTH: Final = 78
_MOSTLY: Final = 0.8  # of the time, that slots run rows
_OFTEN_ENOUGH: Final = 0.3  # of the time, that rows wait for something

Bound = Literal["model", "server", "reading", "output", "geartrain"]


@dataclasses.dataclass(frozen=True)
class Account:
    """Account of a run at its end.

    `batches`: the runs by the number of their rows. `more`: further lines, such as of a comparison. `busy`: see
    `Runs.busy`. `is_bound_known`: False for a run on several machines.
    """

    tally: Tally
    batches: Mapping[int, int]
    more: Sequence[str] = ()
    _: dataclasses.KW_ONLY
    busy: float | None = None
    is_whole: bool = True
    is_bound_known: bool = True


class BatchView:
    """Shows a run on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._is_for_person = self._console.is_terminal and not self._console.is_dumb_terminal
        self._activity: Activity | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._sizes: Callable[[], Mapping[int, int]] = dict
        self._shown = time.monotonic()

    def setting_up(self, name: str) -> None:
        """Show that the model is set up."""
        if self._is_for_person:
            self._activity = Activity(self._console, f"Setting up {name}")

    def on_progress(self, step: Step) -> None:
        """Show a step of the setup."""
        if step.stage == "setup-output":
            if self._activity is None:
                sys.stderr.write(step.text)
            else:
                self._activity.add_text(step.text)
        elif step.stage == "downloading" and self._activity is not None:
            self._activity.add_bytes(step.source, step.bytes, step.total_bytes or None)

    def begin(self, tally: Tally, sizes: Callable[[], Mapping[int, int]]) -> None:
        """Show that the rows begin. `sizes` returns the runs so far by the number of their rows."""
        self._end_activity()
        self._sizes = sizes
        if not self._is_for_person:
            return
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
            auto_refresh=False,
        )
        self._bar.start()
        self._task = self._bar.add_task("Rows", total=tally.total, completed=tally.skipped, text="")

    def show(self, tally: Tally) -> None:
        """Show how far the run is, if that was not shown just now."""
        now = time.monotonic()
        if now - self._shown < (_OFTEN if self._is_for_person else _LINES):
            return
        self._shown = now
        if self._bar is not None and self._task is not None:
            text = _how_far(tally, _mean(self._sizes()))
            self._bar.update(self._task, completed=tally.skipped + tally.rows, text=text, refresh=True)
        elif not self._is_for_person:
            event = {"event": "progress", **_figures(tally), "batch_rows": _mean(self._sizes())}
            print(json.dumps(event), file=sys.stderr, flush=True)

    def stopping(self) -> None:
        """Show that the run ends after the rows that run."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description="Ending after the rows that run", refresh=True)

    def close(self) -> None:
        """Leave nothing that moves. Repeating it is harmless."""
        self._end_activity()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summarize(self, account: Account, *, to: str, report: Path | None) -> None:
        """Print the account of a run, and write it as a page."""
        lines = summary(account, to=to)
        if self._is_for_person:
            for line in lines:
                self._console.print(line, soft_wrap=True, markup=False)
        else:
            event = {
                "event": "done" if account.is_whole else "ended",
                **_figures(account.tally),
                "batch_rows": _mean(account.batches),
                "bound": bound_of(account.tally, account.busy) if account.is_bound_known else None,
                "busy": None if account.busy is None else round(account.busy, 3),
                "notes": account.more,
            }
            print(json.dumps(event), file=sys.stderr, flush=True)
        if report is not None:
            try:
                report.write_text(_page(lines, account), encoding="utf-8")
            except OSError as error:
                complain(f"cannot write {report}: {error.strerror}")

    def _end_activity(self) -> None:
        if self._activity is not None:
            self._activity.end()
            self._activity = None


def print_rows(results: Sequence[Result]) -> None:
    """Print what a few rows give."""
    for result in results:
        text = f"error: {result.error}" if result.error else bytes(result.output or b"null").decode()
        short = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
        print(f"{result.number:>4}  {short}")


def summary(account: Account, *, to: str) -> list[str]:
    """Return the account of a run as lines."""
    tally, batches = account.tally, account.batches
    place = "" if to == "-" else f" in {to}"
    lines = [
        f"{tally.rows:,} rows in {_time(tally.seconds)}, {tally.rate:,.0f} a second{place}"
        + (f"; {tally.skipped:,} were done before" if tally.skipped else "")
    ]
    if tally.errors:
        lines.append(f"{tally.errors:,} failed:")
        lines += [f"  {count:>8,} x {text}" for text, count in tally.faults.items()]
    times = [tally.percentile(share) for share in (0.5, 0.9, 0.99)]
    if any(times):
        lines.append(f"run of a row: half within {_time(times[0])}, 90 % {_time(times[1])}, 99 % {_time(times[2])}")
    if batches:
        lines.append(f"rows of a batch: {_mean(batches):.1f} on average")
    if tally.rows and account.is_bound_known:
        lines.append(_bound_line(tally, account.busy))
    lines += [f"{kind} tokens: {count:,}" for kind, count in tally.tokens.items() if count]
    return [*lines, *account.more]


def bound_of(tally: Tally, busy: float | None) -> Bound:
    """Name the part of a run that further rows have waited for most; `busy` as in `Account`."""
    seconds, waits = tally.seconds, tally.waits
    if busy is not None and busy >= _MOSTLY:
        return "model"
    if waits.writing > max(waits.reading, waits.running, _OFTEN_ENOUGH * seconds):
        return "output"
    if waits.reading > max(waits.running, _OFTEN_ENOUGH * seconds):
        return "reading"
    return "server" if busy is None else "geartrain"


def _bound_line(tally: Tally, busy: float | None) -> str:
    waits, seconds = tally.waits, max(tally.seconds, 1e-9)
    text = {
        "model": "bounded by the model",
        "server": "bounded by the server",
        "reading": f"bounded by reading rows: none was there to run for {waits.reading / seconds:.0%} of the time",
        "output": f"bounded by the output: rows waited for it for {waits.writing / seconds:.0%} of the time",
        "geartrain": "bounded by geartrain, which checks rows and hands them over",
    }[bound_of(tally, busy)]
    return text if busy is None else f"{text}; the workers were busy for {min(busy, 1.0):.0%} of the time"


def _figures(tally: Tally) -> dict[str, Any]:
    left = tally.seconds_left
    return {
        "rows": tally.skipped + tally.rows,
        "total": tally.total,
        "errors": tally.errors,
        "rows_per_second": round(tally.rate, 1),
        "seconds": round(tally.seconds, 1),
        "seconds_left": None if left is None else round(left, 1),
        "run_seconds_p50": round(tally.percentile(0.5), 6),
        "run_seconds_p99": round(tally.percentile(0.99), 6),
        "tokens": {kind: count for kind, count in tally.tokens.items() if count},
    }


def _how_far(tally: Tally, batch_rows: float) -> str:
    done = tally.skipped + tally.rows
    text = f"{done:,}" if tally.total is None else f"{done:,} of {tally.total:,}"
    text += f"  {tally.rate:,.0f}/s"
    if tally.seconds_left is not None:
        text += f"  {_time(tally.seconds_left)} left"
    if batch_rows:
        text += f"  batches of {batch_rows:.0f}"
    if tally.errors:
        text += f"  {tally.errors:,} failed"
    tokens = tally.tokens["completion"] or tally.tokens["prompt"]
    return text + (f"  {tokens / max(tally.seconds, 1e-9):,.0f} tokens/s" if tokens else "")


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004


def _mean(batches: Mapping[int, int]) -> float:
    runs = sum(batches.values())
    return sum(rows * count for rows, count in batches.items()) / runs if runs else 0.0


def _page(lines: Sequence[str], account: Account) -> str:
    """Return the summary as a page: the account, and a bar for each size of batches."""
    tally, batches = account.tally, account.batches
    most = max(batches.values(), default=1)
    bars = "".join(
        f'<tr><th scope="row">{rows}</th><td><meter max="{most}" value="{count}">{count}</meter> {count:,}</td></tr>'
        for rows, count in sorted(batches.items())
    )
    table = f"<h2>Batches</h2><table><tr><th>rows</th><th>runs</th></tr>{bars}</table>" if bars else ""
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    figures = html.escape(json.dumps(_figures(tally), indent=2))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>geartrain batch</title>'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui;max-width:48rem;margin:2rem auto;padding:0 "
        "1rem}td{padding-left:1rem}meter{width:20rem;max-width:60vw}</style>"
        f"<h1>A run over a data set</h1>{text}{table}<h2>Figures</h2><pre>{figures}</pre></html>\n"
    )
