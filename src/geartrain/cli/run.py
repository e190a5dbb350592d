"""`geartrain run`: one prediction from the command line."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from geartrain.cli import debugging, fetching, once, options
from geartrain.cli.typer_app import CommandApp, InputCommand

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


class _RunCommand(debugging.BareProfileCommand, InputCommand):
    """The parser of `geartrain run`."""


@app.command(
    cls=_RunCommand,
    examples=(
        "geartrain run shout text=hello",
        "geartrain run classify image=@photo.jpg -o out.png",
        'geartrain run shout --json \'{"text": "hello"}\'',
    ),
    daily=("--input", "--json", "--output", "--setup-timeout", "--debugpy", "--profile", "--log-level"),
)
def run(
    model: options.Model = None,
    given: once.GivenInputs = None,
    *,
    inputs: once.Inputs = None,
    json_input: once.JsonInput = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Write the output to this file, or into this folder."),
    ] = None,
    setup_timeout: options.SetupTimeout = None,
    no_pickle: options.NoPickle = False,
    debugpy: debugging.DebugpyPort = 0,
    debugpy_wait: debugging.DebugpyWait = False,
    profile: debugging.Profile = None,
    profile_format: debugging.Format = "speedscope",
    log_level: once.LogLevel = None,
    cache_dir: fetching.CacheDir = None,
    verify_cache: fetching.VerifyCache = False,
) -> None:
    """Run MODEL once and print its output.

    Output goes to stdout; files are written to output.<ext> here. What the model prints goes to stderr.

    A breakpoint() in the model asks at the terminal.

    Exit code: 0 when the prediction succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    model, words = once.with_inputs(model, given, inputs)
    once.run_once(
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
    )
