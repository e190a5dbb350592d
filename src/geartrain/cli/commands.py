"""The `geartrain` command as Typer has it: finds the subcommand and imports nothing of the others."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from geartrain.cli import options
from geartrain.cli.help_text import HelpedGroup
from geartrain.cli.typer_app import CommandApp

_COMMANDS = (
    "serve",
    "dev",
    "run",
    "call",
    "chat",
    "mcp",
    "bench",
    "train",
    "schema",
    "init",
    "doctor",
    "keys",
    "predictions",
    "build",
    "deploy",
)


class _LateGroup(HelpedGroup):
    """Subcommands by name: each is the `app` of the module of that name, imported when it is asked for."""

    examples = (
        "geartrain init shout && geartrain run shout",
        "geartrain dev shout                 while you write it",
        "geartrain serve models              every model of a folder, over HTTP",
        "geartrain call http://127.0.0.1:5000 text=hello",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = dict.fromkeys(_COMMANDS, typer.core.TyperCommand(None))  # their names, for "Did you mean"

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | TyperGroup | None:  # type: ignore[override]  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"geartrain.cli.{cmd_name}").app)
        command.name = cmd_name
        return command if isinstance(command, TyperCommand | TyperGroup) else None


app = CommandApp(cls=_LateGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def geartrain(*, version: options.Version = False) -> None:
    """Serve a Python model class over HTTP, or run it from the command line."""
