"""`geartrain run` and `geartrain train`: one prediction, or one training, from the command line."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import re
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from geartrain.cli import debugging, fetching, logs, options, values
from geartrain.cli.completion import complete_input
from geartrain.cli.failure import INTERRUPTED, fail, warn
from geartrain.cli.fetching import LocalModels
from geartrain.cli.startup import RunObserver
from geartrain.cli.typer_app import CommandApp, InputCommand
from geartrain.cli.values import read_request
from geartrain.project.source import ProjectError

if TYPE_CHECKING:
    from geartrain.project.source import Mode, ModelSource


INPUT_HELP: Final = "One input; NAME=@FILE takes a file's content, @- stdin's. Repeat for a list."
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", autocompletion=complete_input, metavar="NAME=VALUE", help=INPUT_HELP),
]
GivenInputs = Annotated[
    list[str] | None,
    typer.Argument(autocompletion=complete_input, metavar="NAME=VALUE...", help="Inputs, the same as after -i."),
]
JsonInput = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="TEXT|@FILE|-",
        help="The whole input as JSON, or - for stdin. The answer is then JSON with status, output and metrics.",
    ),
]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. COG_LOG_LEVEL says the same.")
]


def with_inputs(model: str | None, given: list[str] | None, inputs: list[str] | None) -> tuple[str | None, list[str]]:
    """Return the model and all inputs; `text=hello` in the place of the model is an input of the model here."""
    words = [*(given or ()), *(inputs or ())]
    is_input = model is not None and re.match(r"\w+=", model) is not None and not pathlib.Path(model).exists()
    return (None, [model, *words]) if is_input and model is not None else (model, words)


def run_once(
    model: str | None,
    mode: Mode,
    *,
    inputs: list[str] | None,
    json_input: str | None,
    output: pathlib.Path | None,
    setup_timeout: float | None,
    log_level: str | None,
    local: LocalModels,
    no_pickle: bool = False,
    aids: debugging.Aids = debugging.NO_AIDS,
    others: pathlib.Path | None = None,
) -> NoReturn:
    """Run the model once, or its training, and end the command; what is wrong is said before anything is started.

    `local` finds the model; `others` is the folder of the models that it may call.
    """
    aids.check()
    try:
        source = local.find(model, mode, no_pickle=no_pickle)
        _check_others(source, others)
        request = read_request(inputs, json_input, output)
    except ProjectError as error:
        fail(error.message)
    except values.InputError as error:
        fail(str(error))
    logs.configure(log_level or source.variables.log_level, source.variables.log_format, default="warning")
    logging.getLogger("geartrain.service.workers.pool").setLevel(logging.CRITICAL)  # the error says why it died
    for sentence in (*source.warnings, *source.remarks):
        warn(sentence)
    from geartrain.cli.predict import Plan, predict  # asyncio and the worker's side: after the checks

    observer = RunObserver(source.name)
    plan = Plan(
        source=source,
        request=request,
        setup_timeout=setup_timeout,
        others=others,
        debugging=debugging.options_of(aids, observer),
    )
    try:
        code = asyncio.run(predict(plan, observer))
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def _check_others(source: ModelSource, others: pathlib.Path | None) -> None:
    """Raise ProjectError for a folder that is not there, and for a pipeline without the folder of its models."""
    if others is not None and not others.is_dir():
        raise ProjectError(f"--with: {others} is no folder")
    if others is None and source.pipeline is not None:
        listed = ", ".join(source.pipeline.models)
        raise ProjectError(f"a pipeline needs its models: {listed}; `--with FOLDER` names the folder that holds them")


app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


class _RunCommand(debugging.BareProfileCommand, InputCommand):
    """The parser of `geartrain run`."""


@app.command(
    cls=_RunCommand,
    examples=(
        "geartrain run shout text=hello",
        "geartrain run classify image=@photo.jpg -o out.png",
        'geartrain run shout --json \'{"text": "hello"}\'',
        "geartrain run models/read --with models image=@page.png",
    ),
    daily=("--input", "--json", "--output", "--with", "--setup-timeout", "--debugpy", "--profile", "--log-level"),
)
def run(
    model: options.Model = None,
    given: GivenInputs = None,
    *,
    inputs: Inputs = None,
    json_input: JsonInput = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Write the output to this file, or into this folder."),
    ] = None,
    others: Annotated[
        pathlib.Path | None,
        typer.Option("--with", metavar="FOLDER", help="The models in this folder can be called by MODEL."),
    ] = None,
    setup_timeout: options.SetupTimeout = None,
    no_pickle: options.NoPickle = False,
    debugpy: debugging.DebugpyPort = 0,
    debugpy_wait: debugging.DebugpyWait = False,
    profile: debugging.Profile = None,
    profile_format: debugging.Format = "speedscope",
    log_level: LogLevel = None,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
) -> None:
    """Run MODEL once and print its output.

    Output goes to stdout; files are written to output.<ext> here. What the model prints goes to stderr.

    A breakpoint() in the model asks at the terminal.

    Exit code: 0 when the prediction succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    model, words = with_inputs(model, given, inputs)
    run_once(
        model,
        "predict",
        inputs=words,
        json_input=json_input,
        output=output,
        setup_timeout=setup_timeout,
        log_level=log_level,
        no_pickle=no_pickle,
        aids=debugging.Aids(debugpy, debugpy_wait, profile, profile_format),
        local=fetching.LocalModels(cache_dir, verify=verify_cache),
        others=others,
    )


train_app = CommandApp(add_completion=False, pretty_exceptions_enable=False)

_WEIGHTS: Final = pathlib.Path("weights")  # observed Cog, section 25


@train_app.command(
    cls=InputCommand,
    examples=("geartrain train digits -i epochs=3 -o weights",),
)
def train(
    model: options.Model = None,
    given: GivenInputs = None,
    *,
    inputs: Inputs = None,
    json_input: JsonInput = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Write the result to this file, or into this folder; by default to `weights`, with --json to stdout.",
        ),
    ] = None,
    setup_timeout: options.SetupTimeout = None,
    log_level: LogLevel = None,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
) -> None:
    """Train MODEL once, as the `train:` of its cog.yaml says, and write the result to `weights`.

    Where the result holds one file beside other values, the file is written, and the other values go to stdout.

    Exit code: 0 when the training succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    model, words = with_inputs(model, given, inputs)
    run_once(
        model,
        "train",
        inputs=words,
        json_input=json_input,
        output=_WEIGHTS if output is None and json_input is None else output,
        setup_timeout=setup_timeout,
        log_level=log_level,
        local=fetching.LocalModels(cache_dir, verify=verify_cache),
    )
