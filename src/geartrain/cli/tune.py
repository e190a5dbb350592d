"""`geartrain tune`: the settings of a model with which it answers most requests."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from geartrain.bench.results import LevelResult
from geartrain.bench.texts import UNKNOWN, duration, rate
from geartrain.bench.trials import Score, Tried
from geartrain.bench.tuning import Tuned, tune_async
from geartrain.bench.work import InputsError, ProtocolName
from geartrain.cli import run, values
from geartrain.cli.activity import Activity
from geartrain.cli.bench_run import Asked, prepare_asked
from geartrain.cli.failure import INTERRUPTED, fail
from geartrain.cli.options import parse_duration
from geartrain.cli.typer_app import CommandApp
from geartrain.cli.values import read_request
from geartrain.client import ClientError
from geartrain.launch.server import ServerError
from geartrain.project.config import read_text
from geartrain.project.served import find_served
from geartrain.project.settings import SETTINGS_NAME, read_settings
from geartrain.project.settings_edit import edit
from geartrain.project.source import ModelSource, ProjectError

app = CommandApp(add_completion=False)

_MARK: Final = "geartrain tune: "
_BAR: Final = 40  # columns of the longest bar
_WIDE: Final = 200  # columns where there is no terminal
_FLAGS: Final = {f"batching.{name}": name for name in ("max_size", "max_delay", "max_cost")}


@app.command(
    "tune",
    context_settings={"allow_extra_args": True},
    examples=(
        "geartrain tune shout -i text=hello",
        "geartrain tune shout --inputs real.jsonl --p99 50ms --for 5m",
        "geartrain tune shout --dry-run",
    ),
)
def tune_command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model as of `geartrain serve`. Options after -- go to that `geartrain serve`.",
        ),
    ] = ".",
    *,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help=run.INPUT_HELP)
    ] = None,
    json_input: Annotated[
        str | None, typer.Option("--json", metavar="TEXT|@FILE|-", help="The whole input as JSON, or - for stdin.")
    ] = None,
    many: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Many inputs, sent in turn: a JSON object on each line, or a JSON array of them.",
        ),
    ] = None,
    p99: Annotated[
        float | None,
        typer.Option(
            "--p99",
            parser=parse_duration,
            metavar="TIME",
            show_default=False,
            help="How long 99 of 100 requests may take at most, such as 50ms; without it the rate alone counts.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--for", parser=parse_duration, metavar="TIME", help="How long to search; it stops when nothing pays."
        ),
    ] = 300.0,
    protocol: Annotated[ProtocolName, typer.Option(help="How requests are sent, as of `geartrain bench`.")] = "cog",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Leave geartrain.yaml as it is.")] = False,
    results: Annotated[
        pathlib.Path | None, typer.Option("--results", metavar="FILE", help="Write all figures as JSON.")
    ] = None,
) -> None:
    """Find the settings of MODEL with which it answers most requests, and write them into its geartrain.yaml.

    Sizes of batches, delays, slots, replicas and processors are tried under load, in servers of their own.

    Exit code: 0 when the search has ended, 1 when the model cannot be served or asked, 130 when Ctrl-C ended it; then
    nothing is written.
    """
    if many is not None and (inputs or json_input is not None):
        fail("--inputs are whole inputs; leave -i and --json out")
    if p99 is not None and p99 <= 0:
        fail("--p99 is a time above 0, such as 50ms")
    source = _source(model)
    try:
        request = read_request(inputs, json_input, None)
        asked = Asked(request, many, model=None, protocol=protocol, key=None, verify=True)
        found = _search(source, asked, p99=p99, seconds=seconds, options=context.args)
    except (ClientError, InputsError, values.InputError, ServerError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    _show(found, p99)
    if results is not None:
        results.write_text(json.dumps(_as_json(found), indent=2) + "\n")
    if found.changes and not dry_run:
        _write(source, found)


def _source(model: str) -> ModelSource:
    """Return the model, or end the command."""
    try:
        found = find_served(model)
    except ProjectError as error:
        fail(error.message)
    if not isinstance(found, ModelSource):
        fail(f"{model} is a folder of models; name one of them")
    if found.pipeline is not None:
        fail(f"{model} is a pipeline; tune its models")
    if found.is_pending:
        fail(f"{model} lies elsewhere; tune a copy of it in a folder")
    return found


def _search(source: ModelSource, asked: Asked, *, p99: float | None, seconds: float, options: Sequence[str]) -> Tuned:
    console = Console(stderr=True, highlight=False)
    activity = Activity(console, f"Trying settings of {source.name}")

    def on_tried(each: Tried) -> None:
        if console.is_terminal:
            console.print(Text(f"{_settings(each.settings)}: {_figures(each)}", style="dim"))

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                tune_async(
                    source.root,
                    lambda url: prepare_asked(url, asked),
                    p99=p99,
                    seconds=seconds,
                    options=options,
                    on_tried=on_tried,
                )
            )
    finally:
        activity.end()


def _write(source: ModelSource, found: Tuned) -> None:
    """Write what was found into the model's settings; the figures are comments."""
    path = source.root / SETTINGS_NAME
    day = datetime.now(UTC).date().isoformat()
    comments = (
        f"{day}, {_one(found.after)}",
        f"before, {_one(found.before)}",
    )
    before = read_text(path) or ""
    path.write_text(edit(before, found.changes, comments=comments, mark=_MARK))
    try:
        read_settings(source.root)
    except ProjectError as error:  # a setting that was found cannot stand in the file
        path.write_text(before)
        fail(error.message)
    print(f"{path} has them.")


# output


def _show(found: Tuned, p99: float | None) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    table = Table(box=box.SIMPLE_HEAD)
    names = sorted(found.start)
    for name in (*names, "at once", "a second", "p50", "p99", ""):
        table.add_column(_FLAGS.get(name, name), justify="left" if not name else "right")
    for each in found.tried:
        score = each.score
        figures = (UNKNOWN,) * 4 if score is None else (str(score.level), rate(score.rate), *_times(score))
        mark = "best" if each.settings == found.best else "too slow" if _is_slow(score, p99) else _short(each.fault)
        table.add_row(*(_shown(each.settings[name]) for name in names), *figures, mark)
    console.print(table)
    for title, curve in zip(("Before", "After"), found.curves, strict=True):
        if curve and (title == "After" or found.changes):
            _chart(console, title, curve, p99=p99)
    if not found.changes:
        console.print("The settings are the best that were found; nothing is changed.")
        return
    gain = found.after.rate / found.before.rate if found.before.rate else 0.0
    changes = ", ".join(f"{name}: {_shown(value)}" for name, value in found.changes.items())
    console.print(f"{changes} gives {gain:.3g} times the rate: {_one(found.after)}, before {_one(found.before)}.")


def _chart(console: Console, title: str, curve: Sequence[LevelResult], *, p99: float | None) -> None:
    """Show how long requests take at each rate of arrivals."""
    console.print(f"{title}: 99 of 100 requests that come at random moments take at most")
    longest = max((level.latency.p99 for level in curve), default=0.0) or 1.0
    for level in curve:
        bar = "█" * max(1, round(_BAR * level.latency.p99 / longest))
        late = "  too slow" if p99 is not None and level.latency.p99 > p99 else ""
        console.print(f"{rate(level.value):>8} a second  {duration(level.latency.p99):>8}  {bar}{late}")


def _short(fault: str) -> str:
    return fault.partition(". ")[0].partition(": ")[0]


def _is_slow(score: Score | None, p99: float | None) -> bool:
    return score is not None and p99 is not None and score.p99 > p99


def _figures(each: Tried) -> str:
    return each.fault if each.score is None else _one(each.score)


def _one(score: Score) -> str:
    return f"{rate(score.rate)} a second, 99% within {duration(score.p99)}, {score.level} at once"


def _times(score: Score) -> tuple[str, str]:
    return duration(score.p50), duration(score.p99)


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{_FLAGS.get(name, name)} {_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _as_json(found: Tuned) -> dict[str, Any]:
    def points(curve: Sequence[LevelResult]) -> list[dict[str, float]]:
        return [
            {"rate": level.value, "succeeded": level.rate, "p50": level.latency.p50, "p99": level.latency.p99}
            for level in curve
        ]

    return {
        "start": dict(found.start),
        "best": dict(found.best),
        "before": found.before._asdict(),
        "after": found.after._asdict(),
        "tried": [
            {
                "settings": dict(each.settings),
                "score": None if each.score is None else each.score._asdict(),
                "fault": each.fault,
            }
            for each in found.tried
        ],
        "curves": {"before": points(found.curves[0]), "after": points(found.curves[1])},
    }
