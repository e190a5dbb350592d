"""The options of `geartrain dev` and `geartrain run` that help an author: editors, profiles, and the terminal."""

from __future__ import annotations

import importlib.util
import pathlib
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer
from typer.core import TyperCommand

from geartrain.cli import logs
from geartrain.cli.failure import fail

if TYPE_CHECKING:
    from geartrain.server import DebugOptions
    from geartrain.server.lending import Screen

_HOST: Final = "127.0.0.1"
_PANEL: Final = "Debugging"
_EXTRA: Final = 'pip install "geartrain[debug]"'
_NEEDS: Final = 'Needs pip install "geartrain[debug]".'
_FOLDER: Final = "profiles"

DebugpyPort = Annotated[
    int,
    typer.Option(
        "--debugpy",
        min=0,
        max=65535,
        metavar="PORT",
        show_default=False,
        help="Let an editor attach to the model with debugpy, at this port of 127.0.0.1; further workers have the "
        f"following ports. {_NEEDS}",
        rich_help_panel=_PANEL,
    ),
]
DebugpyWait = Annotated[
    bool,
    typer.Option("--debugpy-wait", help="Load the model when an editor has attached.", rich_help_panel=_PANEL),
]
Profile = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--profile",
        metavar="[=FOLDER]",
        show_default=False,
        help=f"Write a profile of each run, named after its prediction, into the folder {_FOLDER}, or into another "
        f"with --profile=FOLDER. {_NEEDS}",
        rich_help_panel=_PANEL,
    ),
]
Format = Annotated[
    Literal["speedscope", "html"],
    typer.Option(
        help="What a profile is: a file for speedscope.app, or a page to be opened in a browser.",
        rich_help_panel=_PANEL,
    ),
]


class Aids(NamedTuple):
    """Debugging aids in the options."""

    debugpy: int = 0  # the port
    debugpy_wait: bool = False
    profile: pathlib.Path | None = None
    profile_format: Literal["speedscope", "html"] = "speedscope"

    def check(self) -> None:
        """End the command, with what is to be done, if a package is missing or the port is taken."""
        if self.debugpy_wait and not self.debugpy:
            fail("--debugpy-wait needs --debugpy PORT")
        for package, option, is_wanted in (
            ("debugpy", "--debugpy", self.debugpy),
            ("pyinstrument", "--profile", self.profile),
        ):
            if is_wanted and importlib.util.find_spec(package) is None:
                fail(f"{option} needs the package {package}: {_EXTRA}")
        if self.debugpy:
            _check_port(self.debugpy)
        if self.profile is not None and self.profile.exists() and not self.profile.is_dir():
            fail(f"--profile={self.profile}: this is a file; give a folder")


NO_AIDS: Final = Aids()


class BareProfileCommand(TyperCommand):
    """A command whose `--profile` may stand bare. What follows it is never its value: it may be the model."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # narrower in name
        """Give a bare `--profile` its folder, then parse as usual."""
        return super().parse_args(ctx, [f"{word}={_FOLDER}" if word == "--profile" else word for word in args])


def options_of(aids: Aids, screen: Screen) -> DebugOptions:
    """Return the options of debugging; `screen` is the command's display at the terminal."""
    from geartrain.server import DebugOptions
    from geartrain.server.lending import lender_of_terminal

    return DebugOptions(
        lender=lender_of_terminal(_Shown(screen)) if logs.is_terminal(sys.stderr) else None,
        port=aids.debugpy,
        waits=aids.debugpy_wait,
        profiles=aids.profile,
        profile_format=aids.profile_format,
    )


class _Shown:
    """All that the command shows at the terminal: the log, and a view."""

    def __init__(self, view: Screen) -> None:
        self._view = view

    def settle(self) -> None:
        """Write what is on its way."""
        from geartrain.cli.background_logs import settle

        settle()
        self._view.settle()

    def hold(self) -> None:
        """Show nothing from now on."""
        self._view.hold()
        logs.hold()

    def release(self) -> None:
        """Show what was kept, and go on."""
        logs.release()
        self._view.release()


def _check_port(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError as error:
            fail(f"--debugpy: cannot listen on {_HOST}:{port}: {error.strerror or error}. Give another port.")
