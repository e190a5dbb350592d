"""`geartrain run`: one prediction from the command line."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from geartrain.cli import once, options

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    model: options.Model = None,
    *,
    inputs: once.Inputs = None,
    json_input: once.JsonInput = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Write the output to this file, or into this folder."),
    ] = None,
    setup_timeout: options.SetupTimeout = None,
    no_pickle: options.NoPickle = False,
    log_level: once.LogLevel = None,
) -> None:
    """Run MODEL once and print its output.

    Output goes to stdout; files are written to output.<ext> here. What the model prints goes to stderr.

    Exit code: 0 when the prediction succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    once.run_once(
        model,
        "predict",
        inputs=inputs,
        json_input=json_input,
        output=output,
        setup_timeout=setup_timeout,
        log_level=log_level,
        no_pickle=no_pickle,
    )
