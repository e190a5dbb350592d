"""Display of a measurement: a progress bar for each level, and a table in the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from geartrain.bench.load import Level
from geartrain.bench.meter import Meter
from geartrain.bench.results import LevelResult, Report
from geartrain.bench.sweep import Plan
from geartrain.bench.texts import COLUMNS, UNKNOWN, cells, level_name, rate

if TYPE_CHECKING:
    from rich.progress_bar import ProgressBar

_OFTEN: Final = 4  # times in a second that the bar is drawn: it takes time from the client
_WIDE: Final = 200  # columns where there is no terminal: lines are not to be broken
_LEFT_OUT: Final = frozenset({"mean", "client"})
_UNKNOWN: Final = {"failed": "0"} | dict.fromkeys(COLUMNS[8:], UNKNOWN)


class BenchView:
    """Shows a measurement on stderr, if that is a terminal. An observer of a `Sweep`."""

    def __init__(self, plan: Plan) -> None:
        self._limits = plan.limits
        self._warmup = plan.warmup
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _Bar(),
            _HowFar(),
            console=console,
            transient=True,
            refresh_per_second=_OFTEN,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def warming(self, level: Level) -> None:
        """Show that a level is about to begin."""
        self._begin(f"Warming up for {_name(level)}", Meter(), seconds=self._warmup, requests=0)

    def measuring(self, level: Level, meter: Meter) -> None:
        """Show that it goes on."""
        self._begin(f"Measuring {_name(level)}", meter, seconds=self._limits.seconds, requests=self._limits.requests)

    def measured(self, result: LevelResult) -> None:
        """Show its result in a line."""
        self._end()
        line = f"{level_name(result)}: {rate(result.rate)} a second"
        if not self._progress.disable:
            self._progress.console.print(Text(line, style="dim"))

    def _begin(self, text: str, meter: Meter, *, seconds: float, requests: int) -> None:
        self._end()
        began = time.monotonic()
        self._task = self._progress.add_task(
            text, total=1.0, meter=meter, seconds=seconds, requests=requests, began=began
        )

    def _end(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def _name(level: Level) -> str:
    return f"{level.value:g} at once" if level.kind == "concurrency" else f"{level.value:g} a second"


class _Bar(BarColumn):
    def render(self, task: Task) -> ProgressBar:
        fields = task.fields
        by_time = (time.monotonic() - fields["began"]) / fields["seconds"] if fields["seconds"] else 0.0
        by_count = fields["meter"].sent / fields["requests"] if fields["requests"] else 0.0
        task.completed = min(1.0, max(by_time, by_count))
        return super().render(task)


class _HowFar(ProgressColumn):
    def render(self, task: Task) -> Text:
        meter: Meter = task.fields["meter"]
        seconds = time.monotonic() - task.fields["began"]
        text = Text(f"{seconds:.0f} s", style="cyan")
        if meter.sent:
            text.append(f", {meter.ended} answers")
        if meter.failed:
            text.append(f", {meter.failed} failed", style="red")
        return text


def print_report(report: Report, *, to_stderr: bool) -> None:
    """Print the table, what failed, and what the figures say."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, highlight=False, width=_WIDE)
    console.print(_table(report))
    for level in report.levels:
        for fault in level.faults:
            text = f"{level_name(level)}: {fault.count} × {fault.kind}: {fault.example}"
            console.print(Text(text, style="red"), soft_wrap=True)
    for sentence in report.advice:
        console.print(Text(sentence), soft_wrap=True)


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    rows = [list(cells(level)) for level in report.levels]
    shown = [
        place
        for place, name in enumerate(COLUMNS)
        if name not in _LEFT_OUT and not all(row[place] == _UNKNOWN.get(name) for row in rows)
    ]
    table.add_column("", no_wrap=True)
    for place in shown:
        table.add_column(COLUMNS[place], justify="right")
    for level, row in zip(report.levels, rows, strict=True):
        table.add_row(level_name(level), *[row[place] for place in shown])
    return table
