"""The options of commands that ask a server: who asks, and which certificates are trusted."""

from __future__ import annotations

import pathlib
from typing import Annotated, Final

import typer

from geartrain.cli.failure import fail

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
