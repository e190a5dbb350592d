"""The `geartrain` command: finds the subcommand and imports nothing of the others."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from geartrain.cli import options

_COMMANDS = (
    "serve",
    "dev",
    "run",
    "call",
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


class _LateGroup(TyperGroup):
    """Subcommands by name: each is the `app` of the module of that name, imported when it is asked for."""

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


app = typer.Typer(cls=_LateGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def geartrain(*, version: options.Version = False) -> None:
    """Serve a Python model class over HTTP, or run it from the command line."""


def main() -> None:
    """Run the command line; the console script's entry point."""
    end = _End()
    atexit.register(end.at_exit)  # before anything else is: those that come later are called earlier
    try:
        app(prog_name="geartrain")
    except SystemExit as error:
        end.note(error.code)
        raise


class _End:
    """Leaves out the finalization of the interpreter where obstore has been used.

    Its threads may still have an answer to give to Python. They abort the process when they meet an interpreter that is
    being finalized.
    """

    def __init__(self) -> None:
        self._code = 1  # of an exception, whose traceback is printed

    def note(self, code: str | int | None) -> None:
        """Note what the process ends with; a text is printed, and means a failure."""
        self._code = (1 if code else 0) if code is None or isinstance(code, str) else code

    def at_exit(self) -> None:
        """End the process, when all threads have ended and all else that is to be done at the end is done."""
        if "obstore" not in sys.modules:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        os._exit(self._code)
