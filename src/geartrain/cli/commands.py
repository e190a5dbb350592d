"""The `geartrain` command as Typer has it: finds the subcommand and imports nothing of the others."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from geartrain.cli import options
from geartrain.cli.typer_app import CommandApp, HelpedGroup

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {  # module and name of each command's application
    "serve": ("serve", "app"),
    "dev": ("dev", "app"),
    "run": ("run", "app"),
    "call": ("call", "app"),
    "chat": ("chat", "app"),
    "mcp": ("mcp", "app"),
    "batch": ("batch", "app"),
    "bench": ("bench", "app"),
    "tune": ("tune", "app"),
    "train": ("run", "train_app"),
    "schema": ("schema", "app"),
    "stubs": ("stubs", "app"),
    "init": ("init", "app"),
    "doctor": ("doctor", "app"),
    "keys": ("keys", "app"),
    "predictions": ("predictions", "app"),
    "build": ("deploy", "build_app"),
    "deploy": ("deploy", "app"),
}


class _LateGroup(HelpedGroup):
    """Subcommands by name: each is an application of a module, imported when it is asked for."""

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
        module, app_name = _COMMANDS[cmd_name]
        command = typer.main.get_command(getattr(importlib.import_module(f"geartrain.cli.{module}"), app_name))
        gc.enable()  # `geartrain.cli.main` has disabled it for the imports
        command.name = cmd_name
        return command if isinstance(command, TyperCommand | TyperGroup) else None


app = CommandApp(cls=_LateGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def geartrain(*, version: options.Version = False) -> None:
    """Serve a Python model class over HTTP, or run it from the command line."""
