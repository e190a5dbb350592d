"""Declarations of commands' options and arguments, without Typer, whose import takes as long as all of a server.

They stand in annotations, as Typer's own do: `Annotated[int, Option(min=0, help="…")]`. `CommandApp` hands them to
Typer; `quick` reads a plain command line by them.
"""

from __future__ import annotations

from typing import Any


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
