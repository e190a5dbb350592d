"""End of a command that failed: one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final, NoReturn

FAILURE: Final = 1
INTERRUPTED: Final = 130  # a shell's code for a program that SIGINT ended
NO_READER: Final = 141  # a shell's code for a program that SIGPIPE ended


class UnclearError(Exception):
    """Typer has to read the command line."""


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Say why on stderr and end the command."""
    complain(message)
    leave(code)


def leave(code: int) -> NoReturn:
    """End the command with an exit code."""
    import typer  # late: a server that starts does without

    raise typer.Exit(code)


def complain(message: str) -> None:
    """Say on stderr what is wrong."""
    print(f"error: {message}", file=sys.stderr)


def warn(message: str) -> None:
    """Say on stderr what was passed over."""
    print(f"warning: {message}", file=sys.stderr)


def silence_stdout() -> None:
    """Handle a closed stdout; keep the interpreter from complaining of that when it flushes it at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
