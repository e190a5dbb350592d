"""`geartrain serve`, as Typer has it."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from typer.core import TyperCommand

from geartrain.cli.serve_command import serve
from geartrain.cli.typer_app import CommandApp
from geartrain.domain.signature.text_values import FALSE, TRUE

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
app.command(cls=BareSwitchCommand, examples=_EXAMPLES, daily=_DAILY)(serve)
