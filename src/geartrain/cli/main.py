"""The `geartrain` command. A server starts without Typer, whose import takes longer than all else of a start.

Only a command line that is plainly right is read here, by the table of options. All else, from `--help` to a value that
does not fit, is left to Typer, whose options are made of the same table.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from geartrain.bridge.spare import SPARE
from geartrain.cli.failure import INTERRUPTED
from geartrain.server.option_kinds import SWITCH, TEXTS, TRUTH, Option
from geartrain.server.option_table import BY_FLAG, TABLE

_COMPLETION: Final = "_GEARTRAIN_COMPLETE"  # set where a shell asks what a word may go on to
_SUPERVISED: Final = frozenset(("LISTEN_PID", "NOTIFY_SOCKET"))  # are the server's own, and not for a worker
_UNSERVED: Final = frozenset(("--help", "--help-all", "--version", "-v"))
_LONGEST_NUMBER: Final = 9  # digits


def main() -> None:
    """Run the command line; the console script's entry point."""
    end = _End()
    atexit.register(end.at_exit)  # before anything else is: those that come later are called earlier
    try:
        _run()
    except SystemExit as error:
        end.note(error.code)
        raise


def _run() -> None:
    with contextlib.suppress(UnclearError):
        run_server(sys.argv[1:], os.environ)
        return
    from geartrain.cli.commands import app

    app(prog_name="geartrain")


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
        import logging

        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone
                stream.flush()
        os._exit(self._code)


class UnclearError(Exception):
    """Typer has to read the command line."""


def run_server(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run `geartrain serve` as the words of the command line say. Raises `UnclearError` before anything is started."""
    if words[:1] != ["serve"] or _COMPLETION in environ:
        raise UnclearError
    if _UNSERVED.isdisjoint(words) and _SUPERVISED.isdisjoint(environ):
        SPARE.begin()
    gc.disable()  # until the server is up; most of what is made at a start stays
    try:
        _serve(*read(words[1:], environ))
    except UnclearError:
        gc.enable()
        raise


def read(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str | None, dict[str, Any]]:
    """Read the model and the options of `geartrain serve`, by name. Raises `UnclearError`."""
    models: list[str] = []
    given: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            models.append(word)
            continue
        name, equals, text = word.partition("=")
        option = BY_FLAG.get(name)
        if option is None or option.kind is TRUTH or (option.kind is SWITCH and equals):
            raise UnclearError
        value = True if option.kind is SWITCH else _value(option, text if equals else next(left, ""))
        if option.kind is TEXTS:
            given.setdefault(option.name, []).append(value)
        elif option.name in given:
            raise UnclearError
        else:
            given[option.name] = value
    if len(models) > 1 or "" in models:
        raise UnclearError
    for option in TABLE:
        text = environ.get(option.variable, "")
        if text and option.name not in given:
            given[option.name] = _value(option, text)
    return (models[0] if models else None), given


def _value(option: Option, text: str) -> Any:
    """Return the value of an option that a word stands for. Raises `UnclearError`."""
    kind = option.kind
    if not text or text.startswith("-"):
        raise UnclearError
    if kind.read is not None:
        try:
            return kind.read(text)
        except ValueError as error:  # Typer tells what is wrong
            raise UnclearError from error
    if kind.type is str or kind is TEXTS or (get_origin(kind.type) is Literal and text in get_args(kind.type)):
        return text
    if kind.type is int and text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER:
        number = int(text)
        if (option.least or 0) <= number and (option.most is None or number <= option.most):
            return number
    if kind.type is Path and (os.access(text, os.R_OK) or not Path(text).exists()):
        return Path(text)
    raise UnclearError


def _serve(model: str | None, given: Mapping[str, Any]) -> None:
    """Serve, and end as Typer has it end. Raises `UnclearError` where options do not go together."""
    from geartrain.cli.serve_command import serve  # late: the spare process has begun

    try:
        serve(model, given)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if "typer" not in sys.modules:  # these errors are Typer's
            raise
        import typer

        if isinstance(error, typer.BadParameter):
            raise UnclearError from error
        if isinstance(error, typer.Exit):
            sys.exit(error.exit_code)
        raise
