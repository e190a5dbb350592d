"""Common part of `geartrain run` and `geartrain train`: one call of a model, from the command line."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import re
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from geartrain.cli import debugging, logs, values
from geartrain.cli.completion import complete_input
from geartrain.cli.failure import INTERRUPTED, fail, warn
from geartrain.cli.fetching import LocalModels
from geartrain.cli.request import read_request
from geartrain.cli.startup import RunObserver
from geartrain.project.source import ProjectError

if TYPE_CHECKING:
    from geartrain.project.source import Mode

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
) -> NoReturn:
    """Run the model once, or its training, and end the command; what is wrong is said before anything is started.

    `local` finds the model.
    """
    aids.check()
    try:
        source = local.find(model, mode, no_pickle=no_pickle)
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
        debugging=debugging.options_of(aids, observer),
    )
    try:
        code = asyncio.run(predict(plan, observer))
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)
