"""Commands on Typer: options as `options` has them, and help on one screen; `--help-all` has the rest."""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import itertools
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from geartrain.cli.failure import fail
from geartrain.cli.options import Argument, Declared

ALL: Final = "--help-all"
_WIDEST: Final = 100  # columns
_NARROWEST: Final = 40
_LEFT: Final = 30  # columns of the names at most; the help of longer ones begins below
_OPTIONS: Final = "Options"
_LONGEST_CHOICES: Final = 60  # characters of the words that an option takes; longer ones stand in its help
_A_CHOICE: Final = "NAME"
_PLAIN: Final = (str, int, float, bool)

Row = tuple[str, str]  # a name, and its help


class Helped:
    """Help in one screen, for a command or a group of them.

    `examples` are command lines. `daily` are the options that `--help` shows; empty for all of them.
    """

    examples: ClassVar[Sequence[str]] = ()
    daily: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show all of the help where `--help-all` asks for it, else parse the command line."""
        own = itertools.takewhile(
            lambda word: word.startswith("-") if isinstance(self, TyperGroup) else word != "--", args
        )
        if ALL in own:
            typer.echo(self._help(ctx, is_whole=True), color=_color())
            ctx.exit()
        if isinstance(self, TyperGroup) and self.no_args_is_help and not args and not ctx.resilient_parsing:
            typer.echo(self._help(ctx, is_whole=not self.daily), color=_color())
            ctx.exit(2)
        assert isinstance(self, TyperCommand | TyperGroup)  # noqa: S101 - it is mixed into one
        for each in self.get_params(ctx):
            if getattr(each, "_runtime_param", ...) is None:  # Typer would convert even defaults with pydantic
                each._runtime_param = _Conversion(each)  # type: ignore[attr-defined]  # noqa: SLF001
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # of the command that it is mixed into
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(self._help(ctx, is_whole=not self.daily) + "\n")

    def _help(self, ctx: typer.Context, *, is_whole: bool) -> str:
        assert isinstance(self, TyperCommand | TyperGroup)  # noqa: S101 - it is mixed into one
        width = max(_NARROWEST, min(ctx.terminal_width or shutil.get_terminal_size().columns, _WIDEST))
        usage = [f"{_title('Usage')} {ctx.command_path} {' '.join(self.collect_usage_pieces(ctx))}"]
        blocks = [usage, _paragraphs(self.help or "", width)]
        if self.examples:
            blocks.append([_title("Examples"), *(f"  {line}" for line in self.examples)])
        for title, rows in self._tables(ctx, is_whole=is_whole):
            blocks.append([_title(title), *_table(rows, width)])
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def _tables(self, ctx: typer.Context, *, is_whole: bool) -> Iterator[tuple[str, list[Row]]]:
        assert isinstance(self, TyperCommand | TyperGroup)  # noqa: S101 - as above
        arguments = [each for each in self.params if not isinstance(each, TyperOption)]
        if arguments:
            yield "Arguments", [(each.metavar or (each.name or "").upper(), each.help or "") for each in arguments]  # type: ignore[attr-defined]  # of Typer's own class
        options = [each for each in self.params if isinstance(each, TyperOption) and not each.hidden]
        shown = [each for each in options if is_whole or not self.daily.isdisjoint(each.opts)]
        panels: dict[str, list[Row]] = {_OPTIONS: []}
        for option in shown:
            panel = str(option.rich_help_panel or _OPTIONS) if is_whole else _OPTIONS
            panels.setdefault(panel, []).append((_names(option), _about(option)))
        panels[_OPTIONS].append(("--help", "Show this and exit."))
        if len(shown) < len(options) or (is_whole and self.daily):
            panels[_OPTIONS].append((ALL, f"Show all {len(options)} options and exit."))
        if isinstance(self, TyperGroup):
            yield "Commands", [(name, _short(self, ctx, name)) for name in self.list_commands(ctx)]
        yield from panels.items()


class _Conversion:
    """Conversion of the values of a parameter, by Typer for those that are not yet what the parameter takes.

    Newer releases of Typer convert with pydantic. Its import and the adapters of all parameters take 0.2 s, a third of
    the processor time of `geartrain run`.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter. Raises `typer.BadParameter`."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        described = self._parameter.type_descriptor
        if described.parameter_info.parser is None or not isinstance(value, str):
            if _is_one_of(value, described.annotation):
                return value
            if described.annotation == list[str] and isinstance(value, list | tuple):
                return [*value]
        self._parameter._runtime_param = None  # noqa: SLF001 - Typer's own takes its place
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _is_one_of(value: Any, kind: Any) -> bool:
    return value in get_args(kind) if get_origin(kind) is Literal else kind in _PLAIN and type(value) is kind


class HelpedGroup(Helped, TyperGroup):
    """A group of commands with help in one screen."""


def helped(kind: type[TyperCommand], examples: Sequence[str], daily: Iterable[str]) -> type[TyperCommand]:
    """Make a class of commands with this help."""
    members = {"examples": tuple(examples), "daily": frozenset(daily), "__doc__": Helped.__doc__}
    return type(kind.__name__, (Helped, kind), members)


def _short(group: TyperGroup, ctx: typer.Context, name: str) -> str:
    command = group.get_command(ctx, name)
    return "" if command is None else " ".join((command.help or "").split("\n\n")[0].split())


def _names(option: TyperOption) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names = f"{names} / {', '.join(option.secondary_opts)}"
    if option.is_flag:
        return names
    choices = option.metavar or _choices(option)
    return f"{names} {_A_CHOICE if len(choices) > _LONGEST_CHOICES else choices}".rstrip()


def _choices(option: TyperOption) -> str:
    """Return the words that an option takes, divided by bars."""
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", str)
    kinds = [each for each in get_args(annotation) if each is not type(None)] or [annotation]
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(kinds[0]) is Literal:
        return "|".join(map(str, get_args(kinds[0])))
    if isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
        return "|".join(str(each.value) for each in kinds[0])
    return "VALUE"


def _about(option: TyperOption) -> str:
    """Return the help of an option, with its default and its variable."""
    notes = []
    default = option.show_default if isinstance(option.show_default, str) else option.default
    if option.show_default and not callable(default) and default not in (None, "", False, (), []):
        notes.append(f"default: {getattr(default, 'value', default)}")
    if option.required:
        notes.append("required")
    if option.envvar and option.show_envvar:
        notes.append(f"env: {option.envvar}")
    about = option.help or ""
    choices = _choices(option)
    if not option.metavar and len(choices) > _LONGEST_CHOICES:
        about = f"{about} One of {choices.replace('|', ', ')}."
    return f"{about} [{'; '.join(notes)}]" if notes else about


def _table(rows: Sequence[Row], width: int) -> Iterator[str]:
    left = 2 + min(_LEFT, max(len(name) for name, _ in rows)) + 2
    for name, text in rows:
        lines = _fill(text, width - left) or [""]
        if len(name) > left - 4:
            yield f"  {name}"
        else:
            yield f"  {name:{left - 2}}{lines.pop(0)}".rstrip()
        for line in lines:
            yield " " * left + line


def _paragraphs(text: str, width: int) -> list[str]:
    paragraphs = [_fill(part, width - 2) for part in text.split("\n\n")]
    return [f"  {line}".rstrip() for number, part in enumerate(paragraphs) for line in ([""] if number else []) + part]


def _fill(text: str, width: int) -> list[str]:
    """Break a text between words alone."""
    words = " ".join(text.split())
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)


def _title(text: str) -> str:
    return typer.style(f"{text}:", bold=True) if _color() is not False else f"{text}:"


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None


_Function = TypeVar("_Function", bound=Callable[..., Any])


class CommandApp(typer.Typer):
    """A `typer.Typer` that also takes options and arguments as `options` has them, with help in one screen."""

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
