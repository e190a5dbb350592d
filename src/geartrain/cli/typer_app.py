"""Typer, for commands whose options are declared as `declared` has them."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from geartrain.cli.declared import Argument, Declared
from geartrain.cli.failure import fail
from geartrain.cli.help_text import HelpedGroup, helped

_Function = TypeVar("_Function", bound=Callable[..., Any])


class CommandApp(typer.Typer):
    """A `typer.Typer` that also takes options and arguments as `declared` has them, with help in one screen."""

    def __init__(self, **how: Any) -> None:
        """See `typer.Typer`."""
        super().__init__(**{"cls": HelpedGroup, "pretty_exceptions_enable": False, **how})

    def command(  # type: ignore[override]  # narrower in `cls`
        self,
        *args: Any,
        cls: type[TyperCommand] = TyperCommand,
        examples: Sequence[str] = (),
        daily: Iterable[str] = (),
        **how: Any,
    ) -> Callable[[_Function], _Function]:
        """See `typer.Typer.command`. `examples` and `daily`: see `Helped`."""
        return _registers(super().command(*args, cls=helped(cls, examples, daily), **how))

    def callback(self, *args: Any, **how: Any) -> Callable[[_Function], _Function]:
        """See `typer.Typer.callback`."""
        return _registers(super().callback(*args, **how))


class InputCommand(TyperCommand):
    """A command that takes the inputs of a model. Its error for an unknown option says how an input is written."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # narrower in name
        """Parse the command line."""
        known = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        for word in itertools.takewhile(lambda word: word != "--", args):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known and not difflib.get_close_matches(name, known):
                fail(f"no such option: {name}. The input {name[2:]!r} of a model is written as {name[2:]}=VALUE")
        return super().parse_args(ctx, args)


def _registers(register: Callable[..., Any]) -> Callable[[_Function], _Function]:
    def decorate(function: _Function) -> _Function:
        register(_for_typer(function))
        return function

    return decorate


def _for_typer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, with annotations that Typer reads."""

    @functools.wraps(function)
    def called(**values: Any) -> Any:
        return function(**values)

    hints = {name: _hint_for_typer(hint) for name, hint in get_type_hints(function, include_extras=True).items()}
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=hints.get(name, Any)) for name, each in signature.parameters.items()]
    called.__annotations__ = hints
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect looks for it
    return called


def _hint_for_typer(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    return Annotated[kind, *(_note_for_typer(note) for note in notes)]


def _note_for_typer(note: Any) -> Any:
    if not isinstance(note, Declared):
        return note
    make = typer.Argument if isinstance(note, Argument) else typer.Option
    return make(*note.names, **note.how)
