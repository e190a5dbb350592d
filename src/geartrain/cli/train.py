"""`geartrain train`: one training from the command line."""

from __future__ import annotations

import pathlib
from typing import Annotated, Final

import typer

from geartrain.cli import fetching, once, options
from geartrain.cli.typer_app import CommandApp, InputCommand

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)

_WEIGHTS: Final = pathlib.Path("weights")  # observed Cog, section 25


@app.command(
    cls=InputCommand,
    examples=("geartrain train digits -i epochs=3 -o weights",),
)
def train(
    model: options.Model = None,
    given: once.GivenInputs = None,
    *,
    inputs: once.Inputs = None,
    json_input: once.JsonInput = None,
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
    log_level: once.LogLevel = None,
    cache_dir: fetching.CacheDir = None,
    verify_cache: fetching.VerifyCache = False,
) -> None:
    """Train MODEL once, as the `train:` of its cog.yaml says, and write the result to `weights`.

    Where the result holds one file beside other values, the file is written, and the other values go to stdout.

    Exit code: 0 when the training succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    model, words = once.with_inputs(model, given, inputs)
    once.run_once(
        model,
        "train",
        inputs=words,
        json_input=json_input,
        output=_WEIGHTS if output is None and json_input is None else output,
        setup_timeout=setup_timeout,
        log_level=log_level,
        local=fetching.LocalModels(cache_dir, verify=verify_cache),
    )
