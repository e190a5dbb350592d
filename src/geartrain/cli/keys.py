"""`geartrain keys`: the file of keys that `geartrain serve --keys` reads."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from geartrain.cli.failure import fail
from geartrain.cli.typer_app import CommandApp
from geartrain.transport.access.guard import ANY_MODEL
from geartrain.transport.access.keys import (
    NEVER,
    Key,
    add_key,
    check_models,
    check_name,
    check_scopes,
    digest_of,
    list_keys,
    new_key,
    read_time,
    revoke_key,
    write_time,
)
from geartrain.transport.access.options import AccessError

app = CommandApp(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make, list and revoke the keys that clients of a server need.",
)

_DAYS: Final = re.compile(r"(\d{1,5})d", re.ASCII)
_DAY: Final = 86_400.0
_HEADER: Final = ("NAME", "SCOPES", "MODELS", "EXPIRES")

File = Annotated[Path, typer.Option("--keys", metavar="FILE", help="The file of keys, as of `geartrain serve --keys`.")]


@app.command("new", examples=("geartrain keys new ada --keys keys --scope predict",))
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; it is in errors and in the list.")],
    *,
    keys: File,
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE",
            help="What the key allows: predict, read or admin; may be repeated. None of them includes another.",
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="A model that the key is for, such as ec or 'ec*'; may be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE", help="Until when it is valid: 2027-01-31, or 90d for so many days.")
    ] = None,
) -> None:
    """Add a key to FILE and print it, once: the file has only its SHA-256.

    A file that does not exist is made, and only its owner can read it. A running server takes the key up by itself.
    """
    secret = new_key()
    try:
        key = Key(
            check_name(name),
            check_scopes(scope),
            digest_of(secret),
            check_models(model) if model else (ANY_MODEL,),
            NEVER if expires is None else _read_end(expires),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        add_key(keys, key)
    except AccessError as error:
        fail(str(error))
    typer.echo(f"Added the key '{name}' to {keys}. It is printed only this once.", err=True)
    typer.echo(secret)


@app.command("list", examples=("geartrain keys list --keys keys",))
def list_(*, keys: File) -> None:
    """List the keys of FILE, without the keys themselves, which only their clients have."""
    try:
        found = list_keys(keys)
    except AccessError as error:
        fail(str(error))
    rows = [_HEADER, *(_row(key) for key in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())


@app.command("revoke", examples=("geartrain keys revoke ada --keys keys",))
def revoke(name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")], *, keys: File) -> None:
    """Remove a key from FILE. A running server refuses it within about a second."""
    try:
        revoke_key(keys, name)
    except AccessError as error:
        fail(str(error))
    typer.echo(f"Removed the key '{name}' from {keys}.", err=True)


def _row(key: Key) -> tuple[str, ...]:
    end = "never" if key.expires == NEVER else write_time(key.expires)
    if key.expires <= time.time():
        end += " (expired)"
    return key.name, ",".join(key.scopes), ",".join(key.models), end


def _read_end(text: str) -> float:
    days = _DAYS.fullmatch(text)
    end = time.time() // 1 + int(days[1]) * _DAY if days else read_time(text)
    if end <= time.time():
        raise ValueError(f"{text!r} is over; write a date to come, or days such as 90d")
    return end
