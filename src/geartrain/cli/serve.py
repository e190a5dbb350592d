"""`geartrain serve`, as Typer has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from geartrain.cli import serve_command
from geartrain.cli.options import ServedTarget, Version, annotation_of
from geartrain.cli.typer_app import CommandApp
from geartrain.domain.signature.text_values import FALSE, TRUE
from geartrain.server.option_table import TABLE

if TYPE_CHECKING:
    import typer


class BareSwitchCommand(TyperCommand):
    """A command whose options of `check_switch` may stand bare: `--await-explicit-shutdown` alone means true."""

    bare_switches: frozenset[str] = frozenset({"--await-explicit-shutdown"})

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # narrower in name
        """Give each bare switch its value, then parse as usual."""
        complete: list[str] = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            complete.append(word)
            if word in self.bare_switches and following.lower() not in TRUE | FALSE:
                complete.append("true")
        return super().parse_args(ctx, complete)


def with_options(function: Callable[[str | None, Mapping[str, Any]], object]) -> Callable[..., object]:
    """Give a function that takes a model and the values of options a parameter for each option of the table."""

    def called(model: str | None = None, *, version: bool = False, **values: Any) -> object:  # noqa: ARG001  its callback has printed it
        return function(model, values)

    kinds = {option.name: annotation_of(option) for option in TABLE}
    called.__annotations__ = {"model": ServedTarget, **kinds, "version": Version}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # inspect looks for it
        [
            inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=ServedTarget),
            *(
                inspect.Parameter(
                    option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kinds[option.name]
                )
                for option in TABLE
            ),
            inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Version),
        ]
    )
    called.__name__, called.__doc__ = function.__name__, function.__doc__
    return called


app = CommandApp(add_completion=False, pretty_exceptions_enable=False)
_EXAMPLES = (
    "geartrain serve shout",
    "geartrain serve models --keys keys  a folder of them; clients need a key",
    "geartrain serve shout --queue 100 --restart on-crash",
    "geartrain serve shout --store sqlite:///jobs.db",
)
_DAILY = (
    *("--host", "--port", "--keys", "--tls-cert", "--load", "--reload"),
    *("--queue", "--run-timeout", "--store", "--restart", "--log-level"),
)
app.command(cls=BareSwitchCommand, examples=_EXAMPLES, daily=_DAILY)(with_options(serve_command.serve))
