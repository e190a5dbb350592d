"""Options and arguments of commands, made of the table of options where that has them.

They are declared without Typer, whose import takes as long as all of a server, and stand in annotations as Typer's own
do: `Annotated[int, Option(min=0, help="…")]`. `CommandApp` hands them to Typer.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

from geartrain.authoring.quantities import read_size
from geartrain.server.option_kinds import DURATION, SWITCH
from geartrain.server.option_kinds import Option as Row
from geartrain.server.option_table import BY_NAME

T = TypeVar("T")

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_MAX_OUTPUT: Final = 256 * 1024**2


class Declared:
    """Declaration of a parameter for Typer."""

    def __init__(self, *names: str, **how: Any) -> None:
        """`names` and `how` are what the function of the same name in Typer takes."""
        self.names = names
        self.how = how


class Option(Declared):
    """An option; without names it has that of the parameter."""


class Argument(Declared):
    """An argument, which has no name on the command line."""


def unusable(text: str) -> Exception:
    """Return the error for an option that cannot be used so; Typer shows it with the usage of the command."""
    import typer  # late: only where something is wrong

    return typer.BadParameter(text)


def parser_of(read: Callable[[str], T]) -> Callable[[Any], T]:
    """Create a parser for Typer, which gives it defaults as well; `read` raises `ValueError` with a sentence."""

    def parse(text: Any) -> T:
        if not isinstance(text, str):
            found: T = text
            return found
        try:
            return read(text)
        except ValueError as error:
            raise unusable(str(error)) from None

    return parse


parse_size: Final = parser_of(read_size)
parse_duration: Final = parser_of(DURATION.read or float)


def declared(row: Row) -> Option:
    """Declare an option of the table."""
    how: dict[str, Any] = {
        "help": row.help,
        "metavar": row.metavar or row.kind.metavar or None,
        "show_default": row.shown or row.kind.shows_default,
        "min": row.least,
        "max": row.most,
        "envvar": row.variable or None,
        "rich_help_panel": row.panel or None,
        "parser": None if row.kind.read is None else parser_of(row.kind.read),
        "hidden": row.is_hidden,
    }
    return Option(row.flag, **{name: value for name, value in how.items() if value is not None})


def annotation_of(row: Row) -> Any:
    """Return the annotation of the parameter that has the value of an option of the table."""
    kind: Any = row.kind.type
    if row.kind is not SWITCH and row.default is None:
        kind = kind | None
    return Annotated[kind, declared(row)]


def print_version(wanted: bool) -> None:
    """Print the version and exit, when the option was given."""
    if wanted:
        import typer

        import geartrain

        typer.echo(f"geartrain {geartrain.__version__}")
        raise typer.Exit


def _complete_model(incomplete: str) -> Iterator[str]:
    from geartrain.cli.completion import complete_model  # late: it imports Typer

    return complete_model(incomplete)


Model = Annotated[
    str | None,
    Argument(
        autocompletion=_complete_model,
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx or the folder of a language model; or a model elsewhere, such as s3://bucket/model, hf://org/name "
        "or an https:// URL. The current folder by default.",
    ),
]
Target = Annotated[
    str | None,
    Argument(
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx; or a folder of models. The current folder by default.",
    ),
]
ServedTarget = Annotated[
    str | None,
    Argument(
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx; a folder of models; or a model elsewhere, such as s3://bucket/model, hf://org/name or an https:// "
        "URL. The current folder by default.",
    ),
]
NoPickle = Annotated[bool, declared(BY_NAME["no_pickle"])]
SetupTimeout = Annotated[float | None, declared(BY_NAME["setup_timeout"])]
RunTimeout = Annotated[float, declared(BY_NAME["run_timeout"])]
MaxOutputSize = Annotated[int, declared(BY_NAME["max_output_size"])]
AllowPrivateUrls = Annotated[bool, declared(BY_NAME["allow_private_urls"])]
Host = Annotated[str, declared(BY_NAME["host"])]
CacheDir = Annotated[pathlib.Path | None, declared(BY_NAME["cache_dir"])]
VerifyCache = Annotated[bool, declared(BY_NAME["verify_cache"])]
Version = Annotated[
    bool, Option("--version", "-v", callback=print_version, is_eager=True, help="Print the version and exit.")
]
