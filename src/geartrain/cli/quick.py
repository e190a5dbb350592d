"""Reads the command line of a server without Typer, whose import takes longer than all else of a start.

Only what is plainly right is read here. Whatever else there is, from `--help` to a value that does not fit, is Typer's.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from geartrain.bridge.process import SPARE
from geartrain.cli.declared import Argument, Declared
from geartrain.cli.failure import INTERRUPTED

_COMPLETION: Final = "_GEARTRAIN_COMPLETE"  # set where a shell asks what a word may go on to
_SUPERVISED: Final = frozenset(("LISTEN_PID", "NOTIFY_SOCKET"))  # are the server's own, and not for a worker
_UNSERVED: Final = frozenset(("--help", "--help-all", "--version", "-v"))
# Settings that do not change a value, or are read here; an option with any other is Typer's.
_UNDERSTOOD: Final = frozenset(
    ("autocompletion", "envvar", "help", "hidden", "max", "metavar", "min", "parser", "rich_help_panel", "show_default")
)
_LONGEST_NUMBER: Final = 9  # digits


class UnclearError(Exception):
    """Typer has to read the command line."""


class _Parameter(NamedTuple):
    """A parameter of a command; `kind` is its type, without None."""

    name: str
    kind: Any
    declared: Declared

    def names(self) -> tuple[str, ...]:
        """Return the parameter's names on the command line."""
        return self.declared.names or (f"--{self.name.replace('_', '-')}",)

    def read(self, text: str) -> Any:
        """Return the value that a word stands for. Raises `UnclearError`."""
        how = self.declared.how
        if not text or text.startswith("-") or not how.keys() <= _UNDERSTOOD:
            raise UnclearError
        if "parser" in how:
            return _parsed(how["parser"], text)
        if self.kind is str or (get_origin(self.kind) is Literal and text in get_args(self.kind)):
            return text
        if self.kind is int and text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER:
            number = int(text)
            if how.get("min", number) <= number <= how.get("max", number):
                return number
        if self.kind is Path and (os.access(text, os.R_OK) or not Path(text).exists()):
            return Path(text)
        raise UnclearError


def run_server(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run `geartrain serve` as the words of the command line say. Raises `UnclearError` before anything is started."""
    if words[:1] != ["serve"] or _COMPLETION in environ:
        raise UnclearError
    if _UNSERVED.isdisjoint(words) and _SUPERVISED.isdisjoint(environ):
        SPARE.begin()
    gc.disable()  # until the server is up; most of what is made at a start stays
    try:
        from geartrain.cli.serve_command import serve

        _call(serve, read(serve, words[1:], environ))
    except UnclearError:
        gc.enable()
        raise


def read(function: Callable[..., Any], words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the arguments of a command, by the names of its parameters. Raises `UnclearError`."""
    options, arguments = _parameters(function)
    given: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        name, equals, text = word.partition("=")
        parameter = options.get(name) if word.startswith("-") else next(arguments, None)
        if parameter is None or (parameter.name in given and parameter.kind != list[str]):
            raise UnclearError
        if not word.startswith("-"):
            given[parameter.name] = parameter.read(word)
        elif parameter.kind is bool:
            given[parameter.name] = _switched_on(parameter, has_value=bool(equals))
        elif parameter.kind == list[str]:
            value = parameter._replace(kind=str).read(text if equals else next(left, ""))
            given.setdefault(parameter.name, []).append(value)
        else:
            given[parameter.name] = parameter.read(text if equals else next(left, ""))
    for parameter in options.values():
        text = environ.get(parameter.declared.how.get("envvar", ""), "")
        if text and parameter.name not in given:
            given[parameter.name] = parameter.read(text)
    return given


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, _Parameter], Any]:
    """Return the options of a command, by their names, and an iterator over its arguments."""
    options: dict[str, _Parameter] = {}
    arguments = []
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, declared = get_args(hint)
            parameter = _Parameter(name, _without_none(kind), declared)
            if isinstance(declared, Argument):
                arguments.append(parameter)
            else:
                options |= dict.fromkeys(parameter.names(), parameter)
    return options, iter(arguments)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return kinds[0] if len(kinds) == 1 else kind


def _switched_on(parameter: _Parameter, *, has_value: bool) -> bool:
    """Return True, which a switch means that is there; one without names of its own could be a `--no-…` as well."""
    if has_value or not parameter.declared.names or not parameter.declared.how.keys() <= _UNDERSTOOD:
        raise UnclearError
    return True


def _parsed(parser: Callable[[str], Any], text: str) -> Any:
    try:
        return parser(text)
    except Exception as error:  # Typer tells what is wrong
        raise UnclearError from error


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Call a command, and end as Typer has it end. Raises `UnclearError` where options do not go together."""
    try:
        function(**values)
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
