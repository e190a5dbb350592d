"""`geartrain call`: one prediction of a model that is served."""

from __future__ import annotations

import pathlib
from typing import Annotated, Final

import typer

from geartrain.cli import run, values
from geartrain.cli.completion import complete_served_input
from geartrain.cli.failure import fail
from geartrain.cli.typer_app import CommandApp, InputCommand
from geartrain.cli.values import read_request

_PANEL: Final = "A server that runs"

Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="GEARTRAIN_KEY",
        help="A key, as of `geartrain keys new`.",
        rich_help_panel=_PANEL,
    ),
]
Certificates = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--cacert",
        metavar="FILE",
        help="The certificates to trust, in place of the system's.",
        rich_help_panel=_PANEL,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Do not check the server's certificate; for tests alone.", rich_help_panel=_PANEL),
]


def verification(cacert: pathlib.Path | None, *, insecure: bool) -> bool | str:
    """Return the trusted certificates, for `verify` of `geartrain.Client`; end the command if the file is missing."""
    if cacert is not None and not cacert.is_file():
        fail(f"there is no file {cacert}")
    if insecure:
        return False
    return True if cacert is None else str(cacert)


app = CommandApp(add_completion=False)


@app.command(
    cls=InputCommand,
    examples=(
        "geartrain call http://127.0.0.1:5000 text=hello",
        "geartrain call http://127.0.0.1:5000 -m classify image=@photo.jpg -o out.png",
    ),
)
def call(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:5000.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete_served_input, metavar="NAME=VALUE...", help="Inputs, the same as after -i."
        ),
    ] = None,
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", autocompletion=complete_served_input, metavar="NAME=VALUE", help=run.INPUT_HELP),
    ] = None,
    json_input: run.JsonInput = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Write the output to this file, or into this folder."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Which model, of a server that has several.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up when it takes longer.")
    ] = None,
    key: Key = None,
    cacert: Certificates = None,
    insecure: Insecure = False,
) -> None:
    """Run a model of the server at URL once, and print its output.

    Inputs and output as of `geartrain run`. With a model that streams, the output comes as it is made.

    Exit code: 0 when the prediction succeeded, 1 when it failed, 130 when Ctrl-C canceled it.
    """
    if not url.startswith(("http://", "https://")):
        fail(f"{url!r} is no URL; write for example http://127.0.0.1:5000. `geartrain run` runs a model on disk")
    verify = verification(cacert, insecure=insecure)
    try:
        request = read_request([*(given or ()), *(inputs or ())], json_input, output)
    except values.InputError as error:
        fail(str(error))
    from geartrain.cli.remote import Plan, predict  # late: it imports httpx

    plan = Plan(url=url, request=request, model=model, timeout=timeout, key=key, verify=verify)
    raise typer.Exit(predict(plan))
