"""`geartrain bench`: how many requests a model answers, and how fast."""

from __future__ import annotations

import json
import math
import pathlib
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from rich.console import Console

from geartrain.bench.load import Level, Limits
from geartrain.bench.sweep import Plan
from geartrain.bench.work import ProtocolName
from geartrain.cli import run, values
from geartrain.cli.activity import Activity
from geartrain.cli.bench_run import SIGNALS, Asked, Outputs, measure
from geartrain.cli.call import Certificates, Insecure, Key, verification
from geartrain.cli.failure import INTERRUPTED, fail
from geartrain.cli.options import parse_duration
from geartrain.cli.typer_app import CommandApp
from geartrain.cli.values import read_request
from geartrain.launch.server import Server, ServerError, serve_command
from geartrain.project.served import find_served
from geartrain.project.source import ProjectError

_KEPT: Final = 1000  # lines of its log
_OPTIONS: Final = {
    "access_log": "off",
    "queue": 4096,  # requests wait, as they do not by default in Cog's API
    "shutdown_grace": 0,  # requests that still run have been given up
}


@contextmanager
def served(target: str, extra: Sequence[str], *, is_url: bool) -> Iterator[str]:
    """Have a server for a block: that at the URL, or one of its own with `extra` options. Ends the command if not."""
    if is_url:
        yield target
        return
    try:
        name = getattr(find_served(target), "name", target)
    except ProjectError as error:
        fail(error.message)
    # A group of its own: Ctrl-C ends the measurement first, and then the server.
    server = Server([*serve_command(target, _OPTIONS), *extra], {}, kept_lines=_KEPT, process_group=0)
    try:
        activity = Activity(Console(stderr=True, highlight=False), f"Setting up {name}")
        try:
            server.wait_until_ready(math.inf)
        except ServerError:
            activity.end()
            sys.stderr.write(_readable(server.log))
            fail(f"{name} cannot be served")
        finally:
            activity.end()
        yield server.url
    finally:
        server.stop()


def _readable(log: str) -> str:
    """Return the messages of a log in JSON, and all else as it is."""
    lines = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        if isinstance(record, dict):
            texts = (record.get(name) for name in ("message", "text", "exception", "error"))
            lines.append(": ".join(str(text).rstrip() for text in texts if text))
    return "".join(f"{line}\n" for line in lines)


app = CommandApp(add_completion=False)

_MEASURE: Final = "What is measured"
_INPUTS: Final = "Inputs"
_RESULTS: Final = "Results"
_MOST: Final = 4096  # requests in flight
_DEFAULT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Levels:
    """Levels of load to measure, one after the other."""

    all: tuple[Level, ...]


def parse_concurrency(text: str | Levels) -> Levels:
    """Read numbers of requests in flight, with commas between them."""
    if isinstance(text, Levels):
        return text
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(0 < count <= _MOST for count in counts):
        raise typer.BadParameter(f"{text!r}: write numbers from 1 to {_MOST}, such as 1,8,64")
    return Levels(tuple(Level("concurrency", count) for count in counts))


def parse_rates(text: str | Levels) -> Levels:
    """Read numbers of arrivals in a second, with commas between them."""
    if isinstance(text, Levels):
        return text
    try:
        rates = [float(each) for each in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise typer.BadParameter(f"{text!r}: write requests a second, such as 100 or 50,100,200")
    return Levels(tuple(Level("rate", rate) for rate in rates))


@app.command(
    context_settings={"allow_extra_args": True},
    examples=(
        "geartrain bench http://127.0.0.1:5000 -i text=hello",
        "geartrain bench shout -i text=hello --concurrency 1,8,64",
        "geartrain bench writer -i prompt=hello --protocol openai",
    ),
    daily=("--input", "--inputs", "--model", "--protocol", "--concurrency", "--rate", "--duration", "--html"),
)
def bench(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|MODEL",
            help="A server, such as http://127.0.0.1:5000; or a model as of `geartrain serve`, for which a server is "
            "started. Options after -- go to that `geartrain serve`. The current folder by default.",
        ),
    ] = ".",
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=VALUE", help=run.INPUT_HELP, rich_help_panel=_INPUTS),
    ] = None,
    json_input: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="TEXT|@FILE|-",
            help="The whole input as JSON, or - for stdin.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    many: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE",
            help="Many inputs, sent in turn: a JSON object on each line, or a JSON array of them.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Which model, of a server that has several."),
    ] = None,
    protocol: Annotated[
        ProtocolName,
        typer.Option(
            help="Cog's API, or the Open Inference Protocol with tensors as JSON or as bytes. Streams, with times of "
            "their tokens: sse is Cog's API, generate the generate extension, openai chat completions.",
            rich_help_panel=_MEASURE,
        ),
    ] = "cog",
    concurrency: Annotated[
        Levels | None,
        typer.Option(
            parser=parse_concurrency,
            metavar="N,…",
            show_default=False,
            help="Requests at once, one level after the other. By default 1, 2, 4, … until the throughput no longer "
            "rises.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    rate: Annotated[
        Levels | None,
        typer.Option(
            parser=parse_rates,
            metavar="R,…",
            show_default=False,
            help="Requests a second at random moments, whether those before them are answered or not, in place of "
            "--concurrency.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            show_default=False,
            help="How long each level takes; 5s by default, or until all --requests are sent.",
            rich_help_panel=_MEASURE,
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", show_default=False, help="The most requests of each level.", rich_help_panel=_MEASURE
        ),
    ] = 0,
    warmup: Annotated[
        float,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="How long each level goes on before it counts.",
            rich_help_panel=_MEASURE,
        ),
    ] = 1.0,
    timeout: Annotated[
        float,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="How long an answer may take; then the request has failed.",
            rich_help_panel=_MEASURE,
        ),
    ] = 60.0,
    connections: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST,
            metavar="N",
            help="The most requests at once of --rate.",
            rich_help_panel=_MEASURE,
        ),
    ] = 512,
    html: Annotated[
        pathlib.Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts.", rich_help_panel=_RESULTS),
    ] = None,
    csv: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write a line for each level; - for stdout.", rich_help_panel=_RESULTS
        ),
    ] = None,
    results: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--results", metavar="FILE", help="Write all figures as JSON; - for stdout.", rich_help_panel=_RESULTS
        ),
    ] = None,
    key: Key = None,
    cacert: Certificates = None,
    insecure: Insecure = False,
) -> None:
    """Put a model under load, and print how many requests it answers and how long they take.

    Without inputs the model's own examples and defaults are sent.

    Exit code: 0 when every request succeeded, 1 when some failed, 130 when Ctrl-C ended it; what was measured until
    then is printed.
    """
    is_url = target.startswith(("http://", "https://"))
    levels = _levels(concurrency, rate)
    verify = verification(cacert, insecure=insecure)
    _check(is_url=is_url, extra=context.args)
    if many is not None and (inputs or json_input is not None):
        fail("--inputs are whole inputs; leave -i and --json out")
    outputs = Outputs(html=html, csv=csv, results=results)
    outputs.check()
    try:
        asked = Asked(
            request=read_request(inputs, json_input, None),
            many=many,
            model=model,
            protocol=protocol,
            key=key,
            verify=verify,
        )
    except values.InputError as error:
        fail(str(error))
    seconds = duration if duration is not None else 0.0 if requests else _DEFAULT_SECONDS
    if not seconds and not requests:
        fail("--duration is how long each level takes, and cannot be 0 without --requests")
    plan = Plan(levels, Limits(seconds, requests, timeout or math.inf, connections), warmup)
    try:
        with _with_many_files(), _interrupted_by_all(), served(target, context.args, is_url=is_url) as url:
            code = measure(url, asked, plan, outputs=outputs)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


@contextmanager
def _with_many_files() -> Iterator[None]:
    """Raise the limit of open files as far as it may be raised; a server that is started has the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may have a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _interrupted_by_all() -> Iterator[None]:
    """Have all signals that end the command do so as Ctrl-C does: a server of its own must not outlive it."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _levels(concurrency: Levels | None, rate: Levels | None) -> tuple[Level, ...]:
    if concurrency is not None and rate is not None:
        fail("--rate is in place of --concurrency; leave one of them out")
    chosen = concurrency or rate
    return () if chosen is None else chosen.all


def _check(*, is_url: bool, extra: list[str]) -> None:
    """End the command with what cannot be."""
    if not extra:
        return
    if is_url:
        fail(f"{' '.join(extra)}: options of `geartrain serve` are for a MODEL, whose server is started")
    if not extra[0].startswith("-"):
        fail(f"{extra[0]!r} is one argument too many; options of `geartrain serve` follow --")
